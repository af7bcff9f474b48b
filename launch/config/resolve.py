"""Resolution: an experiment and its overrides become one checked configuration."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from jaxdist.core.axes import MeshShape
from jaxdist.core.errors import BadInput, did_you_mean, raise_all
from jaxdist.input import registry as datasets
from jaxdist.launch.config.aliases import (
    SHORT_KEYS,
    STEP_KEYS,
    rename_overrides,
    steps_error,
)
from jaxdist.launch.config.experiment import (
    Experiment,
    experiment_names,
    load_experiment,
    name_run,
)
from jaxdist.launch.config.start_weights import weights_overrides
from jaxdist.launch.config.tree import (
    describe_type,
    flatten_config,
    format_value,
    key_types,
    literal_choices,
    nearest_key,
    parse_value,
    replace_values,
)
from jaxdist.models import registry as models

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T", bound="DataclassInstance")


def apply_config_overrides(
    config: T, overrides: Sequence[str], *, experiment: str, list_command: str = ""
) -> tuple[T, list[str]]:
    """Apply overrides to a tree; where a key comes twice the last one holds.

    Args:
        config: a tree of frozen dataclasses.
        overrides: `key.sub=value`, one a word.
        experiment: the experiment's name, for the remedies.
        list_command: the command that lists the keys; empty names `jaxdist config
        SOURCE`.

    Returns:
        The changed tree and the keys that were set.

    Raises:
        BadInput: words that cannot be used, all of them together.
    """
    # Types come from the class, so a value that is None now still has the type of what
    # it may be.
    known, values = key_types(type(config)), flatten_config(config)
    listing = f"list them with: {list_command or f'jaxdist config {experiment}'}"
    changes: dict[str, Any] = {}
    errors: list[BadInput] = []
    # Scripts may still have keys under their old names.
    words, _ = rename_overrides(overrides)
    for word in words:
        key, equals, text = word.partition("=")
        # Other trees, such as that of a profile, have keys of these names themselves.
        short = SHORT_KEYS.get(key)
        if key not in known and short is not None and short in known:
            key = short
        below = [name for name in known if name.startswith(key + ".")]
        if not equals:
            near = nearest_key(key, known)
            error = BadInput(
                f"{word} changes nothing",
                rule="an override is key=value, without spaces",
                remedy=f"did you mean {near}=VALUE?" if near else listing,
            )
        elif key in known:
            try:
                changes[key] = parse_value(text, known[key])
                continue
            except ValueError:
                error = BadInput(
                    f"{key} cannot be {text or 'empty'}",
                    rule=f"{key} is {describe_type(known[key])}",
                    values=f"{key} = {text} (command line)",
                    remedy=_suggest_override(key, text, known[key], values[key]),
                )
        elif below:
            error = BadInput(
                f"{key} is a group of keys",
                rule="an override sets one value",
                values=f"its keys: {', '.join(n[len(key) + 1 :] for n in below)}",
                remedy=f"{below[0]}={text or 'VALUE'}",
            )
        elif key in STEP_KEYS:
            each = (other.partition("=") for other in words)
            typed = {SHORT_KEYS.get(name, name): said for name, _, said in each}
            batch = typed.get("data.batch", values.get("data.batch"))
            error = steps_error(word, batch)
        else:
            near = nearest_key(key, known)
            meant = f"did you mean {near}? " if near else ""
            error = BadInput(f"no key {key}", remedy=meant + listing)
        errors.append(error)
    # All words are told together; what the dataclasses refuse comes only after that,
    # since a rule over several values says little while one of them is unreadable.
    raise_all(errors)
    return replace_values(config, changes), list(changes)


def format_override(key: str, value: Any) -> str:
    """Write an override as it is typed into a shell.

    >>> format_override("run.name", "first try"), format_override("data.batch", 60)
    ("'run.name=first try'", 'data.batch=60')
    """
    return shlex.quote(f"{key}={format_value(value)}")


def _suggest_override(key: str, text: str, value_type: Any, current: Any) -> str:
    """Return an override that works in place of one that does not."""
    near = did_you_mean(text, literal_choices(value_type))
    if near:
        return f"did you mean {key}={near}?"
    # `epochs=1e3` or `data.batch=64.0` where a whole number is asked for.
    if value_type is int:
        try:
            return format_override(key, round(float(text)))
        except (ValueError, OverflowError):
            pass
    return format_override(key, current)


SettingSource = Literal["default", "experiment", "command line"]
SETTING_SOURCE_NAMES: Final[tuple[SettingSource, ...]] = (
    *("default", "experiment", "command line"),
)
WARMUP_EPOCHS: Final = 5.0
_NON_LAYOUT_KEYS: Final = ("plan.reduce.", "plan.shuffle.", "plan.outer.")
"""Keys of a plan that do not place anything on devices."""


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig:
    """A configuration that is ready to run, with the source of every value."""

    experiment: str
    """The experiment as it was asked for: a name, or the path of a file."""
    config: Experiment
    """All values."""
    sources: Mapping[str, SettingSource]
    """Who set the value of each key."""

    def describe(self, key: str) -> str:
        """Name a value and who set it, as errors do: `data.batch = 64 (experiment)`."""
        value = format_value(flatten_config(self.config)[key])
        return f"{key} = {value} ({self._shown_source(key)})"

    def count_sources(self) -> Counter[str]:
        """Return how many values each source set, or a plan that was given whole."""
        return Counter(map(self._shown_source, self.sources))

    def _shown_source(self, key: str) -> str:
        """Return who set a value, as a person sees it: nobody types a whole plan."""
        is_plan = key.startswith("plan.") and all(
            by == "command line"
            for other, by in self.sources.items()
            if other.startswith("plan.")
        )
        return "the plan" if is_plan else self.sources[key]

    def keys_from(self, source: SettingSource) -> tuple[str, ...]:
        """Return the keys that this source set."""
        return tuple(key for key, by in self.sources.items() if by == source)

    @property
    def plan_is_explicit(self) -> bool:
        """Whether the layout was asked for on the command line; then it never moves."""
        return any(
            key.startswith("plan.") and not key.startswith(_NON_LAYOUT_KEYS)
            for key in self.keys_from("command line")
        )


_SEARCHED_MESH: Final = MeshShape(spatial_h=2)
"""Mesh of an experiment whose mesh is searched: it holds nothing to a size, and every
setting of a plan may be typed beside it."""


def resolve_config(
    source: str | Experiment,
    overrides: Sequence[str] = (),
    *,
    is_mesh_searched: bool = False,
) -> ResolvedConfig:
    """Return the configuration that `jaxdist train SOURCE WORDS` runs.

    Args:
        source: name of an experiment, path of a file that has one, or its settings.
        overrides: overrides, `key.sub=value`.
        is_mesh_searched: whether another mesh than the experiment's is looked for: of
            its axes those that are typed hold, and no others.

    Raises:
        BadInput: everything that is wrong with the experiment, the words and their
            combination, together.

    >>> resolve_config("digits", ["optim.lr=0.3"]).describe("optim.lr")
    'optim.lr = 0.3 (command line)'
    """
    name_or_path = source.name if isinstance(source, Experiment) else source
    try:
        experiment = (
            name_run(source)
            if isinstance(source, Experiment)
            else (load_experiment(source))
        )
    except BadInput as error:
        # The overrides are still checked, against a blank experiment, so that one
        # message tells everything that has to be typed again.
        meant = did_you_mean(name_or_path, experiment_names()) or experiment_names()[0]
        try:
            apply_config_overrides(Experiment(name=meant), overrides, experiment=meant)
        except BadInput as also:
            raise_all([error, also])
        raise
    if is_mesh_searched:
        experiment = replace(experiment, plan=experiment.plan.on(_SEARCHED_MESH))
    config, typed = apply_config_overrides(
        experiment, overrides, experiment=name_or_path
    )
    # Weights and a recipe rank below the command line and above the experiment, so the
    # typed words are applied a second time, over them.
    if given := weights_overrides(config, typed):
        experiment = replace_values(experiment, given)
        config, _ = apply_config_overrides(
            experiment, overrides, experiment=name_or_path
        )
        typed += given if "weights" in typed else ()
    if recipe := recipe_overrides(config):
        config, _ = apply_config_overrides(
            replace_values(experiment, recipe), overrides, experiment=name_or_path
        )
        typed += recipe if "recipe" in typed else ()

    # An experiment augments the data set that it is made for. Of samples of one's own
    # nobody but their owner knows whether they may be moved, or cut.
    other = config.data.name != experiment.data.name
    if other and datasets.is_own_data(config.data):
        plain = {"data.shift": 0, "data.augment": (), "data.size": None}
        untyped = {key: value for key, value in plain.items() if key not in typed}
        config = replace_values(config, untyped)
    datasets.check_size(config.data)

    # A value that an experiment sets to the default counts as the default: nobody can
    # tell them apart.
    default = flatten_config(Experiment(name=""))
    sources: dict[str, SettingSource] = {
        key: "command line"
        if key in typed
        else "default"
        if value == default[key]
        else "experiment"
        for key, value in flatten_config(config).items()
    }
    resolved = ResolvedConfig(experiment=name_or_path, config=config, sources=sources)
    validate_config(resolved)
    return resolved


def override_resolved(
    resolved: ResolvedConfig, overrides: Sequence[str]
) -> ResolvedConfig:
    """Return a configuration that was resolved before with some values changed.

    Args:
        resolved: the configuration of a run.
        overrides: overrides, `key.sub=value`; a value that it has already keeps its
            source.

    Raises:
        BadInput: words that cannot be used, or a rule that they break, together.
    """
    source, config = resolved.experiment, resolved.config
    changed, _ = apply_config_overrides(config, overrides, experiment=source)
    # A recipe that is the run's own has set its values already, and some of them may
    # have been changed since.
    if changed.recipe != config.recipe and (recipe := recipe_overrides(changed)):
        changed, _ = apply_config_overrides(
            replace_values(config, recipe), overrides, experiment=source
        )
    old, new = flatten_config(config), flatten_config(changed)
    sources: dict[str, SettingSource] = {
        key: resolved.sources[key] if value == old[key] else "command line"
        for key, value in new.items()
    }
    found = replace(resolved, config=changed, sources=sources)
    validate_config(found)
    return found


def recipe_overrides(config: Experiment) -> dict[str, Any]:
    """Return the keys that a configuration's recipe sets; none without a recipe.

    The recipe for large batches is that of Goyal et al. 2017, arXiv:1706.02677: the
    rate grows with the batch (section 2.1), after a gradual warm-up over five epochs
    (2.2), and residual blocks begin as their shortcut (5.1). That norms and biases do
    not decay, its fourth part, holds for every run.

    >>> recipe_overrides(Experiment(name="mine"))
    {}
    >>> list(recipe_overrides(Experiment(name="mine", recipe="large_batch")))
    ['optim.scaling', 'optim.warmup_epochs', 'model.zero_gamma']
    """
    if config.recipe == "none":
        return {}
    ends_in_norm = models.ends_blocks_in_norm(config.model)
    zero = {"model.zero_gamma": True} if ends_in_norm else {}
    return {"optim.scaling": "linear", "optim.warmup_epochs": WARMUP_EPOCHS, **zero}


def validate_config(resolved: ResolvedConfig) -> None:
    """Check the rules that bind several keys, and the names of network and data.

    Raises:
        BadInput: every rule that is broken, together.
    """
    config, said = resolved.config, resolved.describe
    plan, optim, batch = config.plan, config.optim, config.data.batch
    errors = []
    # Names first: most other rules mean nothing while one of them is wrong.
    names = models.model_names()
    if config.model.name not in names and not models.is_user_model(config.model):
        near = did_you_mean(config.model.name, names)
        listed = f"model.name={' or model.name='.join(names)}"
        errors.append(
            BadInput(
                f"no model named {config.model.name}",
                values=said("model.name"),
                remedy=f"did you mean model.name={near}?" if near else listed,
            )
        )
    if not datasets.is_known(config.data):
        errors.append(
            datasets.unknown_dataset_error(config.data.name, said("data.name"))
        )

    microbatches = optim.accumulate
    if batch % (plan.batch_shards * microbatches):
        # The remedies are the nearest batches for this mesh, and, where the other
        # factors leave a choice, the next smaller meshes for this batch.
        axes = [axis for axis in plan.batch_axes if plan.mesh.size(axis) > 1]
        axes = axes or ["data"]
        parts = [f"plan.mesh.{axis}" for axis in axes]
        parts += ["optim.accumulate"] * (microbatches > 1)
        sizes = nearest_multiples(batch, plan.batch_shards * microbatches)
        remedy = " or ".join(f"data.batch={size}" for size in sizes)
        others = plan.mesh.size(*axes[1:]) * microbatches
        if batch % others == 0:
            fitting = smaller_divisors(batch // others, plan.mesh.size(axes[0]))
            meshes = " or ".join(f"plan.mesh.{axes[0]}={size}" for size in fitting)
            remedy += f", or {meshes}" if meshes else ""
        errors.append(
            BadInput(
                "the global batch does not divide over the mesh",
                rule=f"data.batch is a multiple of {' x '.join(parts)}",
                values=", ".join(said(key) for key in ("data.batch", *parts)),
                remedy=remedy,
            )
        )

    # Compression sends the momentum instead of the gradient, so that what it leaves out
    # is not lost (deep gradient compression); a second momentum on top would move the
    # weights 1 / (1 - m) times too far.
    if plan.reduce.momentum and optim.momentum:
        errors.append(
            BadInput(
                "gradients would gather momentum twice",
                rule="momentum is gathered before gradients are compressed, or by the "
                "optimizer",
                values=f"{said('plan.reduce.momentum')}, {said('optim.momentum')}",
                remedy=("optim.momentum=0", "or plan.reduce.momentum=0"),
            )
        )
    # Without partial shuffling every epoch draws from all samples, so that a host which
    # stores what it has seen would end up with the whole data set.
    if config.data.cache != "none" and plan.shuffle.exchange_fraction is None:
        errors.append(
            BadInput(
                "each host would keep the samples of all",
                rule="a host keeps what stays with it, so data.cache needs a "
                "plan.shuffle.exchange_fraction",
                values=f"{said('data.cache')}, "
                f"{said('plan.shuffle.exchange_fraction')}",
                remedy=("plan.shuffle.exchange_fraction=0.1", "or data.cache=none"),
            )
        )
    raise_all(errors)


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
