"""Checks: rules that bind several keys, told with the keys to change."""

from jaxdist.core.errors import BadInput, did_you_mean, raise_all
from jaxdist.input import registry as datasets
from jaxdist.launch.config.provenance import ResolvedConfig
from jaxdist.models import registry as models


def validate_config(resolved: ResolvedConfig) -> None:
    """Hold a configuration against the rules that bind several keys.

    Raises:
        BadInput: every rule that is broken, together.
    """
    errors = (
        _check_model_name(resolved),
        _check_dataset_name(resolved),
        _check_batch_divides(resolved),
        _check_single_momentum(resolved),
        _check_sample_store(resolved),
    )
    raise_all([error for error in errors if error])


def nearest_multiples(value: int, unit: int) -> tuple[int, ...]:
    """Return the multiples of `unit` beside a value, the nearest first.

    >>> nearest_multiples(64, 5), nearest_multiples(3, 8)
    ((65, 60), (8,))
    """
    below = value // unit * unit
    sizes = [size for size in (below, below + unit) if size > 0]
    return tuple(sorted(sizes, key=lambda size: abs(size - value)))


def smaller_divisors(value: int, limit: int) -> tuple[int, ...]:
    """Return the two largest divisors of a value below a limit, largest first.

    >>> smaller_divisors(64, 5), smaller_divisors(7, 5)
    ((4, 2), (1,))
    """
    fitting = [size for size in range(limit - 1, 0, -1) if value % size == 0]
    return tuple(fitting[:2])


def _check_model_name(resolved: ResolvedConfig) -> BadInput | None:
    """Hold the name of the network against those that exist."""
    name, names = resolved.config.model.name, models.model_names()
    if name in names or models.is_user_model(resolved.config.model):
        return None
    near = did_you_mean(name, names)
    return BadInput(
        f"no model named {name}",
        values=resolved.describe("model.name"),
        remedy=f"did you mean model.name={near}?"
        if near
        else f"model.name={' or model.name='.join(names)}",
    )


def _check_dataset_name(resolved: ResolvedConfig) -> BadInput | None:
    """Hold the name of the data set against those that can be."""
    data = resolved.config.data
    if datasets.is_known(data):
        return None
    return datasets.unknown_dataset_error(data.name, resolved.describe("data.name"))


def _check_single_momentum(resolved: ResolvedConfig) -> BadInput | None:
    """Refuse momentum before gradients are sent and again behind."""
    optim, asked = resolved.config.optim, resolved.config.plan.reduce
    if not (asked.momentum and optim.momentum):
        return None
    return BadInput(
        "gradients would gather momentum twice",
        rule="momentum is gathered before gradients are compressed, or by the "
        "optimizer",
        values=f"{resolved.describe('plan.reduce.momentum')}, "
        f"{resolved.describe('optim.momentum')}",
        remedy=("optim.momentum=0", "or plan.reduce.momentum=0"),
    )


def _check_sample_store(resolved: ResolvedConfig) -> BadInput | None:
    """Refuse to keep samples that are drawn from everywhere in every epoch."""
    config = resolved.config
    if config.data.store == "none" or config.plan.shuffle.q is not None:
        return None
    return BadInput(
        "each host would keep the samples of all",
        rule="a host keeps what stays with it, so data.store needs a plan.shuffle.q",
        values=f"{resolved.describe('data.store')}, "
        f"{resolved.describe('plan.shuffle.q')}",
        remedy=("plan.shuffle.q=0.1", "or data.store=none"),
    )


def _check_batch_divides(resolved: ResolvedConfig) -> BadInput | None:
    batch, plan = resolved.config.data.batch, resolved.config.plan
    microbatches = resolved.config.optim.accumulate
    if batch % (plan.batch_shards * microbatches) == 0:
        return None
    axes = [axis for axis in plan.batch_axes if plan.mesh.size(axis) > 1] or ["data"]
    parts = [f"plan.mesh.{axis}" for axis in axes]
    parts += ["optim.accumulate"] * (microbatches > 1)
    return BadInput(
        "the global batch does not divide over the mesh",
        rule=f"data.batch is a multiple of {' x '.join(parts)}",
        values=", ".join(resolved.describe(key) for key in ("data.batch", *parts)),
        remedy=_suggest_batch_sizes(batch, resolved, axes),
    )


def _suggest_batch_sizes(batch: int, resolved: ResolvedConfig, axes: list[str]) -> str:
    """Name the nearest batches, and the next smaller meshes for this batch."""
    plan, microbatches = resolved.config.plan, resolved.config.optim.accumulate
    sizes = nearest_multiples(batch, plan.batch_shards * microbatches)
    batches = " or ".join(f"data.batch={size}" for size in sizes)
    others = plan.mesh.size(*axes[1:]) * microbatches
    if batch % others:
        return batches
    fitting = smaller_divisors(batch // others, plan.mesh.size(axes[0]))
    meshes = " or ".join(f"plan.mesh.{axes[0]}={size}" for size in fitting)
    return f"{batches}, or {meshes}" if meshes else batches
