"""Methods of a single object, while the others of its class keep theirs.

Python looks `__call__` up on the class, so an object whose calls are to be recorded,
named or preceded by something needs a class of its own. flax registers every class of
modules for good: a class for each object and trace would pile up, and each `isinstance`
asks all of them.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

_FUNCTIONS: Final = "_instance_methods"


class _Functions:
    """Functions by method: an attribute that flax takes for static, not for a tree."""

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        self.of = functions


@functools.cache
def _class_of_instances(kind: type, method: str) -> type:
    """Return a subclass whose method is looked up on the object; one for each kind."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return vars(self)[_FUNCTIONS].of[method](self, *args, **kwargs)

    return type(kind)(kind.__name__, (kind,), {method: call})


def wrap_method(
    target: Any, wrapper: Callable[..., Any], method: str = "__call__"
) -> None:
    """Monkey-patch a method of this one object; others of its class stay as they are.

    Args:
        target: the object, changed in place.
        wrapper: is called with the method as it was, the object, and the arguments.
        method: its name.

    >>> class Twice:
    ...     def __call__(self, x):
    ...         return 2 * x
    >>> one, other = Twice(), Twice()
    >>> wrap_method(one, lambda call, self, x: call(self, x) + 1)
    >>> one(3), other(3), isinstance(one, Twice)
    (7, 6, True)
    """
    kind: Any = type(target)
    functions = vars(target)[_FUNCTIONS].of if _FUNCTIONS in vars(target) else {}
    before = functions.get(method) or getattr(kind, method)
    # Past flax's own `__setattr__`, which would list both as the module's attributes.
    if method not in functions:
        own = _class_of_instances(kind, method)
        object.__setattr__(target, "__class__", own)
    functions = functions | {method: functools.partial(wrapper, before)}
    object.__setattr__(target, _FUNCTIONS, _Functions(functions))
