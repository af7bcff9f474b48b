"""Flat programs: a jaxpr with its calls inlined and common subexpressions eliminated.

Optimization barriers are dropped, as XLA's CPU backend drops them before its own
elimination of common subexpressions: what `remat` computes again is not computed again
there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

ArrayId = tuple[int, int]
"""An array: the number of the operation that makes it, and which of its results."""

CONTROL_FLOW: Final = ("scan", "while", "cond")
_IDENTITY_OPS: Final = frozenset(
    ["name", "stop_gradient", "pvary", "sharding_constraint", "optimization_barrier"]
)
_CALL_PARAMS: Final = ("jaxpr", "call_jaxpr", "fun_jaxpr")
# Their inner programs say how to combine two numbers: they are not calls to inline.
_REDUCERS: Final = """
reduce reduce_window scatter scatter-add sort custom_root custom_linear_solve
"""


@dataclass(frozen=True)
class ArrayType:
    """Shape, dtype and size of an array."""

    shape: tuple[int, ...]
    """Its dims."""
    dtype: str
    """Of its elements."""
    nbytes: int
    """Its size."""


@dataclass(kw_only=True)
class FlatOp:
    """An operation of a flat program."""

    name: str
    """Of the primitive; `arg`, `const` and `lit` are what is there before."""
    ins: list[ArrayId]
    """Arrays that it reads."""
    outs: tuple[ArrayType, ...]
    """Types of its results."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the primitive."""
    bodies: tuple["FlatProgram", ...] = ()
    """The programs of a loop or of a conditional."""


@dataclass(kw_only=True)
class FlatProgram:
    """Operations in an order in which they can run."""

    ops: list[FlatOp]
    """Those that results do not need are among them."""
    args: tuple[ArrayId, ...]
    """What it is called on."""
    outs: tuple[ArrayId, ...]
    """What it returns."""

    def array_type(self, value: ArrayId) -> ArrayType:
        """Return the type of an array."""
        return self.ops[value[0]].outs[value[1]]

    def append_op(self, name: str, ins: Sequence[ArrayId], *outs: ArrayType) -> int:
        """Append an operation and return its number."""
        self.ops.append(FlatOp(name=name, ins=list(ins), outs=outs))
        return len(self.ops) - 1


def flatten_jaxpr(jaxpr: Jaxpr) -> FlatProgram:
    """Flatten a traced program, all of its arguments included."""
    flat = _Flattener()
    env = {v: flat.append_op("const", [], [v.aval])[0] for v in jaxpr.constvars}
    args = tuple(flat.append_op("arg", [], [v.aval])[0] for v in jaxpr.invars)
    outs = flat.inline(jaxpr, env | dict(zip(jaxpr.invars, args, strict=True)))
    return FlatProgram(ops=flat.ops, args=args, outs=tuple(outs))


class _Flattener:
    """One flattening: the operations so far, and a key of each to find equal ones."""

    def __init__(self) -> None:
        self.ops: list[FlatOp] = []
        self.known: dict[Any, int] = {}

    def inline(self, jaxpr: Jaxpr, env: dict[Any, ArrayId]) -> list[ArrayId]:
        """Add the operations of a program and return its results."""
        for eqn in jaxpr.eqns:
            ins = [self._read(v, env) for v in eqn.invars]
            env.update(zip(eqn.outvars, self._emit(eqn, ins), strict=True))
        return [self._read(v, env) for v in jaxpr.outvars]

    def _read(self, var: Any, env: Mapping[Any, ArrayId]) -> ArrayId:
        if isinstance(var, Literal):
            return self._emit_unique("lit", [], [var.aval], {"value": var.val})[0]
        return env[var]

    def _emit(self, eqn: JaxprEqn, ins: list[ArrayId]) -> Sequence[ArrayId]:
        """Add an operation and return its results."""
        name, params = eqn.primitive.name, eqn.params
        outs = [v.aval for v in eqn.outvars]
        # They name or constrain a value and compute nothing.
        if name in _IDENTITY_OPS:
            return ins
        if name in CONTROL_FLOW:
            # Bodies stay programs of their own: a loop's runs many times.
            key = {"scan": "jaxpr", "while": "body_jaxpr", "cond": "branches"}[name]
            inner = params[key] if name == "cond" else (params[key],)
            bodies = tuple(flatten_jaxpr(_unwrap_jaxpr(each)) for each in inner)
            return self.append_op(name, ins, outs, params, bodies)
        # custom_jvp and custom_vjp calls name their program differently.
        called = next((params[k] for k in _CALL_PARAMS if k in params), None)
        if called is None or name in _REDUCERS.split():
            return self._emit_unique(name, ins, outs, params)
        body = _unwrap_jaxpr(called)
        env = {v: self.append_op("const", [], [v.aval])[0] for v in body.constvars}
        return self.inline(body, env | dict(zip(body.invars, ins, strict=True)))

    def _emit_unique(
        self, name: str, ins: list[ArrayId], outs: list[Any], params: Mapping[str, Any]
    ) -> list[ArrayId]:
        """Add an operation, or return the one that is the same."""
        settings = []
        for key in sorted(params.keys() - {"sharding"}):
            # Compared by their words; where these hold an address or a whole array, the
            # objects must be the same.
            words = repr(params[key])
            long = "0x" in words or len(words) > 400
            settings.append((key, id(params[key]) if long else words))
        same = name, tuple(ins), tuple(settings), tuple(map(str, outs))
        if same in self.known:
            return [(self.known[same], k) for k in range(len(outs))]
        # An operation without results is never reused: it may have an effect.
        found = self.append_op(name, ins, outs, params)
        if found:
            self.known[same] = found[0][0]
        return found

    def append_op(
        self,
        name: str,
        ins: list[ArrayId],
        outs: list[Any],
        params: Mapping[str, Any] | None = None,
        bodies: tuple[FlatProgram, ...] = (),
    ) -> list[ArrayId]:
        types = []
        for aval in outs:
            # A typed random key counts as the two words of its data.
            is_key = jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
            size = prod(aval.shape) * (8 if is_key else aval.dtype.itemsize)
            # What waits in the host's memory takes none of the device's.
            if getattr(aval, "memory_space", None) == jax.memory.Space.Host:
                size = 0
            types.append(ArrayType(tuple(aval.shape), str(aval.dtype), size))
        op = FlatOp(
            name=name, ins=ins, outs=tuple(types), params=params or {}, bodies=bodies
        )
        self.ops.append(op)
        return [(len(self.ops) - 1, k) for k in range(len(types))]


def _unwrap_jaxpr(program: Any) -> Jaxpr:
    found: Jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    return found
