"""What benchmarks of links print, read as timings: nccl-tests and OSU."""
