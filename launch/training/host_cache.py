"""Kept: the samples that each host of a run keeps, as its settings ask for."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from jaxdist.input.config import DataConfig
from jaxdist.input.device_put import rows_held
from jaxdist.input.local_shuffle.setup import (
    Keep,
    check_rows,
    check_threads,
)
from jaxdist.launch.distributed.network_interface import between_hosts
from jaxdist.launch.distributed.process_group import ProcessGroup
from jaxdist.launch.run_folder.folder import check_writable
from jaxdist.launch.training.job.job import Job

if TYPE_CHECKING:
    from jaxdist.input.sources import Source

_PLACES: Final = {"memory": "in memory", "disk": "on disk"}
_BRINGS: Final = {"origin": "the data set", "peers": "peers"}


def keep_for(job: Job, source: "Source", mine: ProcessGroup, name: str) -> Keep | None:
    """Return how this process keeps samples; None where it keeps none.

    Every process of the run calls it at the same time, before anything is written.

    Args:
        job: what runs.
        source: the training samples.
        mine: the processes.
        name: of the run; its samples have a folder of their own.

    Raises:
        BadInput: samples that these processes cannot keep, a folder that cannot be
            written, or no such interface.
    """
    data = job.config.data
    if data.store == "none":
        return None
    check_threads(data.readers)
    shardings = job.layout.batch(job.layout.shapes)
    check_rows(source, job.order, rows_held(shardings.values(), job.order.batch))
    own = Path(data.store_dir) / name if data.store == "disk" else None
    if own is not None:
        check_writable(own, key="data.store_dir")
    return Keep(
        folder=own,
        interface=between_hosts(mine, data.interface)
        if data.exchange == "peers"
        else "",
    )


def kept_words(data: DataConfig) -> str:
    """Say where samples are kept and who brings what comes; empty: nowhere.

    >>> kept_words(DataConfig(store="memory", exchange="peers"))
    '; kept in memory, brought by peers'
    """
    if data.store == "none":
        return ""
    return f"; kept {_PLACES[data.store]}, brought by {_BRINGS[data.exchange]}"
