"""Whether a network takes the samples, and its objective what the network returns.

On shapes alone, before anything is written: what jax would broadcast is refused too.
"""

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx

from jaxdist.core.errors import BadInput
from jaxdist.profile.layer_calls import trace_network
from jaxdist.profile.repeated_blocks import RepeatedBlocks, find_repeated_blocks
from jaxdist.train.layout import BatchShapes
from jaxdist.train.task import Task

Inputs = Sequence[jax.ShapeDtypeStruct]
Trace = Callable[[Inputs], Any]
"""Traces a network on inputs of these shapes; raises where it cannot take them."""


def check_samples(
    task: Task,
    network: nnx.Module,
    inputs: Inputs,
    batch_shapes: BatchShapes,
    prepare: Callable[[nnx.Module], None],
) -> RepeatedBlocks:
    """Hold samples, network and objective against each other.

    Args:
        task: what is trained.
        network: its network, on shapes alone; not changed.
        inputs: what it is called on, samples first.
        batch_shapes: a batch of as many samples, or more.
        prepare: called on the traced network before it runs.

    Returns:
        The blocks of the network that need not be traced again.

    Raises:
        BadInput: the network cannot take the samples, or the objective cannot score
            what it returns.
    """

    def trace(inputs: Inputs) -> tuple[RepeatedBlocks, Any]:
        alike = find_repeated_blocks(network, inputs, prepare)
        state = task.state.params, task.state.stats
        calls, outputs = trace_network(
            task.graph, state, *inputs, repeated_blocks=alike
        )
        # A window larger than its image leaves nothing, of which a mean is no number.
        if empty := next((call for call in calls if 0 in call.out_shape), None):
            raise ValueError(f"{empty.path} returns nothing, {list(empty.out_shape)}")
        return alike, outputs

    try:
        alike, outputs = trace(inputs)
    except BadInput:
        raise
    except Exception as error:  # a network of one's own may raise anything
        raise network_input_error(network, inputs, trace, error) from error
    samples = inputs[0].shape[0]
    shapes = {
        key: jax.ShapeDtypeStruct((samples, *x.shape[1:]), x.dtype)
        for key, x in batch_shapes.items()
    }
    task.objective.check_outputs(outputs, shapes)
    return alike


def network_input_error(
    network: nnx.Module, inputs: Inputs, trace: Trace, error: Exception
) -> BadInput:
    """Say that a network cannot take its inputs, and the least size that it can.

    Args:
        network: on shapes alone.
        inputs: what it was called on, samples first; the first of them may be images.
        trace: the same on other inputs.
        error: what it raised.
    """
    name, shape = type(network).__name__, inputs[0].shape
    # The deepest line that is neither of jax nor of flax: a layer, or a user's network.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not {"jax", "flax", "optax"} & set(frame.filename.split("/"))
    ]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    said = (str(error).splitlines() or [""])[0]
    shown = ", ".join(f"{list(x.shape[1:])} {x.dtype}" for x in inputs)
    remedy = ["another model.name, or another data.name"]
    if least := least_image_size(inputs, trace):
        remedy.insert(0, f"images of at least {least} x {least}: data.size={least}")
    elif len(shape) == 4 and shape[1] in (1, 3) and shape[-1] not in (1, 3):
        remedy.insert(0, "data.channel_dim=first, or numpy.moveaxis(image, 1, -1)")
    elif len(shape) == 3:
        remedy.insert(0, "images are [N, H, W, C]: image[..., None]")
    return BadInput(
        f"{name} cannot take these samples",
        rule="a network takes inputs of the samples' shape, and every layer of it "
        "returns something",
        values=f"a sample is {shown}; {type(error).__name__}: {said}{place}",
        remedy=remedy,
    )


def least_image_size(inputs: Inputs, trace: Trace, limit: int = 1024) -> int | None:
    """Find the least rows and columns of the images that a network can take.

    Args:
        inputs: what it cannot be called on, the images first.
        trace: the network on other inputs.
        limit: rows of the largest images that are tried.

    Returns:
        None where its inputs are no images, or their size is not what is wrong.
    """
    image, *others = inputs
    if image.ndim < 4:
        return None

    def takes(side: int) -> bool:
        sides = (side,) * (image.ndim - 2)
        sized = (image.shape[0], *sides, image.shape[-1])
        try:
            trace([jax.ShapeDtypeStruct(sized, image.dtype), *others])
        except Exception:  # whatever a layer raises
            return False
        return True

    # Doubled, and then halved: a network that takes a size takes all above it.
    low = min(image.shape[1:-1])
    high = max(2 * low, 1)
    while not takes(high):
        low, high = high, 2 * high
        if high > limit:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if takes(middle) else (middle, high)
    return high
