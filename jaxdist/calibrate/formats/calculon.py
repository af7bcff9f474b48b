"""`calculon`: published step times and memory of Megatron, a row a quantity.

Columns: model, mode, quantity (iteration_time in s, params_and_optimizer and
activations in GiB of a device, activations_relative in per cent of those of mode none),
unit, measured, execution (a JSON file of github.com/calculon-ai/calculon, Apache-2.0,
beside the CSV file), system. Sizes are in models/NAME.json there; the vocabulary is
51,200.

Published memory is of layers alone, without the embedding.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from jaxdist.calibrate.formats.rates import MEGATRON_CONSTANTS, megatron_rates
from jaxdist.calibrate.measured_rows import (
    ConstantValues,
    FreeConstant,
    MeasuredRow,
    TermValues,
)
from jaxdist.calibrate.table import positive_float, read_csv, require_columns
from jaxdist.core.cluster import Cluster
from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.oracle.published.megatron.memory import memory_terms
from jaxdist.oracle.published.megatron.model import (
    MegatronLayout,
    MegatronModel,
    Recompute,
)
from jaxdist.oracle.published.megatron.step import megatron_step

_COLUMNS: Final = ("model", "mode", "quantity", "unit", "measured", "execution")
_RECOMPUTE: Final[Mapping[str, Recompute]] = {
    "none": "none",
    "attn_only": "selective",
    "full": "full",
}
_MODEL_STATE_TERMS: Final = ("parameters", "gradients", "optimizer")
_UNITS: Final = {
    "iteration_time": "s",
    "params_and_optimizer": "GiB per GPU",
    "activations": "GiB per GPU",
    "activations_relative": "% of none",
}
_VOCAB_SIZE: Final = 51_200


@dataclass(frozen=True)
class CalculonFormat:
    """Megatron's published points, predicted by `jaxdist.oracle.published.megatron`."""

    name: str = "calculon"
    cluster: str = "dgx-a100"
    constants: tuple[FreeConstant, ...] = MEGATRON_CONSTANTS

    def matches(self, header: Sequence[str]) -> bool:
        """Tell whether a header has these columns."""
        return set(_COLUMNS) <= set(header)

    def read(self, path: Path, cluster: Cluster) -> list[MeasuredRow]:
        """Return the rows of a file.

        Raises:
            BadInput: a column, a file or a quantity is not there; says in which row.
        """
        header, rows = read_csv(path)
        require_columns(header, _COLUMNS, path)
        return [
            _parse_row(row, path.parent, cluster, f"{path.name}, row {index}")
            for index, row in enumerate(rows)
        ]


def _parse_row(
    row: Mapping[str, str], folder: Path, cluster: Cluster, where: str
) -> MeasuredRow:
    quantity = row["quantity"]
    if quantity not in _UNITS or row["unit"] != _UNITS[quantity]:
        near = did_you_mean(quantity, _UNITS)
        raise BadInput(
            f"{where}: no quantity {quantity} in {row['unit']}",
            rule=", ".join(f"{name} in {unit}" for name, unit in _UNITS.items()),
            remedy=f"did you mean {near} in {_UNITS[near]}?"
            if near
            else "one of these",
        )
    model = _parse_model(
        _read_json(folder / "models" / f"{row['model']}.json", where), where
    )
    layout = _parse_layout(_read_json(folder / row["execution"], where), where)
    explain, ideal = _prediction(quantity, model, layout, cluster)
    own = {"devices": layout.devices, "tensor": layout.tensor, "data": layout.data}
    more = {"pipe": layout.pipe, "batch": layout.batch, "hidden": model.hidden}
    return MeasuredRow(
        label=f"{row['model']}, {row['mode']}, {quantity}",
        devices=layout.devices,
        columns={**row, **{name: str(value) for name, value in (own | more).items()}},
        measured=positive_float(row, "measured", where),
        predict=lambda values: sum(explain(values).values()),
        ideal=ideal,
        unit=row["unit"],
        quantity=quantity,
        group=quantity,
        key_columns=("model", "mode", "quantity", "measured", "execution"),
        predict_terms=explain,
    )


@dataclass(frozen=True)
class _ScaledTerms:
    """A prediction by term, in the unit of its row."""

    terms: Callable[[ConstantValues], TermValues]
    """In SI units."""
    scale: float
    """Of the row's unit."""

    def __call__(self, values: ConstantValues) -> TermValues:
        return {k: self.scale * v for k, v in self.terms(values).items()}


def _prediction(
    quantity: str, model: MegatronModel, layout: MegatronLayout, cluster: Cluster
) -> tuple[_ScaledTerms, float]:
    """Return a quantity by term, and what it is by the simplest rule."""
    if quantity == "iteration_time":
        ready = megatron_step(model, layout, cluster)
        peak = layout.devices * cluster.device.peak("float16").value
        again = layout.recompute == "full"
        work = model.flops(layout.batch, recompute=again) / peak
        return _ScaledTerms(
            lambda values: ready.terms(megatron_rates(values)), 1.0
        ), work
    terms = memory_terms(model, layout, include_embedding=False)
    if quantity == "params_and_optimizer":
        states = {name: terms[name] for name in _MODEL_STATE_TERMS}
        even = model.layers * model.layer_parameters() / layout.devices
        return _ScaledTerms(lambda values: states, 2.0**-30), even * 2.0**-30
    kept = {"activations": terms["activations"]}
    if quantity == "activations":
        tokens = layout.microbatch * model.sequence * model.hidden
        even = model.layers * tokens / (layout.tensor * 2.0**30)
        return _ScaledTerms(lambda values: kept, 2.0**-30), even
    plain = replace(layout, recompute="none", sequence_parallel=False)
    whole = memory_terms(model, plain, include_embedding=False)["activations"]
    return _ScaledTerms(lambda values: kept, 100 / whole), 100.0


def _parse_model(tree: Mapping[str, Any], where: str) -> MegatronModel:
    sizes = ("hidden", "feedforward", "seq_size", "attn_heads", "attn_size")
    h, f, s, a, d = (_positive_int(tree, name, where) for name in sizes)
    return MegatronModel(
        hidden=h,
        heads=a,
        layers=_positive_int(tree, "num_blocks", where),
        sequence=s,
        vocabulary=_VOCAB_SIZE,
        feedforward=f,
        head_size=d,
    )


def _parse_layout(tree: Mapping[str, Any], where: str) -> MegatronLayout:
    mode = str(tree.get("activation_recompute"))
    if mode not in _RECOMPUTE:
        raise BadInput(
            f"{where}: activation_recompute is {mode}",
            rule=f"it is one of {', '.join(_RECOMPUTE)}",
            remedy=f"mend or leave out {where}",
        )
    return MegatronLayout(
        tensor=_positive_int(tree, "tensor_par", where),
        data=_positive_int(tree, "data_par", where),
        pipe=_positive_int(tree, "pipeline_par", where),
        batch=_positive_int(tree, "batch_size", where),
        microbatch=_positive_int(tree, "microbatch_size", where),
        chunks=_positive_int(tree, "pipeline_interleaving", where),
        recompute=_RECOMPUTE[mode],
        sequence_parallel=tree.get("tensor_par_comm_type") == "rs_ag",
    )


def _positive_int(tree: Mapping[str, Any], key: str, where: str) -> int:
    value = tree.get(key)
    if not isinstance(value, int) or value < 1:
        raise BadInput(
            f"{where}: {key} is {value}",
            rule=f"{key} is a whole number above 0",
            remedy=f"mend or leave out {where}",
        )
    return value


def _read_json(path: Path, where: str) -> Mapping[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        near = did_you_mean(path.stem, [one.stem for one in path.parent.glob("*.json")])
        raise BadInput(
            f"{where}: {path} cannot be read",
            rule="models/NAME.json and the file named by execution are beside the rows",
            values=f"{type(error).__name__}",
            remedy=f"did you mean {near}?" if near else f"put {path.name} there",
        ) from error
    return tree if isinstance(tree, dict) else {}
