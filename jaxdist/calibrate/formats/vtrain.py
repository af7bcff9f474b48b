"""`vtrain`: step times of GPT on A100 clusters, a row a layout.

Columns as in the CSV files of github.com/VIA-Research/vTrain (MIT licence): # GPUs,
global batch, micro batch, hidden size, attention heads, # layers, sequence length,
tensor, data and pipeline parallelism, iteration time in ms. The schedule is 1F1B.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jaxdist.calibrate.formats.rates import MEGATRON_CONSTANTS, megatron_rates
from jaxdist.calibrate.measured_rows import FreeConstant, MeasuredRow
from jaxdist.calibrate.table import (
    normalize_name,
    positive_float,
    positive_int,
    read_csv,
    require_columns,
)
from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.oracle.published.megatron.model import (
    MegatronLayout,
    MegatronModel,
    Recompute,
)
from jaxdist.oracle.published.megatron.step import megatron_step

_TIME: Final = "iteration time (ms)"
_COLUMNS: Final = {
    "# GPUs": "devices",
    "global batch": "batch",
    "micro batch": "microbatch",
    "hidden size": "hidden",
    "attention heads": "heads",
    "# layers": "layers",
    "sequence length": "sequence",
    "tensor parallelism": "tensor",
    "data parallelism": "data",
    "pipeline parallelism": "pipe",
}
# GPT-2's.
_VOCAB_SIZE: Final = 50_257
_RECOMPUTE: Final[Mapping[str, Recompute]] = {
    "none": "none",
    "selective": "selective",
    "full": "full",
}


@dataclass(frozen=True)
class VTrainFormat:
    """Rows of vTrain, predicted by `jaxdist.oracle.published.megatron`."""

    name: str = "vtrain"
    cluster: str = "vtrain-a100"
    constants: tuple[FreeConstant, ...] = MEGATRON_CONSTANTS

    def matches(self, header: Sequence[str]) -> bool:
        """Return whether a header has all columns of the format."""
        return {*_COLUMNS, _TIME} <= set(header)

    def read(self, path: Path, cluster: Cluster) -> list[MeasuredRow]:
        """Read the rows of a file.

        Raises:
            BadInput: a column is missing, a value is no number, or the devices are not
                tensor x data x pipe; names the row.
        """
        header, rows = read_csv(path)
        require_columns(header, [*_COLUMNS, _TIME], path)
        return [
            _parse_row(row, cluster, f"{path.name}, row {index}")
            for index, row in enumerate(rows)
        ]


def _parse_row(row: Mapping[str, str], cluster: Cluster, where: str) -> MeasuredRow:
    size = {name: positive_int(row, column, where) for column, name in _COLUMNS.items()}
    tensor = size["tensor"]
    # The files do not say what is recomputed: all is assumed to be beyond one host,
    # unless a column `recompute` says otherwise.
    several_hosts = size["devices"] > cluster.levels[0].size
    recompute = row.get("recompute") or ("full" if several_hosts else "none")
    if recompute not in _RECOMPUTE:
        raise BadInput(
            f"{where}: recompute is {recompute}",
            rule=f"recompute is one of {', '.join(_RECOMPUTE)}",
            remedy=f"mend or leave out {where}",
        )
    # Megatron pads the rows of a split table to a multiple of 128 on every device.
    multiple = 128 * tensor if tensor > 1 else 1
    model = MegatronModel(
        hidden=size["hidden"],
        heads=size["heads"],
        layers=size["layers"],
        sequence=size["sequence"],
        vocabulary=-(-_VOCAB_SIZE // multiple) * multiple,
        feedforward=4 * size["hidden"],
        head_size=size["hidden"] // size["heads"],
    )
    layout = MegatronLayout(
        tensor=tensor,
        data=size["data"],
        pipe=size["pipe"],
        batch=size["batch"],
        microbatch=size["microbatch"],
        recompute=_RECOMPUTE[recompute],
    )
    if layout.devices != size["devices"]:
        raise BadInput(
            f"{where}: {size['devices']} devices are not {layout.devices}",
            rule="devices = tensor x data x pipe",
            values=f"{tensor} x {layout.data} x {layout.pipe} = {layout.devices}",
            remedy=f"mend or leave out {where}",
        )

    step = megatron_step(model, layout, cluster)
    peak = layout.devices * cluster.device.peak("float16").value
    flops = model.flops(layout.batch, recompute=layout.recompute == "full")
    labelled = ("hidden", "tensor", "data", "pipe", "microbatch")
    # Rows are selected by the file's own columns, and by their short names.
    columns = {normalize_name(name): value for name, value in row.items()}
    columns |= {name: row[column] for column, name in _COLUMNS.items()}
    return MeasuredRow(
        label=", ".join(f"{name} {size[name]}" for name in labelled),
        devices=size["devices"],
        columns=columns,
        measured=1e-3 * positive_float(row, _TIME, where),  # from ms
        predict=lambda values: step.seconds(megatron_rates(values)),
        ideal=flops / peak,
        key_columns=(*_COLUMNS.values(), normalize_name(_TIME)),
        group="several hosts" if several_hosts else "one host",
        predict_terms=lambda values: step.terms(megatron_rates(values)),
        network_columns=("hidden", "layers", "heads"),
    )
