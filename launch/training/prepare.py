"""Work: what a sitting of a run has before it, once its folder was looked through."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxdist.input.local_shuffle.setup import Keep
from jaxdist.input.registry import open_data
from jaxdist.launch.config.resolve import ResolvedConfig
from jaxdist.launch.devices.prepare import PreparedDevices
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.config_diff import check_resume, check_same_samples
from jaxdist.launch.run_folder.folder import (
    RunFolder,
    check_writable,
    run_folder,
    write_atomic,
)
from jaxdist.launch.run_folder.lockfile import (
    SampleFingerprints,
    fingerprint_samples,
    read_config_lock,
    write_config_lock,
)
from jaxdist.launch.training.auto_reduce import (
    AutoReduceResult,
    recorded_algorithm,
    select_algorithm,
)
from jaxdist.launch.training.host_cache import make_sample_store
from jaxdist.launch.training.job.batch_spec import feature_spec
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
    auto_reduce: AutoReduceResult
    """The settings and devices, with nothing left to a measurement."""
    sources: "tuple[Source, Source]"
    """Training and held-out samples."""
    sample_fingerprints: SampleFingerprints
    """The same, as the lock file has them."""
    sample_store: Keep | None
    """How this process keeps its samples."""

    def write_config(self, local_folder: RunFolder) -> None:
        """Write the values that it is trained with.

        Not earlier: a run that cannot go on keeps the values it was trained with.
        """
        write_config_lock(
            local_folder, self.auto_reduce.resolved, self.sample_fingerprints
        )
        write_atomic(local_folder.plan, self.auto_reduce.prepared.plan.to_json())


def prepare_run(
    resolved: ResolvedConfig, prepared: PreparedDevices, group: ProcessGroup
) -> PreparedRun:
    """Open what a configuration names; refuse what cannot run, with nothing written.

    Every process of the run calls it at the same time.

    Args:
        resolved: checked settings.
        prepared: the plan fitted to the devices.
        group: the process among those of its run.

    Raises:
        BadInput: it cannot run as asked.
    """
    folder = run_folder(resolved.config)
    with group.primary_first("folder and samples"):
        check_writable(folder.path)
        asked = recorded_algorithm(resolved, prepared, folder)
        sources, samples = _open_data(asked.resolved.config, folder)
    now = select_algorithm(asked, sources[0])
    job = make_job(now.resolved.config, now.prepared.plan, sources[0])
    return PreparedRun(
        job=job,
        folder=folder,
        auto_reduce=now,
        sources=sources,
        sample_fingerprints=samples,
        sample_store=make_sample_store(job, sources[0], group, folder.name),
    )


def _open_data(
    config: "Experiment", folder: RunFolder
) -> "tuple[tuple[Source, Source], SampleFingerprints]":
    """Open the samples of a run; refuse what does not go on with the run of before."""
    before = read_config_lock(folder) if folder.exists else None
    if before is not None:
        check_resume(before.resolved.config, config)
    sources = open_data(config.data, feature_spec(config))
    samples = fingerprint_samples(*sources)
    if before is not None:
        check_same_samples(before.sample_fingerprints, samples)
    return sources, samples
