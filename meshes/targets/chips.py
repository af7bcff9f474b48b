"""Chips that a step can be compiled for, and what their compilers need to know of them.

Peak rates, memory and links of a chip are those of its cluster, `meshes/clusters`.
"""

from dataclasses import dataclass, fields
from typing import Final

from jaxdist.core.cluster.sourced_number import SourcedNumber


@dataclass(frozen=True, kw_only=True)
class TpuChip:
    """A generation of TPUs, whose chips form a torus."""

    name: str
    """As in `--target NAME:SHAPE`."""
    cluster: str
    """The cluster whose device it is."""
    generation: str
    """As the compiler calls it in the name of a topology."""
    clock: SourcedNumber
    """Cycles a second, by which estimated cycles become seconds."""
    dims: int
    """Dimensions of the torus."""
    max_chips: int
    """Chips of the largest pod."""
    matrix_side: int = 128
    """Rows and columns of a matrix unit."""
    core_config: str = "default"
    """How the cores of a chip are joined to devices."""


@dataclass(frozen=True, kw_only=True)
class GpuChip:
    """A card, with the figures that XLA's compiler asks a card for."""

    name: str
    """As in `--target NAME:SHAPE`."""
    cluster: str
    """The cluster whose device it is."""
    description: str
    """As the driver calls it."""
    compute_capability: tuple[int, int]
    """Major and minor."""
    core_count: int
    """Streaming multiprocessors."""
    fpus_per_core: int
    """Float32 units of each."""
    clock_rate_ghz: float
    """Boost clock."""
    memory_bandwidth: int
    """Bytes a second."""
    device_memory_size: int
    """Bytes, as the driver reports them."""
    l2_cache_size: int
    """Bytes."""
    shared_memory_per_core: int
    """Bytes."""
    shared_memory_per_block_optin: int
    """Bytes."""

    @property
    def compiler_config(self) -> str:
        """The card as text of XLA's `GpuTargetConfigProto`."""
        major, minor = self.compute_capability
        # Fields have the names of the proto, so each number goes into it as it is.
        own = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if isinstance(getattr(self, field.name), int | float)
        }
        info = " ".join(f"{key}: {value}" for key, value in {**_LIMITS, **own}.items())
        return (
            f"gpu_device_info {{ {info} "
            f"cuda_compute_capability {{ major: {major} minor: {minor} }} }}\n"
            'platform_name: "CUDA"\n'
            "dnn_version_info { major: 9 minor: 10 }\n"
            "runtime_version { major: 12 minor: 9 }\n"
            f'device_description_str: "{self.description}"\n'
        )


Chip = TpuChip | GpuChip

_LIMITS: Final = {
    # The same on the cards below, not on all: NVIDIA, "CUDA C++ Programming Guide",
    # table of technical specifications by compute capability.
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "threads_per_core_limit": 2048,
    "block_dim_limit_x": 2147483647,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
}

# Peak = 2 x multiply-adds of all matrix units a cycle x clock.
_PEAK: Final = "published: peak FLOP/s of the generation over the multiply-adds of its"

CHIPS: Final[tuple[Chip, ...]] = (
    TpuChip(
        name="tpu-v4",
        cluster="tpu-v4",
        generation="v4",
        clock=SourcedNumber(1.05e9, "published: Jouppi et al. 2023, table 4"),
        dims=3,
        max_chips=4096,
        core_config="megacore",
    ),
    TpuChip(
        name="tpu-v5e",
        cluster="tpu-v5e",
        generation="v5e",
        clock=SourcedNumber(1.503e9, f"{_PEAK} 4 units of 128 x 128"),
        dims=2,
        max_chips=256,
    ),
    TpuChip(
        name="tpu-v5p",
        cluster="tpu-v5p",
        generation="v5p",
        clock=SourcedNumber(1.751e9, f"{_PEAK} 8 units of 128 x 128"),
        dims=3,
        max_chips=8960,
    ),
    TpuChip(
        name="tpu-v6e",
        cluster="tpu-v6e",
        generation="v6e",
        clock=SourcedNumber(1.751e9, f"{_PEAK} 4 units of 256 x 256"),
        matrix_side=256,
        dims=2,
        max_chips=256,
    ),
    # Figures of the cards as their drivers report them: OpenXLA, target configurations
    # of XLA's GPU compiler.
    GpuChip(
        name="a100",
        cluster="dgx-a100",
        description="NVIDIA A100-SXM4-80GB",
        compute_capability=(8, 0),
        core_count=108,
        fpus_per_core=64,
        clock_rate_ghz=1.41,
        memory_bandwidth=2_039_000_000_000,
        device_memory_size=84_986_691_584,
        l2_cache_size=41_943_040,
        shared_memory_per_core=167_936,
        shared_memory_per_block_optin=166_912,
    ),
    GpuChip(
        name="h100",
        cluster="dgx-h100",
        description="NVIDIA H100 80GB HBM3",
        compute_capability=(9, 0),
        core_count=132,
        fpus_per_core=128,
        clock_rate_ghz=1.98,
        memory_bandwidth=3_352_320_000_000,
        device_memory_size=84_929_347_584,
        l2_cache_size=52_428_800,
        shared_memory_per_core=233_472,
        shared_memory_per_block_optin=232_448,
    ),
    GpuChip(
        name="b200",
        cluster="dgx-b200",
        description="NVIDIA B200",
        compute_capability=(10, 0),
        core_count=148,
        fpus_per_core=128,
        clock_rate_ghz=1.965,
        memory_bandwidth=7_672_320_000_000,
        device_memory_size=191_514_411_008,
        l2_cache_size=132_644_864,
        shared_memory_per_core=233_472,
        shared_memory_per_block_optin=232_448,
    ),
)
"""Every chip that can be a target."""
