"""Kept: the samples that each host of a run keeps, as its settings ask for."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from jaxdist.input.config import DataConfig
from jaxdist.input.device_put import local_rows
from jaxdist.input.local_shuffle.setup import (
    Keep,
    check_local_rows,
    check_no_workers,
)
from jaxdist.launch.distributed.network_interface import peer_facing_address
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.folder import check_writable
from jaxdist.launch.training.job.job import Job

if TYPE_CHECKING:
    from jaxdist.input.sources import Source

_STORE_TEXT: Final = {"memory": "in memory", "disk": "on disk"}
_EXCHANGE_TEXT: Final = {"origin": "the data set", "peers": "peers"}


def make_sample_store(
    job: Job, source: "Source", group: ProcessGroup, run_name: str
) -> Keep | None:
    """Return how this process keeps samples; None where it keeps none.

    Every process of the run calls it at the same time, before anything is written.

    Args:
        job: what runs.
        source: the training samples.
        group: the processes.
        run_name: of the run; its samples have a folder of their own.

    Raises:
        BadInput: samples that these processes cannot keep, a folder that cannot be
            written, or no such interface.
    """
    data = job.config.data
    if data.store == "none":
        return None
    check_no_workers(data.prefetch_workers)
    shardings = job.layout.batch_shardings(job.layout.batch_shapes)
    check_local_rows(source, job.order, local_rows(shardings.values(), job.order.batch))
    own = Path(data.store_dir) / run_name if data.store == "disk" else None
    if own is not None:
        check_writable(own, key="data.store_dir")
    return Keep(
        folder=own,
        interface=peer_facing_address(group, data.interface)
        if data.exchange == "peers"
        else "",
    )


def sample_store_text(data: DataConfig) -> str:
    """Say where samples are kept and who brings what comes; empty: nowhere.

    >>> sample_store_text(DataConfig(store="memory", exchange="peers"))
    '; kept in memory, brought by peers'
    """
    if data.store == "none":
        return ""
    return (
        f"; kept {_STORE_TEXT[data.store]}, brought by {_EXCHANGE_TEXT[data.exchange]}"
    )
