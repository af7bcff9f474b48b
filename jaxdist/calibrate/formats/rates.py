"""Free constants of a Transformer's step, and their values as rates of a cluster."""

from typing import Final

from jaxdist.calibrate.measured_rows import ConstantValues, FreeConstant
from jaxdist.oracle.published.megatron.kernels import MegatronRates

_LARGE_KERNELS: Final = "assumed: what large kernels reach"

MEGATRON_CONSTANTS: Final = (
    FreeConstant(
        name="matmul",
        unit="1",
        low=0.4,
        high=1.0,
        initial=0.8,
        provenance=_LARGE_KERNELS,
        description="share of peak FLOP/s in large matmuls",
    ),
    FreeConstant(
        name="memory",
        unit="1",
        low=0.3,
        high=1.0,
        initial=0.7,
        provenance=_LARGE_KERNELS,
        description="share of the memory's bandwidth",
    ),
    FreeConstant(
        name="issue",
        unit="s",
        low=5e-6,
        high=3e-4,
        initial=5e-5,
        provenance="assumed: several kernels an operation, from Python",
        description="host's time for an operation",
    ),
    FreeConstant(
        name="network",
        unit="1",
        low=0.2,
        high=1.0,
        initial=0.8,
        provenance="assumed: of links between hosts",
        description="share of the bandwidth between hosts",
    ),
    FreeConstant(
        name="inside",
        unit="1",
        low=0.3,
        high=1.0,
        initial=0.77,
        provenance="measured: NCCL all-reduce of 256 MiB to 1 GiB on 8 A100, 231 GB/s",
        description="share of the bandwidth inside a host",
    ),
    FreeConstant(
        name="call",
        unit="s",
        low=0.0,
        high=2e-4,
        initial=3e-5,
        provenance="measured: NCCL all-reduce of 1 MiB on 2 to 8 A100, less its "
        "messages",
        description="time of a collective before its first byte",
    ),
)
"""The first three are fitted unless others are named."""


def shared_constants(*names: str) -> tuple[FreeConstant, ...]:
    """Return constants that other formats of Transformers have as well, by name."""
    known = {one.name: one for one in MEGATRON_CONSTANTS}
    return tuple(known[name] for name in names)


def megatron_rates(values: ConstantValues) -> MegatronRates:
    """Return the values of `MEGATRON_CONSTANTS` as rates."""
    return MegatronRates(
        **{constant.name: values[constant.name] for constant in MEGATRON_CONSTANTS}
    )
