"""Packages that some formats need; they are imported when a file of one is opened."""

from importlib import import_module
from typing import Any

from jaxdist.core.errors import BadInput


def require(package: str) -> Any:
    """Import a package of the extra `volumes`.

    Raises:
        BadInput: it is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise BadInput(
            f"{package} is not installed",
            rule="HDF5 files are read with h5py, NIfTI files with nibabel",
            values=str(error),
            remedy='pip install "jaxdist[volumes]"',
        ) from error
