"""Data to the devices, in an order that survives anything."""
