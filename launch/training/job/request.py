"""Requests: what a command asks for, held against what its run has stored.

A run that begins has the configuration of its experiment. One that is resumed has its
own: what is typed on top is a change, which is said, and asked for where a result
follows.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from jaxdist.core.errors import BadInput
from jaxdist.core.object_reference import check_trusted_references
from jaxdist.launch.config.experiment import Experiment, load_experiment, name_run
from jaxdist.launch.config.plan_file import load_plan_overrides
from jaxdist.launch.config.resolve import (
    ResolvedConfig,
    apply_config_overrides,
    override_resolved,
    resolve_config,
)
from jaxdist.launch.config.tree import flatten_config, format_value, replace_values
from jaxdist.launch.run_folder.folder import RunFolder, read_json_object, run_folder
from jaxdist.launch.run_folder.lockfile import (
    ConfigChange,
    ConfigLock,
    RunOptions,
    check_accepted,
    check_resume,
    read_config_lock,
)
from jaxdist.launch.run_folder.next_commands import (
    cli_resume_command,
    resume_command,
)
from jaxdist.launch.run_folder.status import read_status_record
from jaxdist.launch.training.job.task_parts import TaskParts


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What a command line asks for."""

    experiment: str | Experiment
    """Name of an experiment, path of a file that has one, or its settings."""
    overrides: Sequence[str] = ()
    """Overrides, `key.sub=value`; they win over a plan file."""
    plan_file: str | None = None
    """Path of a plan to run."""
    cluster: str | None = None
    """The cluster that it runs on: a name, or the path of a file."""
    adapts: bool = False
    """Whether the run may change its plan while it goes."""
    profile: str | None = None
    """Steps to profile, as they were typed: `steps=10:15`."""
    run: RunFolder | None = None
    """The run that is resumed; None: that of the configuration, where it was begun."""
    trust: bool = False
    """Whether any code that the files of that run name is imported."""
    accepts_changes: bool = False
    """Whether a run that is resumed may be changed in what its result follows from."""
    command: Sequence[str] = ()
    """What was typed; empty: a `jaxdist train` that asks for the same."""
    parts: TaskParts = field(default_factory=TaskParts)
    """What a program hands over in place of settings."""

    @property
    def typed_command(self) -> tuple[str, ...]:
        """What was typed, or what could have been."""
        if self.command:
            return tuple(self.command)
        options = (
            ("--plan", self.plan_file),
            ("--profile", self.profile),
            ("--cluster", self.cluster),
        )
        given = [word for name, text in options if text for word in (name, text)]
        adapts = ["--adapt"] * self.adapts
        name = self.experiment_name
        return ("jaxdist", "train", name, *self.overrides, *given, *adapts)

    @property
    def experiment_name(self) -> str:
        """Name of the experiment, or the path of its file."""
        experiment = self.experiment
        return experiment if isinstance(experiment, str) else experiment.name

    def load(self) -> Experiment:
        """Return the settings of the experiment, without overrides."""
        if isinstance(self.experiment, Experiment):
            return name_run(self.experiment)
        return load_experiment(self.experiment)


@dataclass(frozen=True, kw_only=True)
class ResolvedRequest:
    """What a command asks for, with what the run that it resumes has stored."""

    request: JobRequest
    """What was asked for."""
    resolved: ResolvedConfig
    """The configuration: that of a run that is resumed, else the experiment's."""
    options: RunOptions
    """What the run has beside it, stored or asked for."""
    folder: RunFolder
    """The folder of the run."""
    stored: ConfigLock | None = None
    """What the run has stored; None where it begins."""
    changes: tuple[ConfigChange, ...] = ()
    """What is changed of it."""
    remarks: tuple[str, ...] = ()
    """What is to be said of the configuration, a sentence each."""
    algorithm: str = ""
    """All-reduce algorithm that the run has chosen as it began, where it is asked to
    choose."""

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended and nothing asks it to train for longer."""
        if self.stored is None:
            return False
        summary = read_json_object(self.folder.summary) or {}
        status, steps = read_status_record(self.folder.status), summary.get("steps")
        # A run that was made longer since, and then killed, still has the summary of
        # its shorter form. A checkpoint that was taken away is made again.
        saved = summary.get("checkpoint")
        return (
            summary.get("status") == "done"
            and isinstance(steps, int)
            and (status is None or steps >= status.steps)
            and self.resolved.config.epochs <= self.stored.resolved.config.epochs
            and (saved is None or (self.folder.checkpoints / str(saved)).exists())
        )


def resolve_request(
    request: JobRequest, *, for_training: bool = False
) -> ResolvedRequest:
    """Return the configuration of a request; a run that is resumed has its own.

    Args:
        request: what was asked for.
        for_training: whether a run begins or is resumed; else none is looked at.

    Raises:
        BadInput: everything that is wrong with the words, or a change of a run that
            cannot be, or that nobody has asked for.
    """
    from_file = load_plan_overrides(request.plan_file) if request.plan_file else ()
    # The last word for a key holds, so what is typed wins over the file.
    words = (*from_file, *request.overrides)
    options = RunOptions(
        plan_file=request.plan_file,
        profile=request.profile,
        cluster=request.cluster,
        adapts=request.adapts,
    )
    folder = _begun_run(request, words) if for_training else None
    if folder is None:
        resolved = resolve_config(request.experiment, words)
        place = run_folder(resolved.config)
        return ResolvedRequest(
            request=request, resolved=resolved, options=options, folder=place
        )

    lock = read_config_lock(folder)
    if lock.command[1:2] == ("import",):
        raise BadInput(
            f"{folder.name} has weights that were imported, and no optimizer",
            rule="a run resumes with the state of its optimizer; weights alone are "
            "what another run starts from",
            values=f"{folder.path} was made by jaxdist import",
            remedy=f"jaxdist train {lock.resolved.experiment} weights={folder.name} "
            f"run.name={folder.name}-2",
        )
    resolved, before = lock.resolved, lock.resolved.config
    remarks: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    if request.run is None:
        start = request.load()
        if start.name != before.name:
            raise BadInput(
                f"run {folder.name} is of another experiment",
                rule="a run resumes with the experiment that it was started with",
                values=f"{before.name}, now {start.name}",
                remedy=(
                    f"{resume_command(folder)} resumes it",
                    f"or start another run: run.name={folder.name}-2",
                ),
            )
        known = start.data.name, start.model.name
        if isinstance(request.experiment, Experiment):
            # A program says all of its settings each time, so that nothing which the
            # run's files name is imported: another network is refused as that.
            known = before.data.name, before.model.name
            resolved = resolve_config(request.experiment)
        else:
            remarks = _outdated_values(request.experiment, start, words, lock)
            resolved = replace(resolved, experiment=request.experiment)
    # Code that the typed experiment names itself is its own.
    named = {before.data.name, before.model.name}.difference(known)
    check_trusted_references(
        sorted(named),
        experiment=resolved.experiment,
        folder=folder.path,
        trust=request.trust,
        remedy="--trust",
    )
    # The folder may have been moved since: it is where it was found.
    if run_folder(before).path.resolve() != folder.path.resolve():
        where = {"run.dir": str(folder.path.parent), "run.name": folder.name}
        resolved = replace(resolved, config=replace_values(resolved.config, where))
    resolved = override_resolved(resolved, words)

    # A sum that was chosen by measurements holds for the whole run: the residuals in
    # its checkpoints are those of one algorithm.
    algorithm = ""
    if resolved.config.plan.reduce.algorithm == "auto":
        algorithm = before.plan.reduce.algorithm
        resolved = with_algorithm(resolved, algorithm)
    stored = lock.options
    options = RunOptions(
        plan_file=options.plan_file or stored.plan_file,
        profile=options.profile or stored.profile,
        cluster=options.cluster or stored.cluster,
        adapts=options.adapts or stored.adapts,
    )
    changes = check_resume(before, resolved.config)
    if not request.accepts_changes:
        # A run that adapts changes its plan by itself, so that of its first command is
        # an old one.
        own = ("plan.", "optim.accumulate") if options.adapts else ()
        asked = [change for change in changes if not change.key.startswith(own)]
        again = cli_resume_command(folder)
        check_accepted(asked, folder.name, again, experiment=resolved.experiment)
    return ResolvedRequest(
        request=request,
        resolved=resolved,
        options=options,
        folder=folder,
        stored=lock,
        changes=changes,
        remarks=remarks,
        algorithm=algorithm,
    )


def _begun_run(request: JobRequest, words: Sequence[str]) -> RunFolder | None:
    """Return the run that a request resumes; None where it begins one."""
    if request.run is not None:
        return request.run
    place = [word for word in words if word.startswith(("run.name=", "run.dir="))]
    # What is wrong with the experiment or the words is told by who reads all of them.
    with suppress(BadInput):
        config, _ = apply_config_overrides(
            request.load(), place, experiment=request.experiment_name
        )
        folder = run_folder(config)
        return folder if folder.has_run else None
    return None


def _outdated_values(
    name: str, start: Experiment, words: Sequence[str], lock: ConfigLock
) -> tuple[str, ...]:
    """Say which values an experiment has now that its run has otherwise."""
    typed = {word.partition("=")[0] for word in words}
    now, before = flatten_config(start), lock.resolved
    changed = [
        f"{key} {format_value(now[key])}, the run's {format_value(value)}"
        for key, value in flatten_config(before.config).items()
        if now[key] != value
        and before.sources.get(key) != "command line"
        and key not in typed
        and not key.startswith(("run.", "plan.reduce.algorithm"))
    ]
    if not changed:
        return ()
    named = f"{name} has other values by now: {'; '.join(changed)}"
    return (f"{named}; the run keeps its own",)


def with_algorithm(resolved: ResolvedConfig, algorithm: str) -> ResolvedConfig:
    """Return a configuration with an all-reduce algorithm that was chosen for it."""
    config = replace_values(resolved.config, {"plan.reduce.algorithm": algorithm})
    return replace(resolved, config=config)
