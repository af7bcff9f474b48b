"""Tokens that are no word: what pads, begins and ends a caption."""

from typing import Final

PAD_ID: Final = 0
"""Fills a caption up to the length of the batch; not a target of the loss."""
BOS_ID: Final = 1
"""Stands before the first word."""
EOS_ID: Final = 2
"""Stands behind the last word, and is a target as well."""
SPECIAL_TOKENS: Final = ("<padding>", "<begin>", "<end>")
"""What stands for them in a vocabulary, in this order, before its words."""
