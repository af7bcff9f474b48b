"""Mistakes: several bad inputs found in one command, told together."""

from collections.abc import Sequence

from jaxdist.core.errors import BadInput


class Mistakes(BadInput):
    """More than one thing that cannot be used; each keeps its own remedy."""

    def __init__(self, each: Sequence[BadInput]) -> None:
        self.each = tuple(each)
        super().__init__(f"{len(self.each)} mistakes")

    def text(self) -> str:
        """Lay out the mistakes one after the other, a blank line between."""
        return "\n\n".join(error.text() for error in self.each)


def raise_all(errors: Sequence[BadInput]) -> None:
    """Raise what was found: nothing, the one mistake, or all of them together.

    Raises:
        BadInput: there is at least one.
    """
    flat = [one for error in errors for one in getattr(error, "each", (error,))]
    if len(flat) > 1:
        raise Mistakes(flat)
    if flat:
        raise flat[0]
