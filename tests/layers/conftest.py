"""Layers are compared in float64: in float32 summation order alone shows."""

import jax
import pytest


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield
