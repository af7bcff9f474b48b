"""All-reduce algorithms, as schedules of steps: a family of them in each file."""
