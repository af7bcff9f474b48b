"""A column: numbers of a table in one unit, chosen for the largest of them."""


class NumberColumn:
    """Numbers in one unit, with one number of decimals.

    Args:
        largest: the largest number of the column.
        unit: `B` or `FLOP`, to be prefixed.
    """

    def __init__(self, largest: int, unit: str) -> None:
        # The largest unit in which the largest number has three digits: with a smaller
        # one columns are too wide, with a larger one most numbers are below the last
        # digit.
        prefixes = (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
        fitting = [one for one in prefixes if largest >= 100 * one[1]] or prefixes[:1]
        self.unit, self.divisor = f"{fitting[-1][0]}{unit}", fitting[-1][1]

    def format(self, value: int) -> str:
        """Write a value: `619.5`, `< 0.1` below the last digit, `0` for none.

        >>> [NumberColumn(619_520, "FLOP").format(n) for n in (619_520, 27, 0)]
        ['619.5', '< 0.1', '0']
        """
        if self.divisor == 1 or not value:
            return f"{value:,}"
        shown = value / self.divisor
        # Little must not read as none.
        return f"{shown:,.1f}" if shown >= 0.05 else "< 0.1"
