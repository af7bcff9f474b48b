"""Platforms as files: devices, switches and cables, by name or of one's own."""
