"""Walk of a jaxpr: every operation of a traced program, with its scopes and trips."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from jaxdist.core.array_tags import INNER_ACTIVATION, LAYER_OUTPUT
from jaxdist.profile.flops import count_flops, has_rule
from jaxdist.profile.repeated_blocks import RepeatedBlocks, replace_prefix


@dataclass(frozen=True, kw_only=True)
class ScopedOp:
    """One operation of a program."""

    eqn: JaxprEqn
    """The primitive, its shapes and its settings."""
    scopes: tuple[str, ...]
    """Names of the scopes it was traced in, outermost first."""
    trip_count: int
    """How often it runs: the product of the lengths of the scans around it."""

    @property
    def flops(self) -> int:
        """FLOPs of all its trips."""
        return self.trip_count * count_flops(self.eqn)

    @property
    def output_bytes(self) -> int:
        """Bytes of the activation that a layer made here, over all trips; mostly 0."""
        return self._named_bytes(LAYER_OUTPUT)

    @property
    def inner_bytes(self) -> int:
        """Bytes of an array inside of a layer that its backward pass reads."""
        return self._named_bytes(INNER_ACTIVATION)

    def _named_bytes(self, name: str) -> int:
        if self.eqn.primitive.name != "name" or self.eqn.params["name"] != name:
            return 0
        array: Any = self.eqn.outvars[0].aval
        return self.trip_count * int(array.size) * array.dtype.itemsize


def scan_length(eqn: JaxprEqn) -> int:
    """Return how often the programs inside an operation run: a scan's its length."""
    return eqn.params["length"] if eqn.primitive.name == "scan" else 1


def walk_jaxpr(
    jaxpr: Jaxpr,
    scopes: tuple[str, ...] = (),
    trip_count: int = 1,
    body_trip_count: Callable[[JaxprEqn], int] = scan_length,
) -> Iterator[ScopedOp]:
    """Yield the operations of a program, in order, those of inner programs included.

    A scan's body runs `length` times. A while loop's length is not in the program: its
    body counts once, as with XLA. Of a conditional the branch with the most FLOPs
    counts.

    Args:
        jaxpr: a traced program.
        scopes: scopes around it.
        trip_count: how often it runs.
        body_trip_count: how often the programs inside an operation run.
    """
    for eqn in jaxpr.eqns:
        # The name stack of an inner program is relative to the equation around it.
        here = (*scopes, *_split_scopes(str(eqn.source_info.name_stack)))
        # A primitive that is counted as a whole (a reduction) has its combiner as an
        # inner program: that would count twice.
        inner = [] if has_rule(eqn) else list(jaxprs_in_params(eqn.params))
        if not inner:
            yield ScopedOp(eqn=eqn, scopes=here, trip_count=trip_count)
            continue
        if eqn.primitive.name == "cond":
            # One branch runs: the most expensive, an upper bound.
            inner = [max(inner, key=program_flops)]
        for one in inner:
            yield from walk_jaxpr(
                one, here, trip_count * body_trip_count(eqn), body_trip_count
            )


def program_flops(jaxpr: Jaxpr) -> int:
    """Sum the FLOPs of a program."""
    return sum(use.flops for use in walk_jaxpr(jaxpr))


@dataclass(frozen=True, kw_only=True)
class LayerTotals:
    """FLOPs and activations of a program, by layer."""

    flops: Counter[str]
    """FLOPs by the path of the layer that does them, or the block; "" without."""
    output_bytes: Counter[str]
    """Bytes of the activations it makes."""
    inner_bytes: Counter[str]
    """Bytes inside of it that its backward pass reads."""
    blocks: dict[str, str]
    """The block that a layer was first used in, by its path."""


def sum_by_layer(
    jaxpr: Jaxpr,
    layers: Container[str],
    blocks: Container[str],
    repeated_blocks: RepeatedBlocks | None = None,
) -> LayerTotals:
    """Attribute each operation to the innermost layer whose scope it is in.

    Args:
        jaxpr: a traced program.
        layers: paths of the network's modules.
        blocks: names of its chain's blocks; one takes what no layer does.
        repeated_blocks: blocks that are not in the program since others are as they
            are.
    """
    # By block and owner: FLOPs, bytes of outputs, bytes inside.
    found: dict[tuple[str, str], list[int]] = {}
    for use in walk_jaxpr(jaxpr):
        # Scopes are outermost first: a block is the first, the innermost layer the
        # last.
        block = next((s for s in use.scopes if s in blocks), "")
        owner = next((s for s in reversed(use.scopes) if s in layers), block)
        total = found.setdefault((block, owner), [0, 0, 0])
        total[0] += use.flops
        total[1] += use.output_bytes
        total[2] += use.inner_bytes
    sums = LayerTotals(
        flops=Counter(), output_bytes=Counter(), inner_bytes=Counter(), blocks={}
    )
    # A block that was not traced gets the sums of its representative, paths renamed.
    repeated = repeated_blocks or RepeatedBlocks()
    each = [(block, (owner, total)) for (block, owner), total in found.items()]
    for block, traced, (owner, total) in repeated.expand_results(each):
        path = replace_prefix(owner, traced, block)
        sums.flops[path] += total[0]
        sums.output_bytes[path] += total[1]
        sums.inner_bytes[path] += total[2]
        sums.blocks.setdefault(path, block)
    return sums


def _split_scopes(stack: str) -> list[str]:
    """Split a name stack into its scopes; those of transformations are among them.

    >>> _split_scopes("transpose(jvp(block1))/block1.conv1")
    ['transpose', 'jvp', 'block1', 'block1.conv1']
    """
    return [word for word in re.split(r"[/()]", stack) if word]
