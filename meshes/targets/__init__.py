"""Targets: machines that a step is compiled for, whether or not they are here."""
