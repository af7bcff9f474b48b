"""Made: names that arrays have in traced programs, for those who count their bytes."""

from typing import Final

LAYER_OUTPUT: Final = "made"
"""What a layer returns."""
INNER_ACTIVATION: Final = "inner"
"""An array inside of a layer that its backward pass reads."""
