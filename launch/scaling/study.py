"""A study: its settings checked against everything that is known beforehand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.validation import json_text
from jaxdist.input.registry import open_data
from jaxdist.launch.config import Experiment
from jaxdist.launch.config.aliases import rename_overrides
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    check_writable,
    read_json_object,
)
from jaxdist.launch.scaling.grid import (
    ScalingGrid,
    ScalingRun,
    plan_overrides,
    scaling_runs,
)
from jaxdist.launch.scaling.placement import ScalingPlacement
from jaxdist.launch.scaling.run_metrics import MIN_STEPS
from jaxdist.launch.training.job.batch_spec import feature_spec

_STUDY_KEYS: Final = {
    "data.batch": "--batch 64",
    "plan.mesh": "--processes 1,2,4",
    "plan.reduce.algorithm": "--algorithms ring",
    "run.name": "-o FOLDER",
    "run.dir": "-o FOLDER",
}
"""Keys that a study sets itself, and what is typed instead."""


@dataclass(frozen=True, kw_only=True)
class ScalingStudy:
    """What is run, with nothing left to decide."""

    experiment: str
    """Name or file of the experiment."""
    overrides: tuple[str, ...]
    """Overrides of all runs."""
    config: Experiment
    """The experiment with these."""
    grid: ScalingGrid
    """What is varied."""
    placement: ScalingPlacement
    """Where."""
    folder: Path
    """Where its files go, with a folder for each run."""
    samples: int
    """Training samples of an epoch, real or synthetic."""

    @property
    def runs(self) -> tuple[ScalingRun, ...]:
        """The runs, in their order."""
        return scaling_runs(self.grid)

    def run_folder(self, cell: ScalingRun) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self.folder / cell.name)

    def log_path(self, cell: ScalingRun) -> Path:
        """Return the file of the output of a run's processes."""
        return self.folder / f"{cell.name}.log"

    def run_overrides(self, run: ScalingRun) -> tuple[str, ...]:
        """Return the overrides of one run."""
        # As many random samples as there are real ones: epochs stay comparable.
        made_up = ("data.name=synthetic", f"data.samples={self.samples}")
        return (
            *self.overrides,
            f"data.batch={run.batch}",
            *plan_overrides(self.config.plan, run),
            *(made_up if run.input == "synthetic" else ()),
            f"run.dir={self.folder}",
            f"run.name={run.name}",
        )

    def shared_settings(self) -> dict[str, Any]:
        """Return the settings that all runs of the study's folder have in common."""
        return {
            "experiment": self.experiment,
            "words": list(self.overrides),
            "place": self.placement.name,
            "rate": self.placement.link_rate,
            "cores": self.placement.cores,
            "samples": self.samples,
        }

    def write_manifest(self) -> None:
        """Write these settings into the folder, to compare with a later study there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json_text(self.shared_settings(), indent=2)
        write_atomic(_manifest_path(self.folder), text + "\n")


def study_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides of all runs: those that were typed, after one epoch.

    Raises:
        BadInput: a key that the study sets itself.
    """
    for word in overrides:
        key = word.partition("=")[0]
        for own, remedy in _STUDY_KEYS.items():
            if key == own or key.startswith(f"{own}."):
                raise BadInput(
                    f"the study sets {own} itself",
                    rule="the runs of a study differ in what is varied alone",
                    values=word,
                    remedy=remedy,
                )
    # First, so that a number of epochs that is typed wins.
    return "epochs=1", *overrides


def make_study(
    experiment: str,
    overrides: tuple[str, ...],
    config: Experiment,
    grid: ScalingGrid,
    placement: ScalingPlacement,
    folder: Path,
) -> ScalingStudy:
    """Return a study that can run as far as is known beforehand.

    Args:
        experiment: name or file.
        overrides: overrides of all runs.
        config: the experiment with these.
        grid: what is varied.
        placement: where.
        folder: where its files go; a run that is complete there is not run again.

    Raises:
        BadInput: a run would be refused or too short, or the folder holds other files.
    """
    # Everything that can be refused is refused here, before hours of runs.
    check_writable(folder, key="-o")
    study = ScalingStudy(
        experiment=experiment,
        overrides=overrides,
        config=config,
        grid=grid,
        placement=placement,
        folder=folder,
        samples=config.data.samples,
    )
    # Only the data itself tells how many samples it has, which decides the steps.
    if "real" in grid.inputs:
        train, _ = open_data(config.data, feature_spec(config))
        study = replace(study, samples=len(train))
    for cell in study.runs:
        steps = int(config.epochs * study.samples / cell.batch)
        enough = cell.batch <= study.samples
        if not enough or steps < MIN_STEPS:
            # More epochs help only where an epoch has a step at all.
            epochs = -(-MIN_STEPS * cell.batch // study.samples)
            each = max(study.samples // MIN_STEPS // cell.processes, 1)
            batch = each * cell.processes
            raise BadInput(
                f"a run of {steps} steps cannot be measured",
                rule=f"a run of a study has at least {MIN_STEPS} steps, of different "
                "samples each",
                values=f"batch {cell.batch}, {study.samples:,} samples, "
                f"epochs = {config.epochs}",
                remedy=f"epochs={epochs}" if enough else f"--batch {batch}",
            )
        # Resolving refuses whatever `train` would, before the first run has begun.
        resolved = resolve_config(experiment, study.run_overrides(cell))
        if cell.input == "synthetic":
            open_data(resolved.config.data, feature_spec(resolved.config))

    before, now = read_json_object(_manifest_path(folder)), study.shared_settings()
    if before is not None and "words" in before:
        # A study of an older version may have keys under their old names.
        before["words"] = rename_overrides(before["words"])[0]
    if before is None and folder.exists() and any(folder.iterdir()):
        raise BadInput(
            f"{folder} holds other files",
            rule="a study has a folder of its own",
            remedy="-o FOLDER",
        )
    # Runs that are there already are not made again, so they must be of this study.
    differ = [k for k in now if before is not None and before.get(k) != now[k]]
    if before is not None and differ:
        raise BadInput(
            f"{folder} holds another study",
            rule="the runs of a folder differ in what is varied alone",
            values="; ".join(f"{k}: {before.get(k)}, now {now[k]}" for k in differ),
            remedy="-o FOLDER",
        )
    return study


def _manifest_path(folder: Path) -> Path:
    return folder / "study.json"
