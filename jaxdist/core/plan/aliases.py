"""Keys of a plan that had another name before: plan files with these still open."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from jaxdist.core.errors import BadInput

PLAN_KEY_ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "idle": "replicated_axes",
        "weights": "tensor_strategy",
        "spatial_until": "spatial_end",
        "spatial_then": "spatial_end_mode",
        "remat_until": "remat_end",
        "pipe.stashing": "pipe.weight_stashing",
        "pipe.group": "pipe.microbatches_per_update",
        "reduce.via": "reduce.algorithm",
        "reduce.among": "reduce.candidates",
        "reduce.block": "reduce.block_size",
        "reduce.dense_below": "reduce.min_compressed_elements",
        "reduce.feedback": "reduce.error_feedback",
        "reduce.warm_up": "reduce.warmup_steps",
        "reduce.scatter": "reduce.reduce_scatter",
        "reduce.gather": "reduce.all_gather",
        "shuffle.q": "shuffle.exchange_fraction",
        "outer.every": "outer.sync_interval",
        "outer.via": "outer.compressor",
    }
)
"""New key by old key; both are of the same part of the plan."""


def rename_plan_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a plan under the names that keys have now.

    Args:
        tree: fields of a plan, and of its parts, as JSON has them.

    Raises:
        BadInput: a key under its old and its new name.
    """
    renamed = dict(tree)
    for old, new in PLAN_KEY_ALIASES.items():
        group, _, old_name = old.rpartition(".")
        new_name = new.rpartition(".")[2]
        part = renamed.get(group) if group else renamed
        # What is no table is refused later, with the name of the part.
        if not isinstance(part, Mapping) or old_name not in part:
            continue
        if new_name in part:
            raise BadInput(
                f"a plan has {old} and {new}",
                rule=f"{old} is the old name of {new}: one of them is enough",
                values=f"{old} = {part[old_name]}, {new} = {part[new_name]}",
                remedy=f"without {old}",
            )
        part = {new_name if k == old_name else k: x for k, x in part.items()}
        renamed = {**renamed, group: part} if group else part
    return renamed
