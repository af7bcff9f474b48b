"""`calculon`: published step times and memory of Megatron, a row a quantity.

Columns: model, mode, quantity (iteration_time in s, params_and_optimizer and
activations in GiB of a device, activations_relative in per cent of those of mode none),
unit, measured, execution (a JSON file of github.com/calculon-ai/calculon, Apache-2.0,
beside the CSV file), system. Sizes are in models/NAME.json there.
"""

from collections.abc import Mapping, Sequence
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
from jaxdist.core.text_encoding import read_text
from jaxdist.core.validation import parse_json
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
_SIZES: Final = (
    *("hidden", "feedforward", "seq_size", "attn_heads", "attn_size", "num_blocks"),
)
_SPLITS: Final = (
    *("tensor_par", "data_par", "pipeline_par", "batch_size", "microbatch_size"),
    "pipeline_interleaving",
)
_UNITS: Final = {
    "iteration_time": "s",
    "params_and_optimizer": "GiB per GPU",
    "activations": "GiB per GPU",
    "activations_relative": "% of none",
}
# GPT's vocabulary as Megatron pads it; the files do not say it.
_VOCAB_SIZE: Final = 51_200


@dataclass(frozen=True)
class CalculonFormat:
    """Megatron's published points, predicted by `jaxdist.oracle.published.megatron`."""

    name: str = "calculon"
    cluster: str = "dgx-a100"
    constants: tuple[FreeConstant, ...] = MEGATRON_CONSTANTS

    def matches(self, header: Sequence[str]) -> bool:
        """Return whether a header has all columns of the format."""
        return set(_COLUMNS) <= set(header)

    def read(self, path: Path, cluster: Cluster) -> list[MeasuredRow]:
        """Read the rows of a file.

        Raises:
            BadInput: a column, a file or a quantity is missing; names the row.
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
    model, layout = _read_case(row, folder, where)

    # `scale` is from SI units to the unit of the row, `ideal` the quantity at peak
    # speed, or spread evenly over the devices. Published memory is of the layers alone.
    scale = 2.0**-30
    memory = memory_terms(model, layout, include_embedding=False)
    activations = {"activations": memory["activations"]}
    constant_terms: TermValues = {}
    if quantity == "iteration_time":
        scale = 1.0
        peak = layout.devices * cluster.device.peak("float16").value
        recomputed = layout.recompute == "full"
        ideal = model.flops(layout.batch, recompute=recomputed) / peak
    elif quantity == "params_and_optimizer":
        constant_terms = {name: memory[name] for name in _MODEL_STATE_TERMS}
        ideal = model.layers * model.layer_parameters() / layout.devices * scale
    elif quantity == "activations":
        constant_terms = activations
        tokens = layout.microbatch * model.sequence * model.hidden
        ideal = model.layers * tokens / (layout.tensor * 2.0**30)
    else:
        constant_terms = activations
        # The row is a share of what the same layout keeps without either.
        plain = replace(layout, recompute="none", sequence_parallel=False)
        kept = memory_terms(model, plain, include_embedding=False)["activations"]
        scale, ideal = 100 / kept, 100.0

    # Only times depend on the free constants; memory follows from the sizes.
    step = None
    if quantity == "iteration_time":
        step = megatron_step(model, layout, cluster)

    def terms(values: ConstantValues) -> TermValues:
        found = step.terms(megatron_rates(values)) if step else constant_terms
        return {name: scale * value for name, value in found.items()}

    # Sizes from the JSON files, to select rows by.
    own = {"devices": layout.devices, "tensor": layout.tensor, "data": layout.data}
    more = {"pipe": layout.pipe, "batch": layout.batch, "hidden": model.hidden}
    return MeasuredRow(
        label=f"{row['model']}, {row['mode']}, {quantity}",
        devices=layout.devices,
        columns={**row, **{name: str(value) for name, value in (own | more).items()}},
        measured=positive_float(row, "measured", where),
        predict=lambda values: sum(terms(values).values()),
        ideal=ideal,
        unit=row["unit"],
        quantity=quantity,
        group=quantity,
        key_columns=("model", "mode", "quantity", "measured", "execution"),
        predict_terms=terms,
    )


def _read_case(
    row: Mapping[str, str], folder: Path, where: str
) -> tuple[MegatronModel, MegatronLayout]:
    """Read a row's model and execution files, in the JSON format of calculon."""
    trees: list[Mapping[str, Any]] = []
    for path in (folder / "models" / f"{row['model']}.json", folder / row["execution"]):
        try:
            tree = parse_json(read_text(path))
        except (OSError, ValueError) as error:
            there = [one.stem for one in path.parent.glob("*.json")]
            near = did_you_mean(path.stem, there)
            raise BadInput(
                f"{where}: {path} cannot be read",
                rule="models/NAME.json and the file named by execution are beside the "
                "rows",
                values=f"{type(error).__name__}",
                remedy=f"did you mean {near}?" if near else f"put {path.name} there",
            ) from error
        trees.append(tree if isinstance(tree, dict) else {})

    for tree, keys in zip(trees, (_SIZES, _SPLITS), strict=True):
        for key in keys:
            value = tree.get(key)
            if not isinstance(value, int) or value < 1:
                raise BadInput(
                    f"{where}: {key} is {value}",
                    rule=f"{key} is a whole number above 0",
                    remedy=f"mend or leave out {where}",
                )
    sizes, execution = trees
    model = MegatronModel(
        hidden=sizes["hidden"],
        heads=sizes["attn_heads"],
        layers=sizes["num_blocks"],
        sequence=sizes["seq_size"],
        vocabulary=_VOCAB_SIZE,
        feedforward=sizes["feedforward"],
        head_size=sizes["attn_size"],
    )
    mode = str(execution.get("activation_recompute"))
    if mode not in _RECOMPUTE:
        raise BadInput(
            f"{where}: activation_recompute is {mode}",
            rule=f"it is one of {', '.join(_RECOMPUTE)}",
            remedy=f"mend or leave out {where}",
        )
    layout = MegatronLayout(
        tensor=execution["tensor_par"],
        data=execution["data_par"],
        pipe=execution["pipeline_par"],
        batch=execution["batch_size"],
        microbatch=execution["microbatch_size"],
        chunks=execution["pipeline_interleaving"],
        recompute=_RECOMPUTE[mode],
        # calculon's word for sequence parallelism: the all-reduces of tensor
        # parallelism become reduce-scatters and all-gathers.
        sequence_parallel=execution.get("tensor_par_comm_type") == "rs_ag",
    )
    return model, layout
