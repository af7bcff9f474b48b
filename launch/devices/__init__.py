"""The devices of this process: platform, JAX environment, device count."""
