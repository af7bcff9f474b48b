"""`paradl`: ParaDL's seconds of an iteration by run, or of an epoch by strategy.

Two headers have this format. Runs: one row a run, of which the preferred ones are read.
Rankings: one row a strategy, `meas_total_s` for an epoch without input and update; rows
of one network on as many devices are ranked against each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jaxdist.calibrate.measured_rows import ConstantValues, FreeConstant, MeasuredRow
from jaxdist.calibrate.table import (
    normalize_name,
    positive_float,
    positive_int,
    read_csv,
    require_columns,
)
from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput
from jaxdist.oracle.published.paradl.case import (
    ParadlCase,
    SplitDimension,
    parse_strategy,
)
from jaxdist.oracle.published.paradl.networks import ParadlWorkload, find_workload
from jaxdist.oracle.published.paradl.step import (
    FittedRates,
    add_input_terms,
    paradl_step_terms,
)
from jaxdist.oracle.published.paradl.system import ParadlSystem, paradl_system

# Published seconds of a sample were profiled on this device.
_DEVICE: Final = "V100"
_RUN_COLUMNS: Final = (
    "strategy",
    "model",
    "gpus",
    "group_size",
    "batch_per_group",
    "median_s_per_iter",
)
_RANKING_COLUMNS: Final = ("model", "gpus", "strategy", "meas_total_s")


@dataclass(frozen=True, kw_only=True)
class ParadlFormat:
    """Rows in ParaDL's strategies, predicted by its equations with our corrections."""

    name: str = "paradl"
    cluster: str = "abci"
    constants: tuple[FreeConstant, ...] = (
        FreeConstant(
            name="reduce",
            unit="1",
            low=0.3,
            high=1.0,
            initial=0.5,
            provenance="assumed: half of a link",
            description="share of a link's bandwidth that sums of gradients get",
        ),
        FreeConstant(
            name="staging",
            unit="1",
            low=0.2,
            high=2.0,
            initial=1.0,
            provenance="datasheet: all of PCIe 3.0 x16",
            description="share of a host's link that copies through hosts get",
        ),
        FreeConstant(
            name="map_dense",
            unit="byte/s",
            low=1.25e7,
            high=1.6e10,
            initial=2.7e8,
            provenance="fitted: rows of VGG16 and AlexNet on at most 64 GPUs",
            description="rate of the weights of dense layers that read a map",
        ),
    )

    def matches(self, header: Sequence[str]) -> bool:
        """Return whether a header is that of runs or of rankings."""
        return set(_RUN_COLUMNS) <= set(header) or set(_RANKING_COLUMNS) <= set(header)

    def read(self, path: Path, cluster: Cluster) -> list[MeasuredRow]:
        """Read the rows of a file; runs on one device are profiles, not rows.

        Raises:
            BadInput: the wrong cluster, or an invalid row; names the line.
        """
        system = paradl_system(cluster)
        if _DEVICE not in cluster.device.name:
            raise BadInput(
                f"rows of {path.name} are not of {cluster.name}",
                rule=f"seconds of a sample are profiles of one {_DEVICE}",
                values=f"its devices: {cluster.device.name}",
                remedy=f"--cluster {self.cluster}, or what `calibrate fit` wrote",
            )
        header, lines = read_csv(path)
        ranked = "meas_total_s" in header
        require_columns(header, _RANKING_COLUMNS if ranked else _RUN_COLUMNS, path)
        make = _parse_ranking if ranked else _parse_run
        rows = []
        for number, line in enumerate(lines, 2):
            # A setting may have been run more than once: the longest run is preferred.
            if line.get("preferred", "1") in ("0", "0.0"):
                continue
            where = f"line {number} of {path.name}"
            try:
                row = make(line, system, where)
            except BadInput as error:
                # Neither a network nor a strategy knows in which line it stands.
                if where in error.what:
                    raise
                raise BadInput(
                    f"{where}: {error.what}",
                    rule=error.rule,
                    values=error.values,
                    remedy=error.remedy,
                ) from error
            if row is not None:
                rows.append(row)
        if not rows:
            raise BadInput(
                f"{path.name} has no rows to predict",
                rule="runs on one device are profiles; others need preferred = 1",
                values=f"{len(lines)} lines",
                remedy="rows with gpus above 1",
            )
        return rows


def _parse_run(
    line: Mapping[str, str], system: ParadlSystem, where: str
) -> MeasuredRow | None:
    net, devices, grouped, split = _parse_strategy_columns(line, where)
    # The profile of one device is an input of the model, and nothing to predict.
    if devices == 1 and net.seconds_per_sample.origin.startswith("measured"):
        return None
    group = positive_int(line, "group_size", where)
    case = ParadlCase(
        workload=net,
        split=split,
        devices=devices,
        # Without groups all devices that split a sample are one; else each is its own.
        group=group if grouped else devices if split else 1,
        group_batch=positive_float(line, "batch_per_group", where),
        transport="hosts",
        # ParaDL's pipelines have as many segments as stages.
        segments=group if split == "layer" else 1,
    )

    def terms(values: ConstantValues) -> dict[str, float]:
        rates = _fitted_rates(values)
        return add_input_terms(
            case, system, rates, paradl_step_terms(case, system, rates)
        )

    spread = None
    if line.get("min_s_per_iter") and line.get("max_s_per_iter"):
        high = positive_float(line, "max_s_per_iter", where)
        spread = high / positive_float(line, "min_s_per_iter", where) - 1
    return _make_row(
        line,
        case,
        terms,
        label=f"batch {case.total:g}",
        measured=positive_float(line, "median_s_per_iter", where),
        ideal=_ideal_seconds(net, case.total, system) / devices,
        quantity="iteration",
        key_columns=_RUN_COLUMNS,
        spread=spread,
    )


def _parse_ranking(
    line: Mapping[str, str], system: ParadlSystem, where: str
) -> MeasuredRow:
    net, devices, grouped, split = _parse_strategy_columns(line, where)
    # These rows do not say the size of a group: a hybrid strategy splits within hosts.
    group = 1
    if split:
        group = min(system.host_devices, devices) if grouped else devices
    # Nor its batch: where samples are split spatially that of the runs, which for
    # ResNet50 alone is the batch of a device times their devices; where features are
    # split all devices of a group see the batch of one.
    batch = net.default_batch
    if split == "spatial" and grouped:
        batch = net.spatial_batch
    elif split:
        batch = max(net.default_batch, 1.0)
    case = ParadlCase(
        workload=net,
        split=split,
        devices=devices,
        group=group,
        group_batch=batch,
        segments=group if split == "layer" else 1,
    )
    steps = net.epoch_samples / case.total

    def terms(values: ConstantValues) -> dict[str, float]:
        # The published epochs are without the update of the weights.
        step = paradl_step_terms(case, system, _fitted_rates(values))
        return {name: s * steps for name, s in step.items() if name != "update"}

    return _make_row(
        line,
        case,
        terms,
        label="an epoch",
        measured=positive_float(line, "meas_total_s", where),
        ideal=_ideal_seconds(net, net.epoch_samples, system) / devices,
        quantity="epoch",
        key_columns=_RANKING_COLUMNS,
        ranking_group=f"{net.name}, {devices} devices",
    )


def _parse_strategy_columns(
    line: Mapping[str, str], where: str
) -> tuple[ParadlWorkload, int, bool, SplitDimension]:
    """Return the network, its devices, whether it has groups, and what these split."""
    net, devices = find_workload(line["model"]), positive_int(line, "gpus", where)
    grouped, split = parse_strategy(line["strategy"])
    if not grouped and not split and devices > 1:
        raise BadInput(
            f"{where}: {line['strategy']} on {devices} devices",
            rule="a serial run has one device",
            values=f"strategy = {line['strategy']}, gpus = {devices}",
            remedy="strategy = data, or gpus = 1",
        )
    return net, devices, grouped, split


def _make_row(
    line: Mapping[str, str],
    case: ParadlCase,
    terms: Callable[[ConstantValues], dict[str, float]],
    *,
    label: str,
    **fields: Any,
) -> MeasuredRow:
    """Return a row of either header, predicted by the sum of its terms."""
    name, split = case.workload.name, line["strategy"]
    columns = {normalize_name(column): value for column, value in line.items()}
    return MeasuredRow(
        label=f"{name} {split}, {case.devices} devices, {label}",
        devices=case.devices,
        columns={**columns, "devices": str(case.devices)},
        predict=lambda values: sum(terms(values).values()),
        predict_terms=terms,
        group=f"{name}, {split}",
        **fields,
    )


def _ideal_seconds(net: ParadlWorkload, samples: float, system: ParadlSystem) -> float:
    """Return the seconds of training samples on one device at its peak."""
    # A backward pass does twice the work of a forward pass.
    flops = 3 * sum(layer.flops for layer in net.layers())
    return samples * flops / system.peak_flops.value


def _fitted_rates(values: ConstantValues) -> FittedRates:
    return FittedRates(
        all_reduce=values["reduce"],
        staging=values["staging"],
        map_dense=values["map_dense"],
    )
