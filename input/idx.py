"""IDX: the file format of MNIST, one array of bytes a file.

    0 0 8 n    8: unsigned bytes; n: number of dims
    n x 4 B    sizes, big-endian
    the rest   numbers, the last dim fastest

Source: Y. LeCun, C. Cortes and C. Burges, "The MNIST database", section on its files.
"""

import gzip
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxdist.core.errors import BadInput

_UINT8_MAGIC: Final = b"\x00\x00\x08"


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a file of unsigned bytes, packed with gzip where its name ends in `.gz`.

    Raises:
        BadInput: it cannot be read, is no such file, or is cut short.
    """
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError) as error:
        raise _corrupt_error(path, str(error)) from error
    if content[:3] != _UINT8_MAGIC or len(content) < 4 + 4 * content[3]:
        raise _corrupt_error(
            path, f"it begins with {content[:4].hex(' ') or 'nothing'}"
        )
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">u4").tolist()
    numbers = np.frombuffer(content, np.uint8, offset=start)
    if len(numbers) != np.prod(shape, dtype=np.int64):
        raise _corrupt_error(path, f"shape {shape}, {len(numbers):,} numbers")
    return numbers.reshape(shape)


def _corrupt_error(path: Path, values: str) -> BadInput:
    return BadInput(
        f"{path.name} is no whole IDX file",
        rule="an IDX file of images or labels begins with 00 00 08 and its sizes, and "
        "holds as many bytes as they say",
        values=f"{path}: {values}",
        remedy=f"rm {path}    # and download it again",
    )
