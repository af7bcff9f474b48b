"""Options with which the compilers of accelerators run collectives beside computing.

Sources: XLA's flags for TPUs as MaxText and AXLearn set them, and NVIDIA's for JAX on
GPUs (JAX documentation, "XLA GPU performance tips"). Each was tried alone on the steps
of this package: without them every collective of a TPU's program waits in line.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from jaxdist.train.layout import Layout

_OFFLOADED_SUMS: Final = "xla_tpu_enable_sparse_core_collective_offload_all_reduce"

_TPU: Final[Mapping[str, str | bool]] = MappingProxyType(
    dict.fromkeys(
        (
            "xla_tpu_enable_async_collective_fusion",
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
            "xla_tpu_enable_async_collective_fusion_multiple_steps",
            "xla_tpu_overlap_compute_collective_tc",
            "xla_enable_async_all_gather",
            "xla_enable_async_collective_permute",
            "xla_enable_async_all_reduce",
            "xla_tpu_enable_async_collective_fusion_fuse_all_reduce",
            # Sums on a chip's sparse cores, where it has any, beside the work of the
            # others.
            _OFFLOADED_SUMS,
            "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter",
            "xla_tpu_enable_sparse_core_reduce_scatter_v2",
            "xla_tpu_use_tc_device_shape_on_sc",
            "xla_sc_disable_megacore_partitioning",
        ),
        "true",
    )
)
_GPU: Final[Mapping[str, str | bool]] = MappingProxyType(
    {
        "xla_gpu_enable_latency_hiding_scheduler": True,
        # What is captured into CUDA graphs; XLA's own list has CUDNN as well. An H100
        # with jax 0.11.2 ended an evaluation with fused attention there: cuDNN loads
        # a program while it is captured ("capturing stream has unjoined work").
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL",
    }
)
_NONE: Final[Mapping[str, str | bool]] = MappingProxyType({})


def program_options(layout: Layout) -> Mapping[str, str | bool]:
    """Return the options for a step on the platform that it is laid out for."""
    options = compiler_options(layout.platform)
    # libtpu 0.0.42 ends in an error where a sparse core sums what becomes bfloat16
    # later, as activations are that the tensor axis splits: it rounds earlier, adds in
    # float32, and stores that into words of bfloat16.
    if layout.plan.mesh.tensor > 1 and np.dtype(layout.task.dtype).name == "bfloat16":
        options = {k: v for k, v in options.items() if k != _OFFLOADED_SUMS}
    return options


def compiler_options(platform: str) -> Mapping[str, str | bool]:
    """Return the options for a platform, as `jax.stages.Lowered.compile` takes them.

    >>> dict(compiler_options("cpu"))
    {}
    """
    return {"tpu": _TPU, "gpu": _GPU}.get(platform, _NONE)
