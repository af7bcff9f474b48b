"""Experiments: their configuration, and finding one by its name."""

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, get_args

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.core.metric_goal import MetricGoal
from jaxdist.core.object_reference import call_user_function, load_module
from jaxdist.core.plan import Plan
from jaxdist.input.config import DataConfig
from jaxdist.models.config import ModelConfig
from jaxdist.train.lora import LoraConfig
from jaxdist.train.optimizers import OptimConfig

TrackerName = Literal["csv", "mlflow", "tensorboard", "wandb"]
"""Where `track` sends what a run logs."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where the files of a run go, and when it counts as stuck."""

    name: str = ""
    """Folder of the run, inside `dir`; empty takes the experiment's name."""
    dir: str = "runs"
    """Folder that holds the run folders."""
    hang_timeout_s: int | float = 60
    """Seconds that a step may take, or 20 median steps where those are longer; a run
    that is stuck ends with exit code 75. 0 lets it wait for ever."""
    straggler_interval: int = 100
    """Steps after which slow processes are named, again and again; 0 names none."""
    gradient_norm: bool = True
    """Whether each step's norm of the whole gradient, not clipped yet, is recorded."""

    def __post_init__(self) -> None:
        if self.straggler_interval < 0:
            raise BadInput(
                "processes cannot be compared so often",
                rule="run.straggler_interval is a number of steps, or 0, which "
                "compares none",
                values=f"run.straggler_interval = {self.straggler_interval}",
                remedy="run.straggler_interval=100",
            )
        # Written with `not`, so that nan is refused as well.
        if not self.hang_timeout_s >= 0:
            raise BadInput(
                "a step needs time",
                rule="run.hang_timeout_s is above 0, or 0, which lets a run wait for "
                "ever",
                values=f"run.hang_timeout_s = {self.hang_timeout_s}",
                remedy="run.hang_timeout_s=60",
            )
        # The name is a folder inside `dir`: a path in it would lead out of it, and
        # commands that list runs by name would not find the run.
        if self.name in (".", "..") or "/" in self.name:
            raise BadInput(
                f"{self.name} is no name for a run",
                rule="run.name is one folder name; run.dir is the path to it",
                values=f"run.name = {self.name}",
                remedy="run.name=NAME run.dir=FOLDER",
            )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often the state is written, and how many of them stay."""

    every_epochs: int | float = 1
    """Epochs from one checkpoint to the next."""
    every_steps: int = 0
    """Steps from one checkpoint to the next; 0 counts in epochs instead."""
    keep: int = 3
    """Newest checkpoints that stay on disk."""
    best: str = ""
    """Metric whose best checkpoint stays, too: accuracy, loss, max:NAME or min:NAME."""
    store: str = ""
    """Object store of copies, s3://BUCKET/FOLDER or gs://; a fresh disk resumes."""

    @property
    def goal(self) -> MetricGoal | None:
        """The metric whose best checkpoint stays; None where only the newest do."""
        return MetricGoal.parse(self.best) if self.best else None

    def __post_init__(self) -> None:
        # An interval in epochs may be a part of one; it is rounded to steps once the
        # number of samples is known.
        if self.every_steps < 0 or self.every_epochs <= 0:
            raise BadInput(
                "checkpoints need a distance above zero",
                rule="checkpoint.every_epochs > 0 and checkpoint.every_steps >= 0",
                values=f"checkpoint.every_epochs = {self.every_epochs}, "
                f"checkpoint.every_steps = {self.every_steps}",
                remedy="checkpoint.every_epochs=1 checkpoint.every_steps=0",
            )
        if self.keep < 1:
            raise BadInput(
                "at least one checkpoint stays",
                rule="checkpoint.keep >= 1",
                values=f"checkpoint.keep = {self.keep}",
                remedy="checkpoint.keep=1",
            )
        if self.store and not self.store.startswith(("s3://", "gs://", "file:///")):
            raise BadInput(
                f"{self.store} cannot hold copies of checkpoints",
                rule="checkpoint.store begins with s3://, gs:// or file:///",
                values=f"checkpoint.store = {self.store}",
                remedy="checkpoint.store=s3://BUCKET/runs",
            )
        # Refused here if no metric is named.
        assert self.goal is None or self.goal.metric


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All settings of a training run: what an experiment's function returns."""

    name: str
    """Name of the experiment."""
    recipe: Literal["none", "large_batch"] = "none"
    """Settings that change together; `jaxdist schedule` shows what comes of them."""
    seed: int = 0
    """Source of the initial weights, the order of the samples and all noise."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """Number format of the computation; parameters are float32 or wider."""
    epochs: int | float = 1
    """Passes over the training samples; a part of one is allowed."""
    audit: Literal["fail", "warn"] = "fail"
    """What a step that differs from its plan does: it stops the run, or is said."""
    track: tuple[str, ...] = ()
    """Trackers of the run: tensorboard, wandb, mlflow, csv; commas between them."""
    weights: str = ""
    """Weights to start from: a folder of Hugging Face or a run; they set `model`."""
    run: RunConfig = field(default_factory=RunConfig)
    """Where the files go."""
    data: DataConfig = field(default_factory=DataConfig)
    """Which samples, and how many at once."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Which network."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Adapters that are trained in place of its parameters."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """How its parameters move."""
    plan: Plan = field(default_factory=Plan)
    """How the work is split over devices."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """How often the state is written."""

    def __post_init__(self) -> None:
        if self.epochs <= 0:
            raise BadInput(
                "there is nothing to train",
                rule="epochs is above zero",
                values=f"epochs = {self.epochs}",
                remedy="epochs=1",
            )
        known = get_args(TrackerName)
        for name in self.track:
            if name not in known:
                near = did_you_mean(name, known)
                raise BadInput(
                    f"no tracker named {name}",
                    rule=f"track is some of {', '.join(known)}, with commas between",
                    values=f"track = {','.join(self.track)}",
                    remedy=f"did you mean track={near}?" if near else "track=csv",
                )
        # Random keys and the order of samples are made of an int32.
        if not 0 <= self.seed < 2**31:
            raise BadInput(
                "the seed is out of range",
                rule="seed is from 0 to 2147483647",
                values=f"seed = {self.seed}",
                remedy="seed=0",
            )
        # A pipeline sends its microbatches through one after the other and adds their
        # gradients up; those are the microbatches that the optimizer accumulates. A
        # plan with 0 leaves their number to the optimizer.
        if self.plan.microbatches not in (0, self.optim.accumulate):
            raise BadInput(
                "the plan is for another number of microbatches",
                rule="optim.accumulate is the plan's number of microbatches, where the "
                "plan has one",
                values=f"plan.microbatches = {self.plan.microbatches}, "
                f"optim.accumulate = {self.optim.accumulate}",
                remedy=(
                    f"optim.accumulate={self.plan.microbatches}",
                    "plan.microbatches=0",
                ),
            )


EXPERIMENTS: Final = "jaxdist.launch.experiments"
"""Package whose modules are the experiments; named, not imported: it lies above."""
LIST_EXPERIMENTS_HINT: Final = "list them with: jaxdist experiments"


@dataclass(frozen=True, kw_only=True)
class ExperimentEntry:
    """One line of the catalogue."""

    name: str
    """What `jaxdist train` takes."""
    summary: str
    """First line of the file's docstring."""
    details: str
    """Docstring of the function: source, time, score and command."""


def experiment_names() -> tuple[str, ...]:
    """Return the names of the experiments that come with the package."""
    # Found, not imported: experiments import this package.
    spec = find_spec(EXPERIMENTS)
    folders = spec.submodule_search_locations if spec else None
    return tuple(module.name for module in pkgutil.iter_modules(folders))


def list_experiments() -> tuple[ExperimentEntry, ...]:
    """Return every experiment that comes with the package, by name."""
    entries = []
    for name in experiment_names():
        module = import_module(f"{EXPERIMENTS}.{name}")
        entries.append(
            ExperimentEntry(
                name=name,
                summary=(module.__doc__ or "").strip().splitlines()[0],
                details=inspect.getdoc(getattr(module, name)) or "",
            )
        )
    return tuple(entries)


def load_experiment(name_or_path: str) -> Experiment:
    """Return the settings of an experiment.

    Args:
        name_or_path: a name of the catalogue, a path `my_experiment.py`, or
            `my_experiment.py:function` where the file has several.

    Raises:
        BadInput: there is no such experiment, or the file cannot be used.
    """
    path, _, wanted = name_or_path.partition(":")
    make: Callable[[], Any]
    if path.endswith(".py") or "/" in path:
        found = _experiment_functions(load_module(Path(path)))
        if wanted and wanted not in found:
            near = did_you_mean(wanted, found) or ", ".join(found)
            raise BadInput(
                f"no experiment {wanted} in {path}", remedy=f"did you mean {near}?"
            )
        if not found:
            raise BadInput(
                f"{path} has no experiment",
                rule="a function of the file says that it returns an Experiment",
                remedy="def mine() -> Experiment:  (from jaxdist)",
            )
        if not wanted and len(found) > 1:
            raise BadInput(
                f"{path} has several experiments",
                rule="one experiment is trained at a time",
                values=", ".join(found),
                remedy=[f"{path}:{name}" for name in found],
            )
        make = found[wanted or next(iter(found))]
    else:
        known = experiment_names()
        if name_or_path not in known:
            meant = did_you_mean(name_or_path, known)
            meant = f"did you mean {meant}? " if meant else ""
            raise BadInput(
                f"no experiment named {name_or_path}",
                remedy=meant + LIST_EXPERIMENTS_HINT,
            )
        # Only the module that is asked for is imported: the others may be slow.
        make = getattr(import_module(f"{EXPERIMENTS}.{name_or_path}"), name_or_path)
    config = call_user_function(name_or_path, make)
    # The annotation of a user's function is a claim, not a check.
    if not isinstance(config, Experiment):
        raise BadInput(
            f"{name_or_path} gives no experiment",
            rule=f"{make.__name__}() returns an Experiment",
            values=f"it returned {type(config).__name__}",
            remedy="return Experiment(name=..., ...)",
        )
    return name_run(config)


def name_run(config: Experiment) -> Experiment:
    """Return an experiment whose run has a name: at least the experiment's own."""
    if config.run.name:
        return config
    return replace(config, run=replace(config.run, name=config.name))


def has_experiment(module: ModuleType, name: str) -> bool:
    """Tell whether a file's function says that it returns an experiment."""
    return name in _experiment_functions(module)


def _experiment_functions(module: ModuleType) -> dict[str, Callable[[], Any]]:
    """Return the functions of a file that say they return an Experiment.

    The annotation is text where the file imports `annotations` from `__future__`.
    """
    return {
        name: function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        # Functions that the file has imported are not its experiments.
        if function.__module__ == module.__name__
        and function.__annotations__.get("return") in (Experiment, "Experiment")
        and not name.startswith("_")
    }
