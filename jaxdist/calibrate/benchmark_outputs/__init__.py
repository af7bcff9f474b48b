"""Timings read from the output of link benchmarks: nccl-tests and OSU."""
