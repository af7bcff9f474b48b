"""The shape of a kernel: a product or a convolution, and its FLOPs."""

from dataclasses import dataclass
from typing import Final, Literal

KernelKind = Literal["product", "convolution"]
KERNEL_KINDS: Final[tuple[KernelKind, ...]] = ("product", "convolution")


@dataclass(frozen=True, kw_only=True)
class KernelShape:
    """What a kernel computes: y [uses, outputs] = x [uses, taps inputs] w."""

    kind: KernelKind
    """What it is compiled as."""
    taps: int = 1
    """Of a convolution's window."""
    uses: float
    """Times that each weight is used: rows of a product, positions of a convolution."""
    inputs: int
    """Features that are read at each tap."""
    outputs: float
    """Features that are written."""
    reads: float = 1.0
    """Positions that are read for each that is written: those of a stride are more."""

    @property
    def flops(self) -> float:
        """Of a forward pass; a backward pass has twice as many.

        >>> sizes = {"taps": 9, "uses": 100, "inputs": 16, "outputs": 32}
        >>> KernelShape(kind="convolution", **sizes).flops
        921600.0
        """
        # Two for each weight and use: a multiplication and an addition.
        return 2.0 * self.taps * self.uses * self.inputs * self.outputs

    @property
    def text(self) -> str:
        """The same for a person.

        >>> KernelShape(kind="product", uses=12, inputs=512, outputs=10).text
        'product 12 x 512 > 10'
        """
        taps = f" of {self.taps} taps" if self.kind == "convolution" else ""
        sizes = f"{self.uses:,.0f} x {self.inputs} > {self.outputs:g}"
        return f"{self.kind}{taps} {sizes}"
