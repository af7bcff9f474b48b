"""Read a network on abstract shapes: which layers it calls, on what."""
