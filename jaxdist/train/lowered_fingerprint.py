"""Fingerprints of a lowered step, to compare it between processes before compilation.

JAX lowers a step to StableHLO. The text has neither source lines nor addresses, so
processes that were started alike have the same text to the letter; where two differ,
names of parameters and counts of operations show the difference sooner than the text.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxdist.partition.flops import LayerFlops
from jaxdist.train.checkpoint.manifest import leaf_metadata
from jaxdist.train.layout import Layout
from jaxdist.train.state import named_leaves

_OPERATION: Final = re.compile(
    # A constant is identified by its value, where that is short; all else by its name.
    r"stablehlo\.constant dense<[^\s<>]{1,30}> : tensor<\w+>"
    r"|(?:stablehlo|chlo|sdy)\.[a-z_0-9]+"
)


def step_outline(
    layout: Layout, lowered: Any, layer_flops: Sequence[LayerFlops] = ()
) -> Mapping[str, str]:
    """Return names that tell a lowered step from another, as a person looks for them.

    Args:
        layout: the task and how it is laid out.
        lowered: its step, from `jax.jit(...).lower(...)`.
        layer_flops: FLOPs a device by layer, in the step as it was traced.
    """
    leaves = named_leaves(layout.task.state.params)
    return {
        "parameters": f"{sum(x.size for x in leaves.values()):,}",
        "FLOPs a device": f"{sum(each.traced for each in layer_flops):,}",
        **{f"parameter {name}": leaf_metadata(x).text() for name, x in leaves.items()},
        **dict.fromkeys(sorted(set(_OPERATION.findall(lowered.as_text()))), "is there"),
    }


def operation_counts(lowered: Any) -> Mapping[str, str]:
    """Return how often a lowered step does what, rare things first, and its digest."""
    text = lowered.as_text()
    found = Counter(_OPERATION.findall(text))
    times = sorted(found.items(), key=lambda item: (item[1], item[0]))
    whole = f"{len(text):,} letters (hash {short_hash(text)})"
    return {**{name: f"{n} times" for name, n in times}, "lowered step": whole}


def short_hash(text: str) -> str:
    """Return a short name of a text.

    >>> short_hash("module"), short_hash("modules")
    ('120970d8', 'fbc6c1d4')
    """
    return hashlib.sha256(text.encode()).hexdigest()[:8]
