"""The digits, prepared once for all tests of the room."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdist.input.digits import open_digits


@pytest.fixture(scope="session")
def digits_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared") / "data"
    open_digits(directory)
    return directory


@pytest.fixture(scope="session")
def shardings():
    """data 4 x spatial_h 2, images split in rows."""
    devices = np.array(jax.devices()[:8]).reshape(4, 2)
    mesh = Mesh(devices, ("data", "spatial_h"))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    image = NamedSharding(mesh, PartitionSpec("data", "spatial_h"))
    return {"image": image, "label": rows, "id": rows, "weight": rows}
