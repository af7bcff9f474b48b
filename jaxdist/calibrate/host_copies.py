"""Copies: the bytes a second between a device and its host's memory, measured.

All devices copy at once. What comes back to the host is a new array each time, since
JAX keeps the host's copy of an array that was asked for before; the seconds of sending
it there are taken off.
"""

from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh

from jaxdist.calibrate.synchronized_timing import time_rounds

_BYTES: Final = 1 << 25
_ROUNDS: Final = 5


def host_copy_bandwidth(mesh: Mesh) -> float:
    """Return the bytes a second that each device sends or takes, the slower way.

    Args:
        mesh: its devices copy together.
    """
    own = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
    x = np.ones(_BYTES // 4, np.float32)

    def there() -> list[jax.Array]:
        return [jax.device_put(x, device, may_alias=False) for device in own]

    def there_and_back() -> list[Any]:
        return [np.array(y) for y in jax.block_until_ready(there())]

    one, both = np.median(time_rounds(mesh, [there, there_and_back], _ROUNDS), axis=1)
    return x.nbytes / float(max(one, both - one))
