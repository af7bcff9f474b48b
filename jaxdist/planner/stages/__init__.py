"""PipeDream's partitioner: stages and their replicas for a graph."""
