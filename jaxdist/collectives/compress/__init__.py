"""Compress: sums over an axis in fewer bytes, one way a file."""
