"""Flat programs: a traced program as operations on arrays, calls in place, none twice.

What stands twice is there once, as after a compiler's common-subexpression elimination,
and barriers are looked through: XLA's CPU backend drops them before that pass, so what
`remat` computes again is not computed again there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

ArrayId = tuple[int, int]
"""An array: the number of the operation that makes it, and which of its results."""

CONTROL_FLOW: Final = ("scan", "while", "cond")
_IDENTITY_OPS: Final = ("name", "stop_gradient", "pvary", "sharding_constraint")
_CALL_PARAMS: Final = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_REDUCER_OPS: Final = (
    "reduce",
    "reduce_window",
    "scatter",
    "scatter-add",
    "sort",
    "custom_root",
    "custom_linear_solve",
)


@dataclass(frozen=True)
class ArrayType:
    """The kind of an array."""

    shape: tuple[int, ...]
    """Its dims."""
    dtype: str
    """Of its elements."""
    nbytes: int
    """Its size."""


@dataclass(kw_only=True)
class FlatOp:
    """An operation."""

    name: str
    """Of the primitive; `arg`, `const` and `lit` are what is there before."""
    ins: list[ArrayId]
    """What it reads."""
    outs: tuple[ArrayType, ...]
    """What it makes."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the primitive."""
    bodies: tuple["FlatProgram", ...] = ()
    """The programs of a loop or of a conditional."""


@dataclass(kw_only=True)
class FlatProgram:
    """A program."""

    ops: list[FlatOp]
    """In an order in which they can be done."""
    args: tuple[ArrayId, ...]
    """What it is called on."""
    outs: tuple[ArrayId, ...]
    """What it returns."""

    def array_type(self, value: ArrayId) -> ArrayType:
        """Return the kind of a value."""
        return self.ops[value[0]].outs[value[1]]

    def append_op(self, name: str, ins: Sequence[ArrayId], *outs: ArrayType) -> int:
        """Append an operation and return its number."""
        self.ops.append(FlatOp(name=name, ins=list(ins), outs=outs))
        return len(self.ops) - 1


def flatten_jaxpr(jaxpr: Jaxpr) -> FlatProgram:
    """Flatten a traced program.

    Args:
        jaxpr: with all of its arguments.
    """
    return _Flattener().flatten(jaxpr)


class _Flattener:
    """One flattening: the operations so far, and which of them are the same."""

    def __init__(self) -> None:
        self.ops: list[FlatOp] = []
        self.known: dict[Any, int] = {}

    def flatten(self, jaxpr: Jaxpr) -> FlatProgram:
        env = {v: self._append("const", [], [v.aval])[0] for v in jaxpr.constvars}
        args = tuple(self._append("arg", [], [v.aval])[0] for v in jaxpr.invars)
        outs = self._inline(jaxpr, env | dict(zip(jaxpr.invars, args, strict=True)))
        return FlatProgram(ops=self.ops, args=args, outs=tuple(outs))

    def _inline(self, jaxpr: Jaxpr, env: dict[Any, ArrayId]) -> list[ArrayId]:
        """Add the operations of a program and return its results."""
        for eqn in jaxpr.eqns:
            found = self._emit(eqn, [self._read(v, env) for v in eqn.invars])
            env.update(zip(eqn.outvars, found, strict=True))
        return [self._read(v, env) for v in jaxpr.outvars]

    def _read(self, var: Any, env: Mapping[Any, ArrayId]) -> ArrayId:
        if isinstance(var, Literal):
            known = {"value": var.val}
            return self._emit_unique("lit", [], [var.aval], known)[0]
        return env[var]

    def _emit(self, eqn: JaxprEqn, ins: list[ArrayId]) -> Sequence[ArrayId]:
        """Add an operation and return its results."""
        name, outs = eqn.primitive.name, [v.aval for v in eqn.outvars]
        if name in _IDENTITY_OPS or name == "optimization_barrier":
            return ins
        if name in CONTROL_FLOW:
            inner = tuple(flatten_jaxpr(_unwrap_jaxpr(one)) for one in _bodies(eqn))
            return self._append(name, ins, outs, eqn.params, inner)
        called = next((eqn.params[k] for k in _CALL_PARAMS if k in eqn.params), None)
        if called is None or name in _REDUCER_OPS:
            return self._emit_unique(name, ins, outs, eqn.params)
        body = _unwrap_jaxpr(called)
        env = {v: self._append("const", [], [v.aval])[0] for v in body.constvars}
        return self._inline(body, env | dict(zip(body.invars, ins, strict=True)))

    def _emit_unique(
        self, name: str, ins: list[ArrayId], outs: list[Any], params: Mapping[str, Any]
    ) -> list[ArrayId]:
        """Add an operation, or return the one that is the same."""
        settings = tuple(
            (key, _param_key(params[key]))
            for key in sorted(params)
            if key != "sharding"
        )
        same = name, tuple(ins), settings, tuple(map(str, outs))
        if same in self.known:
            number = self.known[same]
            return [(number, k) for k in range(len(outs))]
        found = self._append(name, ins, outs, params)
        if found:
            self.known[same] = found[0][0]
        return found

    def _append(
        self,
        name: str,
        ins: list[ArrayId],
        outs: list[Any],
        params: Mapping[str, Any] | None = None,
        inner: tuple[FlatProgram, ...] = (),
    ) -> list[ArrayId]:
        made = tuple(map(_array_type, outs))
        op = FlatOp(name=name, ins=ins, outs=made, params=params or {}, bodies=inner)
        self.ops.append(op)
        return [(len(self.ops) - 1, k) for k in range(len(made))]


def _bodies(eqn: JaxprEqn) -> list[Any]:
    if eqn.primitive.name == "cond":
        return list(eqn.params["branches"])
    return [eqn.params["jaxpr" if eqn.primitive.name == "scan" else "body_jaxpr"]]


def _unwrap_jaxpr(program: Any) -> Jaxpr:
    found: Jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    return found


def _param_key(setting: Any) -> Any:
    """Return a setting in words, or, of one that has none, which object it is."""
    words = repr(setting)
    return id(setting) if "0x" in words or len(words) > 400 else words


def _array_type(aval: Any) -> ArrayType:
    shape = tuple(aval.shape)
    size = 1
    for dim in shape:
        size *= dim
    width = 8 if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended) else None
    return ArrayType(shape, str(aval.dtype), size * (width or aval.dtype.itemsize))
