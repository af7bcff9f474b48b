"""Made: names that arrays have in traced programs, for those who count their bytes."""

from typing import Final

MADE: Final = "made"
"""What a layer returns."""
INNER: Final = "inner"
"""An array inside of a layer that its backward pass reads."""
