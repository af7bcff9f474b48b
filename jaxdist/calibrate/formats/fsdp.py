"""`fsdp`: steps of MPT networks under PyTorch FSDP, a row a step.

Columns: device, gpus, model, parameters, context, microbatch, accumulate, batch,
precision, mode, sharding, remat and mfu, the per cent of the card's peak that the step
reaches by 6 N T + 12 L d T^2 FLOPs a sample. What is measured are the seconds of a step
that follow from it; `samples_per_s` is rounded down and not read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from jaxdist.calibrate.formats.rates import shared_constants
from jaxdist.calibrate.measured_rows import ConstantValues, FreeConstant, MeasuredRow
from jaxdist.calibrate.table import (
    normalize_name,
    positive_float,
    positive_int,
    read_csv,
    require_columns,
)
from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.oracle.published.fsdp.cards import FSDP_CARDS, HOST_DEVICES, FsdpCard
from jaxdist.oracle.published.fsdp.layers import FsdpRates
from jaxdist.oracle.published.fsdp.step import FsdpLayout, FsdpStep
from jaxdist.oracle.published.megatron.model import MegatronModel

_COLUMNS: Final = (
    *("device", "gpus", "model", "parameters", "context", "microbatch", "accumulate"),
    *("batch", "precision", "mode", "sharding", "remat", "mfu"),
)
_NETWORKS: Final[Mapping[str, tuple[int, int, int]]] = {
    # The table of the benchmark names sizes alone; these are MPT's configurations.
    "125m": (768, 12, 12),
    "350m": (1024, 16, 24),
    "760m": (1536, 12, 24),
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}
"""Features, heads and blocks."""
_VOCAB_SIZE: Final = 50_368
_REDUCE_BYTES: Final[Mapping[str, int]] = {"DEFAULT": 4, "PURE": 2}
"""Bytes of a gradient that is reduced, by mode; parameters are gathered in two."""
_STATE_BYTES: Final[Mapping[str, int]] = {"amp_bf16": 4, "bf16": 2}
"""Bytes of the optimizer's numbers, by precision."""
_ZERO: Final[Mapping[str, Literal[2, 3]]] = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}
_REMAT: Final[Mapping[str, bool]] = {"0": False, "1": True}
_MANY_HOSTS: Final = 4
"""From so many hosts on rows are a group of their own in scores."""
_IN_SIGHT: Final = "assumed, with the rows of one and two hosts in sight"


def _chip_constants(
    chip: str, name: str, *, matmul: float, attention: float
) -> tuple[FreeConstant, ...]:
    """Return the constants of a chip, from where a fit begins."""
    return tuple(
        FreeConstant(
            name=f"{kind}_{chip}",
            unit="1",
            low=low,
            high=high,
            initial=initial,
            provenance=_IN_SIGHT,
            description=f"share of {name}'s peak in {what}",
            device=chip,
        )
        for kind, low, high, initial, what in (
            ("matmul", 0.3, 1.0, matmul, "matmuls of large sides"),
            ("attention", 0.05, 0.8, attention, "flash attention, forward"),
        )
    )


@dataclass(frozen=True, kw_only=True)
class FsdpFormat:
    """Steps under FSDP, predicted by `jaxdist.oracle.published.fsdp`."""

    name: str = "fsdp"
    cluster: str = "dgx-h100"
    constants: tuple[FreeConstant, ...] = (
        *_chip_constants("h100", "an H100", matmul=0.75, attention=0.25),
        *_chip_constants("a100", "an A100", matmul=0.9, attention=0.45),
        FreeConstant(
            name="interference",
            unit="1",
            low=0.0,
            high=1.0,
            initial=0.5,
            provenance=_IN_SIGHT,
            description="seconds of computing lost for a second of collectives beside",
        ),
        *shared_constants("memory", "inside", "network"),
    )

    def matches(self, header: Sequence[str]) -> bool:
        """Return whether a header has all columns of the format."""
        return set(_COLUMNS) <= set(header)

    def read(self, path: Path, cluster: Cluster) -> list[MeasuredRow]:
        """Read the rows of a file, which may be of several cards.

        Args:
            path: CSV file.
            cluster: takes the place of the known card with the same device.

        Raises:
            BadInput: a column is missing, or a value is none of the known ones; names
                the row.
        """
        header, rows = read_csv(path)
        require_columns(header, _COLUMNS, path)
        # A file has rows of several cards, and a cluster is of one: it replaces its own
        # alone.
        cards = {
            name: replace(card, cluster=cluster)
            if card.cluster.device.name == cluster.device.name
            else card
            for name, card in FSDP_CARDS.items()
        }
        return [
            _parse_row(row, cards, f"{path.name}, row {index}")
            for index, row in enumerate(rows)
        ]


def _parse_row(
    row: Mapping[str, str], cards: Mapping[str, FsdpCard], where: str
) -> MeasuredRow:
    # Cards and networks are written in either case, and with either dash.
    device, network = normalize_name(row["device"]), row["model"].lower()
    card = cards[_known(device, "device", cards, where)]
    hidden, heads, layers = _NETWORKS[_known(network, "model", _NETWORKS, where)]
    model = MegatronModel(
        hidden=hidden,
        heads=heads,
        layers=layers,
        sequence=positive_int(row, "context", where),
        vocabulary=_VOCAB_SIZE,
        feedforward=4 * hidden,
        head_size=hidden // heads,
    )
    layout = FsdpLayout(
        devices=positive_int(row, "gpus", where),
        batch=positive_int(row, "batch", where),
        microbatch=positive_int(row, "microbatch", where),
        passes=positive_int(row, "accumulate", where),
        zero=_ZERO[_known(row["sharding"], "sharding", _ZERO, where)],
        reduce_bytes=_REDUCE_BYTES[_known(row["mode"], "mode", _REDUCE_BYTES, where)],
        state_bytes=_STATE_BYTES[
            _known(row["precision"], "precision", _STATE_BYTES, where)
        ],
        remat=_REMAT[_known(row["remat"], "remat", _REMAT, where)],
    )
    step = FsdpStep(model=model, layout=layout, cluster=card.cluster)

    # Published utilisations leave recomputation out, and count all of attention.
    parameters, tokens = positive_int(row, "parameters", where), model.sequence
    # 6 N a token for the weights, forward and backward, and 12 L h s for attention
    # without the causal half: the formula of the published MFU.
    flops = 6.0 * parameters * tokens + 12.0 * layers * hidden * tokens**2
    ideal = layout.batch * flops / (layout.devices * card.utilisation_peak)
    hosts = -(-layout.devices // HOST_DEVICES)
    scale = f"{_MANY_HOSTS} hosts or more" if hosts >= _MANY_HOSTS else "2 or 3 hosts"
    return MeasuredRow(
        label=f"{network} on {layout.devices} {device}, context {tokens}, "
        f"microbatch {layout.microbatch}",
        devices=layout.devices,
        columns={**row, "devices": str(layout.devices)},
        # MFU is in per cent; the step follows from it, as rows have no seconds.
        measured=100 * ideal / positive_float(row, "mfu", where),
        predict=lambda values: step.seconds(_rates(values, card.chip)),
        predict_terms=lambda values: step.terms(_rates(values, card.chip)),
        ideal=ideal,
        # One utilisation stands for the cards of one chip.
        quantity=f"step, {card.chip}",
        key_columns=_COLUMNS,
        group=f"{device}, {'one host' if hosts == 1 else scale}",
    )


def _rates(values: ConstantValues, chip: str) -> FsdpRates:
    """Return the rates of a chip."""
    return FsdpRates(
        matmul=values[f"matmul_{chip}"],
        attention=values[f"attention_{chip}"],
        interference=values["interference"],
        memory=values["memory"],
        inside=values["inside"],
        network=values["network"],
    )


def _known(value: str, column: str, known: Iterable[str], where: str) -> str:
    """Return a cell that has one of the known values.

    Raises:
        BadInput: it has another.
    """
    names = list(known)
    if value not in names:
        near = did_you_mean(value, names)
        raise BadInput(
            f"{where}: {column} is {value or 'empty'}",
            rule=f"{column} is one of {', '.join(names)}",
            values=f"{column} = {value!r}",
            remedy=f"did you mean {near}?" if near else f"mend or leave out {where}",
        )
    return value
