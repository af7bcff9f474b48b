"""Sum and move arrays over a named axis, and count the bytes that travel."""
