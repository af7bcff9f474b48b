"""Training steps of a network that is cut into pipeline stages."""
