"""Elastic launches: a host pool and a number of processes that may change."""
