"""FLOPs of one primitive, as XLA's own cost analysis counts them.

A multiplication and an addition are two. Transcendental functions (exp, tanh, rsqrt)
count nothing: XLA counts them apart. What only moves data counts nothing either.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from jax.extend.core import JaxprEqn

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
    return cost * (_input_elements(eqn) - _output_elements(eqn))


def _window(eqn: JaxprEqn) -> int:
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
    return math.prod(_shape(eqn.invars[2]))


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
    "integer_pow": _power,
    "select_and_scatter_add": _select_and_scatter,
    "sort": _sort,
}
