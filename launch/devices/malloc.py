"""Pages: memory that a step frees stays with its process, on CPUs.

The GNU C library hands an array of more than 32 MB back to the kernel as soon as it is
freed. The next step asks for it again, and each page comes anew, zeroed, for some
microseconds: a step with 131 MB of temporaries took 1.6 times as long as its work.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from typing import Final

_MALLOPT_SETTINGS: Final = ((-8, 1), (-4, 0), (-1, 2**31 - 1))
"""`mallopt` of M_ARENA_MAX, since other arenas than the first map what is large;
M_MMAP_MAX, and M_TRIM_THRESHOLD in bytes."""
_USER_VAR_PREFIXES: Final = ("MALLOC_", "GLIBC_TUNABLES")
"""Beginnings of variables with which a user has set the allocator."""


def retain_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Have the allocator keep what is freed; call it before threads begin.

    Args:
        environ: where it has settings of the user's, these stay as they are.

    Returns:
        Whether it keeps them: other C libraries are left alone.
    """
    if sys.platform != "linux" or any(
        name.startswith(_USER_VAR_PREFIXES) for name in environ
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*each) for each in _MALLOPT_SETTINGS)
