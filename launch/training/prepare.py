"""Work: what a sitting of a run has before it, once its folder was looked through."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxdist.input.local_shuffle.setup import Keep
from jaxdist.input.registry import open_data
from jaxdist.launch.config.provenance import ResolvedConfig
from jaxdist.launch.devices.prepare import PreparedDevices
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.config_diff import check_resume, check_samples
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    check_writable,
    folder_of,
    write_whole,
)
from jaxdist.launch.run_folder.lockfile import (
    SampleFingerprints,
    read_lock,
    samples_of,
    write_lock,
)
from jaxdist.launch.training.auto_reduce import AutoReduceResult, recorded, settled
from jaxdist.launch.training.host_cache import keep_for
from jaxdist.launch.training.job.batch_spec import wanted
from jaxdist.launch.training.job.job import Job, make_job

if TYPE_CHECKING:
    from jaxdist.input.sources import Source
    from jaxdist.launch.config import Experiment


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """What a sitting has before it."""

    job: Job
    """What runs."""
    folder: RunFolder
    """Of the run."""
    now: AutoReduceResult
    """The settings and devices, with nothing left to a measurement."""
    sources: "tuple[Source, Source]"
    """Training and held-out samples."""
    samples: SampleFingerprints
    """The same, as the lock file has them."""
    keep: Keep | None
    """How this process keeps its samples."""

    def write(self, own: RunFolder) -> None:
        """Write the values that it is trained with.

        Not earlier: a run that cannot go on keeps the values it was trained with.
        """
        write_lock(own, self.now.resolved, self.samples)
        write_whole(own.plan, self.now.prepared.plan.to_json())


def looked_through(
    resolved: ResolvedConfig, prepared: PreparedDevices, mine: ProcessGroup
) -> PreparedRun:
    """Open what a configuration names; refuse what cannot run, with nothing written.

    Every process of the run calls it at the same time.

    Args:
        resolved: checked settings.
        prepared: the plan fitted to the devices.
        mine: the process among those of its run.

    Raises:
        BadInput: it cannot run as asked.
    """
    folder = folder_of(resolved.config)
    with mine.in_turn("folder and samples"):
        check_writable(folder.path)
        asked = recorded(resolved, prepared, folder)
        sources, samples = _opened(asked.resolved.config, folder)
    now = settled(asked, sources[0])
    job = make_job(now.resolved.config, now.prepared.plan, sources[0])
    return PreparedRun(
        job=job,
        folder=folder,
        now=now,
        sources=sources,
        samples=samples,
        keep=keep_for(job, sources[0], mine, folder.name),
    )


def _opened(
    config: "Experiment", folder: RunFolder
) -> "tuple[tuple[Source, Source], SampleFingerprints]":
    """Open the samples of a run; refuse what does not go on with the run of before."""
    before = read_lock(folder) if folder.exists else None
    if before is not None:
        check_resume(before.resolved.config, config)
    sources = open_data(config.data, wanted(config))
    samples = samples_of(*sources)
    if before is not None:
        check_samples(before.data, samples)
    return sources, samples
