"""A testbed of network namespaces: emulated hosts on shaped links."""
