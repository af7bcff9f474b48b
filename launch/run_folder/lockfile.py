"""The lock file of a run: its configuration, versions, samples and attempts.

A run that is resumed reads it: it trains with the configuration that is stored there,
says what is changed of it, and refuses settings that would make it another run.
"""

import hashlib
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.object_reference import check_trusted_references
from jaxdist.core.records import known_fields, parse_record, parse_value
from jaxdist.core.validation import check_required_fields, json_text, parse_json
from jaxdist.core.version import VERSION
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.aliases import current_key, old_keys
from jaxdist.launch.config.resolve import ResolvedConfig, format_override
from jaxdist.launch.config.tree import (
    flatten_config,
    format_value,
    key_types,
    nearest_key,
    replace_values,
)
from jaxdist.launch.run_folder.folder import RunFolder, read_run_file
from jaxdist.pipeline.plan_schedule import updates_per_step

if TYPE_CHECKING:
    from jaxdist.input.sources import Source

SampleFingerprints = Mapping[str, str]
"""Parts of a data set, `train` and `test`, each with its count and its fingerprint."""
_NO_FINGERPRINTS: Final[SampleFingerprints] = MappingProxyType({})
TRACKED_PACKAGES: Final = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "tensorflow-datasets",
    "array-record",
    "numpy",
)
"""Packages whose version can change what a run computes."""
RESUME_FIXED_KEYS: Final = (
    *("name", "seed", "precision", "weights", "model.", "lora."),
    *("data.name", "data.batch", "data.path", "data.context", "data.stride"),
    *("data.size", "data.samples", "data.order", "data.corrupt_images"),
    *("plan.reduce.", "plan.outer.", "plan.mesh.replica", "plan.shuffle."),
)
"""Keys (or their beginnings) that a run keeps: they fix its state and its samples."""
# Those that change nothing are listed, not those that do: a key that is added counts as
# a change of the result until somebody has thought about it.
RESULT_NEUTRAL_KEYS: Final = (
    *("run.", "track", "checkpoint.", "audit"),
    *("data.dir", "data.threads", "data.workers"),
    *("data.check", "data.cache", "data.exchange", "data.interface"),
)
"""Keys (or their beginnings) that change no number of what a run computes."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run was started with beside its configuration."""

    plan_file: str | None = None
    """Path of the plan that it was given."""
    profile: str | None = None
    """Steps to profile, as they were typed: `steps=10:15`."""
    cluster: str | None = None
    """Name of the cluster that it runs on, or path of its file."""
    adapts: bool = False
    """Whether it may change its plan while it goes."""


@dataclass(frozen=True, kw_only=True)
class AttemptRecord:
    """One start of a run: from which step, and what was changed for it."""

    step: int
    """Steps that were done before."""
    time: float | None = None
    """When its settings were accepted, Unix seconds; None: not recorded."""
    command: Sequence[str] = ()
    """What was typed; empty: not recorded."""
    changes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Old and new value by key."""
    packages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Old and new version by package."""

    def __post_init__(self) -> None:
        pairs = {**self.changes, **self.packages}
        wrong = [key for key, pair in pairs.items() if len(pair) != 2]
        if wrong:
            raise BadInput(
                f"the change of {wrong[0]} cannot be read",
                rule="a change is an old and a new value",
                values=f"{wrong[0]}: {list(pairs[wrong[0]])}",
                remedy=f'"{wrong[0]}": [OLD, NEW]',
            )

    @property
    def all_changes(self) -> "tuple[ConfigChange, ...]":
        """Every key and package that was changed."""
        # JSON has lists in the place of tuples.
        return tuple(
            ConfigChange(
                key=key,
                old=tuple(old) if isinstance(old, list) else old,
                new=tuple(new) if isinstance(new, list) else new,
            )
            for key, (old, new) in {**self.changes, **self.packages}.items()
        )


@dataclass(frozen=True, kw_only=True)
class _LockedValue:
    """A value of the configuration, as a lock file has it."""

    value: Any
    by: str


@dataclass(frozen=True, kw_only=True)
class _LockFile:
    """The tables of a lock file."""

    experiment: str
    values: Mapping[str, _LockedValue]
    packages: Mapping[str, str]
    data: SampleFingerprints = field(default_factory=lambda: _NO_FINGERPRINTS)
    command: Sequence[str] = ()
    options: RunOptions = field(default_factory=RunOptions)
    attempts: Sequence[AttemptRecord] = ()


@dataclass(frozen=True, kw_only=True)
class ConfigLock:
    """What `config.lock.json` says."""

    resolved: ResolvedConfig
    """The configuration, with the origin of every value."""
    packages: Mapping[str, str]
    """Version of every package that matters."""
    sample_fingerprints: SampleFingerprints = field(
        default_factory=lambda: _NO_FINGERPRINTS
    )
    """The samples by part, as `fingerprint_samples` names them; empty: not written."""
    command: tuple[str, ...] = ()
    """What was typed to start the run; empty: not recorded."""
    options: RunOptions = field(default_factory=RunOptions)
    """What it was started with beside its configuration."""
    attempts: tuple[AttemptRecord, ...] = ()
    """Each start of the run, oldest first; empty: not recorded."""


def installed_versions() -> dict[str, str]:
    """Return the versions of jaxdist and of the packages that matter to a run."""
    found = {"jaxdist": VERSION}
    for package in TRACKED_PACKAGES:
        try:
            # Read from the metadata of the package: to import all of them takes
            # seconds.
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def fingerprint_samples(train: "Source", validation: "Source") -> SampleFingerprints:
    """Name the samples of a run: another content or order is another name."""

    found = {}
    for part, source in (("train", train), ("test", validation)):
        # The fingerprint of a user's source may be any text, and differ only at its
        # end, so it is hashed before it is cut.
        digest = hashlib.sha256(source.fingerprint.encode()).hexdigest()
        found[part] = f"{len(source):,} samples, {digest[:16]}"
    return found


def write_config_lock(
    folder: RunFolder,
    resolved: ResolvedConfig,
    sample_fingerprints: SampleFingerprints = _NO_FINGERPRINTS,
    *,
    command: Sequence[str] = (),
    options: RunOptions | None = None,
    step: int = 0,
) -> None:
    """Write the lock file of a run, with the versions that are installed now.

    Args:
        folder: of the run; what its lock file says of earlier attempts is kept.
        resolved: the configuration.
        sample_fingerprints: the samples by part.
        command: what was typed for this attempt.
        options: what the run has beside its configuration; None: as before.
        step: steps that were done before this attempt.
    """
    before = read_config_lock(folder) if folder.has_run else None
    lock = ConfigLock(
        resolved=resolved,
        packages=installed_versions(),
        sample_fingerprints=sample_fingerprints,
        command=tuple(command),
        options=options or (before.options if before else RunOptions()),
    )
    attempts: tuple[AttemptRecord, ...] = ()
    changes: tuple[ConfigChange, ...] = ()
    packages: tuple[ConfigChange, ...] = ()
    if before is not None:
        # The command that started the run: attempts have records of their own.
        lock = replace(lock, command=before.command)
        # A run of an older version had an attempt too, of which nothing is known.
        attempts = before.attempts or (AttemptRecord(step=0, command=before.command),)
        changes = changed_keys(before.resolved.config, resolved.config)
        packages = changed_packages(before, lock)
    now = AttemptRecord(
        step=step,
        time=time.time(),
        command=tuple(command),
        changes={each.key: (each.old, each.new) for each in changes},
        packages={each.key: (each.old, each.new) for each in packages},
    )
    lock = replace(lock, attempts=(*attempts, now))
    write_atomic(folder.config_lock, lock_to_json(lock))


def read_config_lock(folder: RunFolder) -> ConfigLock:
    """Read the configuration of a run back.

    Raises:
        BadInput: the file is damaged, or has a key that this version does not know.
    """
    return read_run_file(folder.config_lock, lock_from_json)


def read_trusted_config(folder: RunFolder, *, trust: bool) -> ConfigLock:
    """Read the configuration of a run whose network and data are to be used.

    Raises:
        BadInput: as `read_config_lock`, or the configuration names code that is neither
            jaxdist's nor the experiment's own file, and `trust` is not given.
    """
    lock = read_config_lock(folder)
    config = lock.resolved.config
    check_trusted_references(
        (config.data.name, config.model.name),
        experiment=lock.resolved.experiment,
        folder=folder.path,
        trust=trust,
        remedy="--trust",
    )
    return lock


def lock_to_json(lock: ConfigLock) -> str:
    """Write a lock as text; `lock_from_json` reads the same value back."""
    resolved = lock.resolved
    tree = {
        "experiment": resolved.experiment,
        "values": {
            key: {"value": value, "by": resolved.sources[key]}
            for key, value in flatten_config(resolved.config).items()
        },
        "packages": dict(lock.packages),
        "data": dict(lock.sample_fingerprints),
        "command": list(lock.command),
        "options": asdict(lock.options),
        "attempts": [asdict(each) for each in lock.attempts],
    }
    return json_text(tree, indent=2) + "\n"


def lock_from_json(text: str) -> ConfigLock:
    """Read a lock that `lock_to_json` wrote; keys that are newer than it get their
    default, and those that were renamed since their new name.

    Raises:
        BadInput: a key that this version does not have, or one under both names.
    """
    tree = parse_record(
        _LockFile, known_fields(_LockFile, parse_json(text)), "the lock file"
    )
    known = key_types(Experiment)
    # Refuses a key that is there under both its names.
    old_keys(tree.values)
    values = {current_key(key): row for key, row in tree.values.items()}
    for key in values:
        if key not in known:
            # A key that was dropped, or is of a later version: a guess would train
            # another network under the same name.
            version = tree.packages.get("jaxdist", "unknown")
            near = nearest_key(key, known)
            raise BadInput(
                f"the lock file has an unknown key {key}",
                rule="this version knows every key of the run",
                values=f"written by jaxdist {version}, read by {VERSION}"
                + (f"; nearest key: {near}" if near else ""),
                remedy=f"pip install jaxdist=={version}",
            )
    found = {
        key: parse_value(known[key], row.value, key, "the lock file")
        for key, row in values.items()
    }
    check_required_fields(found, ["name"], "the lock file")
    # Keys that are newer than the file have their defaults, and count as such.
    blank = Experiment(name=str(found["name"]))
    origins: dict[str, Any] = dict.fromkeys(flatten_config(blank), "default")
    origins |= {key: row.by for key, row in values.items()}
    resolved = ResolvedConfig(
        experiment=tree.experiment,
        config=replace_values(blank, found),
        sources=origins,
    )
    return ConfigLock(
        resolved=resolved,
        packages=tree.packages,
        sample_fingerprints=tree.data,
        command=tuple(tree.command),
        options=tree.options,
        attempts=tuple(
            replace(
                each,
                changes={current_key(key): pair for key, pair in each.changes.items()},
            )
            for each in tree.attempts
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ConfigChange:
    """A key with two values."""

    key: str
    """Key of the configuration, or name of a package."""
    old: Any
    """Value in the first configuration."""
    new: Any
    """Value in the second one."""

    @property
    def text(self) -> str:
        """The change in words: `epochs 30, now 40`."""
        return f"{self.key} {format_value(self.old)}, now {format_value(self.new)}"


def changed_keys(old: Experiment, new: Experiment) -> tuple[ConfigChange, ...]:
    """Return the keys whose values differ, in the order of the tree."""
    return _differences(flatten_config(old), flatten_config(new))


def changed_packages(old: ConfigLock, new: ConfigLock) -> tuple[ConfigChange, ...]:
    """Return the packages whose versions differ."""
    return _differences(old.packages, new.packages)


def check_resume(old: Experiment, new: Experiment) -> tuple[ConfigChange, ...]:
    """Return what a resumed run changes, all of it allowed.

    Raises:
        BadInput: a changed key that the state or the order of the samples rests on, or
            weights that would move more often, or less, in a step.
    """
    # Everything else may change: a run may be prolonged, moved to other devices, or be
    # saved more often.
    changes = changed_keys(old, new)
    rename = format_override("run.name", f"{new.run.name}-2")
    # The learning rate and the moments of the optimizer are counted in updates, and a
    # schedule without a flush makes several in a step.
    was, now = (
        updates_per_step(each.plan, each.optim.accumulate) for each in (old, new)
    )
    if was != now:
        schedule, count = old.plan.pipe.schedule, old.optim.accumulate
        raise BadInput(
            "the run was started with another number of updates a step",
            rule="a resumed run moves its weights as often in a step as before, once "
            "or, with a schedule without a flush, several times",
            values=f"{was} with plan.pipe.schedule = {schedule}, "
            f"optim.accumulate = {count}; now {now} with "
            f"{new.plan.pipe.schedule}, {new.optim.accumulate}",
            remedy=(
                f"plan.pipe.schedule={schedule} optim.accumulate={count}",
                f"or start another run: {rename}",
            ),
        )
    barred = [change for change in changes if change.key.startswith(RESUME_FIXED_KEYS)]
    if not barred:
        return changes
    raise BadInput(
        f"the run was started with another {barred[0].key}",
        rule="a resumed run keeps its network, its samples, its number format, and "
        "how its devices sum",
        values="; ".join(change.text for change in barred),
        remedy=[
            " ".join(format_override(change.key, change.old) for change in barred),
            f"or start another run: {rename}",
        ],
    )


def result_changes(changes: Iterable[ConfigChange]) -> tuple[ConfigChange, ...]:
    """Return those of the changes that can change a number of what a run computes."""
    return tuple(
        change for change in changes if not change.key.startswith(RESULT_NEUTRAL_KEYS)
    )


def check_accepted(
    changes: Iterable[ConfigChange], name: str, again: str, *, experiment: str
) -> None:
    """Refuse changes of a run's result that nobody has asked for.

    Args:
        changes: of a run that is resumed.
        name: of the run.
        again: the command that resumes it.
        experiment: its name or file, as it is typed.

    Raises:
        BadInput: a change that can change a number of what the run computes.
    """
    # The layout is among them: in float32 layouts drift apart.
    asked = result_changes(changes)
    if not asked:
        return
    words = " ".join(format_override(change.key, change.new) for change in asked)
    rename = format_override("run.name", f"{name}-2")
    raise BadInput(
        f"run {name} was started with another {asked[0].key}",
        rule="a resumed run keeps its own configuration; what changes its result is "
        "asked for with --change",
        values="; ".join(change.text for change in asked),
        remedy=(
            f"{again} resumes it as it was",
            f"{again} {words} --change changes it from here on",
            f"jaxdist train {shlex.quote(experiment)} {rename} ... starts another run",
        ),
    )


def check_same_samples(old: SampleFingerprints, new: SampleFingerprints) -> None:
    """Refuse to resume with other samples than a run was started with.

    Args:
        old: what its lock file says; a part that it does not name may be any.
        new: what was opened.

    Raises:
        BadInput: the part of the data set that is another one.
    """
    # A lock of an older version names no parts: then any samples are accepted.
    changed = [part for part, name in old.items() if new.get(part, name) != name]
    if changed:
        raise BadInput(
            f"the {changed[0]} samples are not those that the run was started with",
            rule="a resumed run keeps its samples and their order",
            values="; ".join(f"{p}: {old[p]}, now {new[p]}" for p in changed),
            remedy=(
                "data.dir=, data.path= or data.name= as they were",
                "or start another run: run.name=NAME",
            ),
        )


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> tuple[ConfigChange, ...]:
    return tuple(
        ConfigChange(key=key, old=old.get(key), new=new.get(key))
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    )
