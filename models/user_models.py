"""Networks of one's own: a class or function in a file or module, by name.

It is called with what it takes of `rngs` (first weights), `dtype` (of activations) and
`config` (all `model.` keys), and returns an `nnx.Module` that is called on a batch.
"""

import inspect
from typing import TYPE_CHECKING, Any

from jaxdist.core.errors import BadInput
from jaxdist.core.object_reference import call_user_function, resolve_object

if TYPE_CHECKING:
    from flax import nnx

    from jaxdist.models.config import ModelConfig
    from jaxdist.train.objective import Objective


def make_user_model(config: "ModelConfig", **how: Any) -> "nnx.Module":
    """Make the network that `config.name` names.

    Args:
        config: its settings.
        how: `dtype` and `rngs`.

    Raises:
        BadInput: there is no such network, it takes no `rngs`, it cannot have another
            dtype, or it is no `nnx.Module`.
    """
    from flax import nnx

    make = resolve_object(config.name)
    offered = {"config": config, **how}
    takes = _parameter_names(make)
    if "rngs" not in takes:
        raise BadInput(
            f"{config.name} takes no rngs",
            rule="first weights are drawn from rngs, an nnx.Rngs",
            values=f"it takes {', '.join(takes) or 'nothing'}",
            remedy="def __init__(self, *, rngs):",
        )
    if how.get("dtype") is not None and "dtype" not in takes:
        raise BadInput(
            f"{config.name} has one dtype",
            rule="in bfloat16 a network is told the dtype of its activations",
            values=f"it takes {', '.join(takes)}",
            remedy="precision=float32, or def __init__(self, *, dtype, rngs):",
        )
    given = {key: offered[key] for key in takes if key in offered}
    network = call_user_function(config.name, make, **given)
    if not isinstance(network, nnx.Module):
        raise BadInput(
            f"{config.name} is no network",
            rule="a network is an nnx.Module",
            values=f"it gives {type(network).__name__}",
            remedy="class Net(nnx.Module):",
        )
    return network


def user_objective(name: str) -> "Objective":
    """Return what a network is trained on: its `objective`, or else one label a sample.

    Raises:
        BadInput: there is no such network.
    """
    from jaxdist.train.objective import Classification

    return getattr(resolve_object(name), "objective", None) or Classification()


def _parameter_names(make: Any) -> tuple[str, ...]:
    """Return the names of what a class or function takes."""
    # The metaclass of nnx hides the arguments of a module's class.
    told = make.__init__ if inspect.isclass(make) else make
    return tuple(name for name in inspect.signature(told).parameters if name != "self")
