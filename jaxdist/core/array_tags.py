"""Names of arrays in traced programs, by which their bytes are counted."""

from typing import Final

LAYER_OUTPUT: Final = "made"
"""What a layer returns."""
INNER_ACTIVATION: Final = "inner"
"""An array inside of a layer that its backward pass reads."""
