"""What XLA's CPU backend fuses and keeps, reproduced from a jaxpr."""
