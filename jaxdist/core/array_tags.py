"""Names of arrays and operations in traced programs, by which they are counted."""

from typing import Final

LAYER_OUTPUT: Final = "made"
"""What a layer returns."""
INNER_ACTIVATION: Final = "inner"
"""An array inside of a layer that its backward pass reads."""
DROPOUT_MASK: Final = "dropout mask"
"""Which elements a dropout layer keeps."""
MOVED_ROWS: Final = "moved rows"
"""Rows in another order, which are moved again rather than kept for a backward pass."""
FUSED_ATTENTION: Final = "fused_attention"
"""The primitive of causal attention whose scores are never written to memory."""
FUSED_ATTENTION_GRADIENT: Final = "fused_attention_gradient"
"""Its backward pass."""
RAGGED_PRODUCT: Final = "ragged_dot_general"
"""The primitive of products of rows with the matrix of each one's group."""
