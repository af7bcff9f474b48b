"""Leaves: how each parameter lies on the mesh, dim by dim.

    tensor   the dim that the layer's role deals out
    fsdp     the largest other dim that divides, if any does

Statistics and the optimizer's state of a parameter lie as the parameter does; with
`plan.zero = 1` parameters themselves are not split over fsdp, only that state is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from jaxdist.core.plan import Plan
from jaxdist.layers.tensor_role import TENSOR_AXIS, Role, Roles

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
"""Dim of each of a layer's leaves that its role deals out."""


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
    """Dim that the fsdp axis shares out."""
    pipe_dim: int | None = None
    """Dim that has a row for each device of a pipeline."""
    compress_gradient: bool | None = None
    """Whether its gradient is compressed, where that is a plan's way; None: its shape
    says so.
    """

    def spec(self, *, include_fsdp: bool = True) -> tuple[str | None, ...]:
        """Name the axis of each dim; `include_fsdp` tells whether fsdp splits it here.

        >>> leaf = {"name": "k", "shape": (8, 4), "dtype": "f4"}
        >>> LeafSharding(**leaf, tensor_dim=1, fsdp_dim=0).spec()
        ('fsdp', 'tensor')
        """
        names: list[str | None] = [None] * len(self.shape)
        dims = {
            TENSOR_AXIS: self.tensor_dim,
            "fsdp": self.fsdp_dim,
            "pipe": self.pipe_dim,
        }
        for axis, dim in dims.items():
            if dim is not None and (include_fsdp or axis != "fsdp"):
                names[dim] = axis
        return tuple(names)

    def local_shape(self, plan: Plan, *, include_fsdp: bool = True) -> tuple[int, ...]:
        """Return the shape that one device holds."""
        return tuple(
            rows // plan.mesh.size(axis) if axis else rows
            for rows, axis in zip(
                self.shape, self.spec(include_fsdp=include_fsdp), strict=True
            )
        )


def leaf_shardings(
    plan: Plan, roles: Roles, arrays: Mapping[str, Any]
) -> tuple[LeafSharding, ...]:
    """Say how each leaf lies.

    Args:
        plan: the layout.
        roles: what layers do with the tensor axis.
        arrays: arrays or shapes by path, `block1/conv2/kernel`.
    """
    return tuple(_iter_leaf_shardings(plan, roles, arrays))


def _iter_leaf_shardings(
    plan: Plan, roles: Roles, named: Mapping[str, Any]
) -> Iterator[LeafSharding]:
    for name, x in named.items():
        *path, last = name.split("/")
        role = roles.get(".".join(path))
        dim = _SPLIT_DIMS[role].get(last) if role else None
        tensor = None if dim is None else dim % len(x.shape)
        yield LeafSharding(
            name=name,
            shape=tuple(x.shape),
            dtype=x.dtype,
            tensor_dim=tensor,
            fsdp_dim=_fsdp_dim(plan, tuple(x.shape), tensor),
        )


def _fsdp_dim(plan: Plan, shape: tuple[int, ...], taken: int | None) -> int | None:
    """Return the largest dim that fsdp divides, the first of equal ones."""
    shards = 1 if "fsdp" in plan.idle else plan.mesh.fsdp
    dims = [d for d, n in enumerate(shape) if d != taken and n % shards == 0 and n]
    return max(dims, key=lambda d: shape[d]) if shards > 1 and dims else None
