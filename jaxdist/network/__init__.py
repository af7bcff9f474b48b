"""Step lists on networks whose links are shared: time and contention, no devices."""
