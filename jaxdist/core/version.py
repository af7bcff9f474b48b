"""The version of jaxdist."""

from typing import Final

VERSION: Final = "0.1.0"
"""As `pyproject.toml` and `jaxdist.__version__` have it."""
