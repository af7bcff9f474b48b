"""Launchers: local, SSH, SLURM, Kubernetes, MPI."""
