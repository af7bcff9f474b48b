"""The processes of one run: process group, rendezvous, preemption."""
