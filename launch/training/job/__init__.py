"""A job: network, data, optimizer and plan of one run."""
