"""Parameter sharding: how each leaf of the state is split over the mesh, dim by dim.

    tensor   the dim that the layer's role splits
    fsdp     the largest other dim that divides, if any does

Statistics and the optimizer's state of a parameter are split as the parameter is; with
`plan.zero = 1` parameters themselves are not split over fsdp, only that state is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from jaxdist.core.plan import Plan
from jaxdist.layers.tensor_role import TENSOR_AXIS, Role, Roles

# Kernels are [..., channels, filters] (HWIO): -1 splits filters, -2 channels.
_OUTPUT_DIMS: Final = {"kernel": -1, "recurrent": -1, "bias": -1}
_SPLIT_DIMS: Final[Mapping[Role, Mapping[str, int]]] = MappingProxyType(
    {
        "filter": _OUTPUT_DIMS,
        "column": _OUTPUT_DIMS,
        "channel": {"kernel": -2},
        "row": {"kernel": -2},
        "inner": {"scale": 0, "bias": 0, "mean": 0, "var": 0},
        "vocabulary": {"embedding": 0},
        "logits": _OUTPUT_DIMS,
        "scatter": {"kernel": -2},
        "lookup": {"embedding": 0},
        "own": {},
        "gather": {},
    }
)
"""The dim of each of a layer's leaves that its role splits; others stay whole."""


@dataclass(frozen=True, kw_only=True)
class LeafSharding:
    """One parameter or statistic and how it is split."""

    name: str
    """Path in the tree, with slashes."""
    shape: tuple[int, ...]
    """Of the whole leaf."""
    dtype: Any
    """Of its numbers."""
    tensor_dim: int | None
    """Dim that is split over the tensor axis."""
    fsdp_dim: int | None
    """Dim that is split over the fsdp axis."""
    pipe_dim: int | None = None
    """Dim that has a row for each device of a pipeline."""
    compress_gradient: bool | None = None
    """Whether its gradient is compressed, where that is a plan's way; None: its shape
    says so.
    """

    def spec(self, *, include_fsdp: bool = True) -> tuple[str | None, ...]:
        """Return the mesh axis of each dim, as a `PartitionSpec` has them.

        Args:
            include_fsdp: whether fsdp splits it here; not where it was just gathered.

        >>> leaf = {"name": "k", "shape": (8, 4), "dtype": "f4"}
        >>> LeafSharding(**leaf, tensor_dim=1, fsdp_dim=0).spec()
        ('fsdp', 'tensor')
        """
        names: list[str | None] = [None] * len(self.shape)
        if self.tensor_dim is not None:
            names[self.tensor_dim] = TENSOR_AXIS
        # Order does not matter: the three dims are different.
        if self.fsdp_dim is not None and include_fsdp:
            names[self.fsdp_dim] = "fsdp"
        if self.pipe_dim is not None:
            names[self.pipe_dim] = "pipe"
        return tuple(names)

    def local_shape(self, plan: Plan, *, include_fsdp: bool = True) -> tuple[int, ...]:
        """Return the shape that one device holds."""
        axes = self.spec(include_fsdp=include_fsdp)
        return tuple(
            rows // plan.mesh.size(axis) if axis else rows
            for rows, axis in zip(self.shape, axes, strict=True)
        )


def split_axes(leaf: LeafSharding) -> tuple[str, ...]:
    """Return the axes over which the squares of a leaf are summed for its norm.

    Those that split it, in the order of its dims; not pipe, along which are different
    leaves.
    """
    return tuple(axis for axis in leaf.spec() if axis not in (None, "pipe"))


def leaf_shardings(
    plan: Plan, roles: Roles, arrays: Mapping[str, Any]
) -> tuple[LeafSharding, ...]:
    """Decide how each leaf is split.

    Args:
        plan: the layout.
        roles: what layers do with the tensor axis.
        arrays: arrays or shapes by path, `block1/conv2/kernel`.
    """
    shards = 1 if "fsdp" in plan.replicated_axes else plan.mesh.fsdp
    found = []
    for name, x in arrays.items():
        # The role belongs to the layer, the dim to its leaf: kernel, bias, scale.
        *path, last = name.split("/")
        role = roles.get(".".join(path))
        dim = _SPLIT_DIMS[role].get(last) if role else None
        tensor = None if dim is None else dim % len(x.shape)
        # No dim is split twice: fsdp takes the largest that tensor leaves whole.
        dims = [d for d, n in enumerate(x.shape) if d != tensor and n % shards == 0 < n]
        largest = max(dims, key=lambda d: x.shape[d], default=None)
        found.append(
            LeafSharding(
                name=name,
                shape=tuple(x.shape),
                dtype=x.dtype,
                tensor_dim=tensor,
                fsdp_dim=largest if shards > 1 else None,
            )
        )
    return tuple(found)
