"""FLOPs of primitives, as XLA counts them, summed over a jaxpr by layer.

A multiplication and an addition are two. Transcendental functions (exp, tanh, rsqrt)
count nothing: XLA counts them apart. What only moves data counts nothing either.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from jaxdist.core.array_tags import (
    EXPERT_PRODUCT,
    FUSED_ATTENTION,
    FUSED_ATTENTION_GRADIENT,
    INNER_ACTIVATION,
    LAYER_OUTPUT,
    RAGGED_PRODUCT,
)
from jaxdist.profile.repeated_blocks import RepeatedBlocks, replace_prefix

FlopRule = Callable[[JaxprEqn], int]


def count_flops(eqn: JaxprEqn) -> int:
    """Count one use of a primitive.

    Args:
        eqn: an equation of a jaxpr, its shapes known.
    """
    rule = _RULES.get(eqn.primitive.name)
    return rule(eqn) if rule else 0


def has_rule(eqn: JaxprEqn) -> bool:
    """Whether the equation is counted as a whole, not by the jaxprs inside it."""
    return eqn.primitive.name in _RULES


def valid_taps(
    rows: int,
    taps: int,
    out: int,
    *,
    stride: int = 1,
    low: int = 0,
    lhs_dilation: int = 1,
    rhs_dilation: int = 1,
) -> int:
    """Count the pairs of output row and kernel tap that meet an input row.

    Taps on padding, or on the zeros between dilated rows, do no work.

    Args:
        rows: rows of the input.
        taps: rows of the kernel.
        out: rows of the output.
        stride: rows from one window to the next.
        low: rows of padding before the first.
        lhs_dilation: distance of two input rows.
        rhs_dilation: distance of two taps.

    >>> valid_taps(4, 3, 4, low=1)  # 3x3 SAME: the two edge windows lose one tap
    10
    """
    # Index of the input row that each pair would read, counted on the dilated grid.
    starts = np.arange(out)[:, None] * stride - low
    at = starts + np.arange(taps)[None, :] * rhs_dilation
    row, between = np.divmod(at, lhs_dilation)
    return int(((between == 0) & (row >= 0) & (row < rows)).sum())


def _dot(eqn: JaxprEqn) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = _shape(eqn.invars[0])
    return 2 * _output_elements(eqn) * math.prod(shape[d] for d in contracted)


def _ragged_dot(eqn: JaxprEqn) -> int:
    """Count each row once, in the product with the matrix of its own group."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batch) = numbers.dot_dimension_numbers
    inner = {*contracted, *batch, *numbers.rhs_group_dimensions}
    shape = _shape(eqn.invars[1])
    free = math.prod(n for dim, n in enumerate(shape) if dim not in inner)
    return 2 * _input_elements(eqn) * free


def _conv(eqn: JaxprEqn) -> int:
    p, (lhs, rhs) = eqn.params, [_shape(v) for v in eqn.invars]
    out, numbers = _shape(eqn.outvars[0]), p["dimension_numbers"]
    # Taps on padding do no work: per dim, the pairs of output and tap that meet a row.
    products = math.prod(
        valid_taps(
            lhs[numbers.lhs_spec[d + 2]],
            rhs[numbers.rhs_spec[d + 2]],
            out[numbers.out_spec[d + 2]],
            stride=p["window_strides"][d],
            low=p["padding"][d][0],
            lhs_dilation=p["lhs_dilation"][d],
            rhs_dilation=p["rhs_dilation"][d],
        )
        for d in range(len(p["window_strides"]))
    )
    # Batch groups, as in a gradient, divide the samples among the filters.
    samples = lhs[numbers.lhs_spec[0]] // p["batch_group_count"]
    features_out, features_in, *_ = (rhs[d] for d in numbers.rhs_spec)
    return 2 * samples * features_out * features_in * products


def _elementwise(eqn: JaxprEqn, cost: int = 1) -> int:
    return cost * _output_elements(eqn)


def _cast(eqn: JaxprEqn) -> int:
    before: Any = eqn.invars[0].aval
    after: Any = eqn.outvars[0].aval
    return 0 if before.dtype == after.dtype else _output_elements(eqn)


def _power(eqn: JaxprEqn) -> int:
    """Count repeated squaring, and a division where the exponent is negative."""
    n = abs(eqn.params["y"])
    squarings, factors = max(n.bit_length() - 1, 0), max(n.bit_count() - 1, 0)
    return (squarings + factors + (eqn.params["y"] < 0)) * _output_elements(eqn)


def _reduce(eqn: JaxprEqn, cost: int = 1) -> int:
    # n numbers are combined in n - 1 operations, for each result.
    return cost * (_input_elements(eqn) - _output_elements(eqn))


def _window(eqn: JaxprEqn) -> int:
    # Padding counts like numbers here: XLA takes windows as they are.
    return _output_elements(eqn) * (math.prod(eqn.params["window_dimensions"]) - 1)


def _select_and_scatter(eqn: JaxprEqn) -> int:
    """Count the search for each window's maximum, and adding its gradient there."""
    return _input_elements(eqn) * math.prod(eqn.params["window_dimensions"])


def _cumulative(eqn: JaxprEqn) -> int:
    """Count a running sum as XLA writes it: a window over the whole dim."""
    return _output_elements(eqn) * (_shape(eqn.outvars[0])[eqn.params["axis"]] - 1)


def _sort(eqn: JaxprEqn) -> int:
    return _output_elements(eqn) * math.ceil(math.log2(max(_output_elements(eqn), 1)))


def _scatter(eqn: JaxprEqn) -> int:
    # One operation for each number of the updates: operands are array, places, updates.
    return math.prod(_shape(eqn.invars[2]))


def _attention(eqn: JaxprEqn) -> int:
    """Count what attention does that is written out, with tokens that are not seen."""
    samples, count, heads, features = _shape(eqn.invars[0])
    # As if it were written out, so that profiles do not depend on the kernel.
    rows = samples * heads * count
    # Of each score: scale, mask, and of the softmax largest, difference, sum, quotient;
    # and a copy in the dtype of the values. The mask itself is 3 of each two tokens.
    causal = eqn.params["causal"]
    each = 5 + causal + _is_narrow(eqn)
    mask = 3 * count * count * causal
    return (4 * features + each) * rows * count - rows + mask


def _attention_gradient(eqn: JaxprEqn) -> int:
    """Count what the same adds to have its gradient: its scores are kept."""
    samples, count, heads, features = _shape(eqn.invars[0])
    rows, narrow = samples * heads * count, _is_narrow(eqn)
    inputs = sum(math.prod(_shape(var)) for var in eqn.invars[:2])
    return (8 * features + 8 + narrow) * rows * count + 2 * rows + narrow * inputs


def fused_kernel_flops(eqn: JaxprEqn) -> int:
    """Return the FLOPs of the products in a fused kernel of attention; 0 for others.

    Scores that are not seen are left out, which `count_flops` counts: about half. The
    kernels backward, one for the queries and one for keys and values, make the scores
    and their gradient twice: seven products, beside two forward.
    """
    products = {FUSED_ATTENTION: 2, FUSED_ATTENTION_GRADIENT: 7}
    if eqn.primitive.name not in products:
        return 0
    samples, count, heads, features = _shape(eqn.invars[0])
    causal = eqn.params["causal"]
    seen = samples * heads * (count * (count + 1) // 2 if causal else count * count)
    return products[eqn.primitive.name] * 2 * features * seen


def _is_narrow(eqn: JaxprEqn) -> bool:
    array: Any = eqn.invars[0].aval
    return bool(array.dtype.itemsize < 4)


def _shape(var: Any) -> tuple[int, ...]:
    return tuple(var.aval.shape)


def _input_elements(eqn: JaxprEqn) -> int:
    return math.prod(_shape(eqn.invars[0]))


def _output_elements(eqn: JaxprEqn) -> int:
    return math.prod(_shape(eqn.outvars[0]))


_ELEMENTWISE: Final = """
abs add add_any and ceil clamp clz div eq exp2 floor ge gt is_finite le lt max min mul
ne neg not or population_count reduce_precision rem round select_n shift_left
shift_right_arithmetic shift_right_logical sign square sub xor
"""
"""Primitives of one operation an element."""

_CUMULATIVE: Final = ("sum", "prod", "max", "min")
_REDUCTIONS: Final = ("sum", "max", "min", "prod", "and", "or", "xor")

_ELEMENTWISE_COSTS: Final = {
    "asin": 5,
    "cosh": 3,
    "erf_inv": 37,
    "erfc": 62,
    "lgamma": 53,
    "logistic": 3,
    "nextafter": 24,
    "sinh": 10,
    # Bits of a key: counted as XLA does, the loop of Threefry's rounds once.
    "random_bits": 29,
    "random_fold_in": 27,
    "threefry2x32": 58,
}
"""Primitives that XLA spells out in several instructions; measured, jax 0.10."""

_RULES: Final[dict[str, FlopRule]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **{name: partial(_elementwise, cost=n) for name, n in _ELEMENTWISE_COSTS.items()},
    **{f"reduce_{name}": _reduce for name in _REDUCTIONS},
    **dict.fromkeys(("argmax", "argmin"), partial(_reduce, cost=9)),
    **{f"reduce_window{name}": _window for name in ("", "_sum", "_max", "_min")},
    **{f"cum{name}": _cumulative for name in (*_CUMULATIVE, "logsumexp")},
    **{f"scatter-{name}": _scatter for name in ("add", "mul", "min", "max")},
    "conv_general_dilated": _conv,
    "convert_element_type": _cast,
    "dot_general": _dot,
    FUSED_ATTENTION: _attention,
    FUSED_ATTENTION_GRADIENT: _attention_gradient,
    "integer_pow": _power,
    RAGGED_PRODUCT: _ragged_dot,
    "select_and_scatter_add": _select_and_scatter,
    "sort": _sort,
}


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
        # Of experts the results of products, all of which are read again.
        if self.eqn.primitive.name in (FUSED_ATTENTION, RAGGED_PRODUCT):
            return sum(self._array_bytes(var) for var in self.eqn.outvars)
        return sum(map(self._named_bytes, (INNER_ACTIVATION, EXPERT_PRODUCT)))

    @property
    def input_bytes(self) -> int:
        """Bytes that a convolution reads beside its weights, over all trips."""
        if self.eqn.primitive.name != "conv_general_dilated":
            return 0
        return self._array_bytes(self.eqn.invars[0])

    def _named_bytes(self, name: str) -> int:
        if self.eqn.primitive.name != "name" or self.eqn.params["name"] != name:
            return 0
        return self._array_bytes(self.eqn.outvars[0])

    def _array_bytes(self, var: Any) -> int:
        return self.trip_count * int(var.aval.size) * int(var.aval.dtype.itemsize)


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
    input_bytes: Counter[str]
    """Bytes of activations that its convolutions read."""
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
    # By block and owner: FLOPs, bytes of outputs, inside, and of inputs.
    found: dict[tuple[str, str], list[int]] = {}
    for use in walk_jaxpr(jaxpr):
        # Scopes are outermost first: a block is the first, the innermost layer the
        # last.
        block = next((s for s in use.scopes if s in blocks), "")
        owner = next((s for s in reversed(use.scopes) if s in layers), block)
        total = found.setdefault((block, owner), [0, 0, 0, 0])
        total[0] += use.flops
        total[1] += use.output_bytes
        total[2] += use.inner_bytes
        total[3] += use.input_bytes
    sums = LayerTotals(
        flops=Counter(),
        output_bytes=Counter(),
        inner_bytes=Counter(),
        input_bytes=Counter(),
        blocks={},
    )
    # A block that was not traced gets the sums of its representative, paths renamed.
    repeated = repeated_blocks or RepeatedBlocks()
    each = [(block, (owner, total)) for (block, owner), total in found.items()]
    for block, traced, (owner, total) in repeated.expand_results(each):
        path = replace_prefix(owner, traced, block)
        sums.flops[path] += total[0]
        sums.output_bytes[path] += total[1]
        sums.inner_bytes[path] += total[2]
        sums.input_bytes[path] += total[3]
        sums.blocks.setdefault(path, block)
    return sums


def _split_scopes(stack: str) -> list[str]:
    """Split a name stack into its scopes; those of transformations are among them.

    >>> _split_scopes("transpose(jvp(block1))/block1.conv1")
    ['transpose', 'jvp', 'block1', 'block1.conv1']
    """
    return [word for word in re.split(r"[/()]", stack) if word]
