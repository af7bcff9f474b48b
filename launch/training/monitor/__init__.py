"""Monitoring of a run: heartbeat, watchdog, stragglers."""
