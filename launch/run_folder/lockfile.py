"""The lock file: every value of a run's configuration, who set it, and the versions."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import jaxdist
from jaxdist.core.errors import BadInput
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.config.tree import (
    flatten_config,
    key_types,
    nearest_key,
    replace_values,
)
from jaxdist.launch.config.value_text import is_sequence_type
from jaxdist.launch.run_folder.folder import RunFolder, write_atomic

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


def installed_versions() -> dict[str, str]:
    """Return the versions of jaxdist and of the packages that matter to a run."""
    found = {"jaxdist": jaxdist.__version__}
    for package in TRACKED_PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def fingerprint_samples(train: "Source", validation: "Source") -> SampleFingerprints:
    """Name the samples of a run: another content or order is another name."""

    def named(source: "Source") -> str:
        # A fingerprint of one's own may be any text, and differ at its end alone.
        digest = hashlib.sha256(source.fingerprint.encode()).hexdigest()
        return f"{len(source):,} samples, {digest[:16]}"

    return {"train": named(train), "test": named(validation)}


def write_config_lock(
    folder: RunFolder,
    resolved: ResolvedConfig,
    sample_fingerprints: SampleFingerprints = _NO_FINGERPRINTS,
) -> None:
    """Write the lock file of a run, with the versions that are installed now."""
    write_atomic(
        folder.config_lock,
        lock_to_json(resolved, installed_versions(), sample_fingerprints),
    )


def read_config_lock(folder: RunFolder) -> ConfigLock:
    """Read the configuration of a run back.

    Raises:
        BadInput: the file is damaged, or has a key that this version does not know.
    """
    try:
        return lock_from_json(folder.config_lock.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder.config_lock} is damaged",
            rule="a lock file is the JSON that jaxdist train wrote",
            values=f"{type(error).__name__}: {error}",
            remedy="run.name=NAME starts a new run",
        ) from error


def lock_to_json(
    resolved: ResolvedConfig,
    packages: Mapping[str, str],
    sample_fingerprints: SampleFingerprints = _NO_FINGERPRINTS,
) -> str:
    """Write a lock as text; `lock_from_json` reads the same value back."""
    tree = {
        "experiment": resolved.experiment,
        "values": {
            key: {"value": value, "by": resolved.sources[key]}
            for key, value in flatten_config(resolved.config).items()
        },
        "packages": dict(packages),
        "data": dict(sample_fingerprints),
    }
    return json.dumps(tree, indent=2) + "\n"


def lock_from_json(text: str) -> ConfigLock:
    """Read a lock that `lock_to_json` wrote; keys that are newer than it get their
    default.

    Raises:
        BadInput: a key that this version does not have.
    """
    tree = json.loads(text)
    known = key_types(Experiment)
    for key in tree["values"]:
        if key not in known:
            raise _unknown_key_error(key, tree["packages"].get("jaxdist", "unknown"))
    found = {
        key: tuple(row["value"]) if is_sequence_type(known[key]) else row["value"]
        for key, row in tree["values"].items()
    }
    blank = Experiment(name=str(found["name"]))
    origins: dict[str, Any] = dict.fromkeys(flatten_config(blank), "default")
    origins |= {key: row["by"] for key, row in tree["values"].items()}
    resolved = ResolvedConfig(
        experiment=tree["experiment"],
        config=replace_values(blank, found),
        sources=origins,
    )
    return ConfigLock(
        resolved=resolved,
        packages=tree["packages"],
        sample_fingerprints=tree.get("data", {}),
    )


def _unknown_key_error(key: str, version: str) -> BadInput:
    near = nearest_key(key, key_types(Experiment))
    return BadInput(
        f"the lock file has an unknown key {key}",
        rule="this version knows every key of the run",
        values=f"written by jaxdist {version}, read by {jaxdist.__version__}"
        + (f"; nearest key: {near}" if near else ""),
        remedy=f"pip install jaxdist=={version}",
    )
