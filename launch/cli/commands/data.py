"""`jaxdist data quality`: how well an experiment's samples are mixed, by their part."""

import math
from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)

if TYPE_CHECKING:
    from rich.table import Table

    from jaxdist.input.local_shuffle.quality import ShuffleQuality

summary = "compare how well parts of the samples that are exchanged mix them"

_FORECAST_EPOCHS: Final = (0, 1, 5, 10, 30)


def add_arguments(parser: CommandParser) -> None:
    """Take `quality`, an experiment, overrides, and the parts to compare."""
    parser.add_argument(
        "action",
        choices=("quality",),
        help="quality: forecast, for each Q, how many samples stay where they were "
        "and how far the classes of a partition are from those of all",
    )
    add_experiment_arguments(parser)
    parser.add_argument(
        "--q",
        metavar="Q",
        type=float,
        action="append",
        help="part of its samples that a partition exchanges an epoch, 0 to 1; may be "
        "given several times (the experiment's own, or 0, 0.05, 0.1, 0.3, 1)",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Forecast and print."""
    from jaxdist.launch.config.resolve import resolve_config
    from jaxdist.launch.terminal.console import (
        console,
        print_json,
        print_next_commands,
        print_table,
    )
    from jaxdist.launch.training.job.shuffle_quality import (
        forecast_quality,
        read_labels,
    )

    resolved = resolve_config(args.experiment, args.overrides)

    from jaxdist.input.registry import open_data
    from jaxdist.launch.training.job.batch_spec import feature_spec

    config, asked = resolved.config, resolved.config.plan.shuffle
    train, _ = open_data(config.data, feature_spec(config))
    own = (0.0, 0.05, 0.1, 0.3, 1.0) if asked.q is None else (asked.q,)
    labels = read_labels(train)
    rows = {
        q: forecast_quality(replace(asked, q=q), config, len(train), labels)
        for q in args.q or own
    }
    if args.json:
        print_json({f"{q:g}": _quality_tree(row) for q, row in rows.items()})
        return 0
    first = next(iter(rows.values())).shuffle
    out = console()
    out.print(
        f"{resolved.experiment}    {len(train):,} samples in {first.partitions:,} "
        f"partitions of {first.slots:,}"
    )
    out.print("\n  home: part of the samples that are in their first partition")
    print_table(out, _locality_table(rows))
    if labels is None:
        out.print("  samples have no label each: no distance between classes\n")
    else:
        out.print("  classes: distance of a partition's from those of all, 0 to 1")
        print_table(out, _class_distance_table(rows))
    words = " ".join((args.experiment, *args.overrides))
    print_next_commands(out, f"jaxdist train {words} plan.shuffle.q={list(rows)[-1]:g}")
    return 0


def _quality_tree(quality: "ShuffleQuality") -> dict[str, Any]:
    return {
        "partitions": quality.shuffle.partitions,
        "exchanged": quality.shuffle.exchange_count,
        "home": {str(e): quality.local_fraction(e) for e in _FORECAST_EPOCHS},
        "distance": {str(e): quality.class_distance(e) for e in _FORECAST_EPOCHS},
        "floor": quality.class_distance_floor,
        # JSON has no infinity.
        "forgotten": quality.mixing_epochs
        if quality.mixing_epochs < math.inf
        else None,
    }


def _locality_table(rows: "dict[float, ShuffleQuality]") -> "Table":
    """Lay out which part of the samples is where it was at first."""
    from jaxdist.core.text.formatting import format_percent
    from jaxdist.launch.terminal.console import make_table

    heads = ("Q", "exchanged", *(f"epoch {e}" for e in _FORECAST_EPOCHS))
    made = make_table(*heads, right=heads)
    for q, row in rows.items():
        sent = f"{row.shuffle.exchange_count:,} of {row.shuffle.slots:,}"
        made.add_row(
            f"{q:g}",
            sent,
            *(format_percent(row.local_fraction(e)) for e in _FORECAST_EPOCHS),
        )
    return made


def _class_distance_table(rows: "dict[float, ShuffleQuality]") -> "Table":
    """Lay out how far the classes of a partition are from those of all samples."""
    from jaxdist.launch.terminal.console import make_table

    heads = ("Q", *(f"epoch {e}" for e in _FORECAST_EPOCHS), "random", "forgotten")
    made = make_table(*heads, right=heads)
    for q, row in rows.items():
        cells = [f"{row.class_distance(e):.3f}" for e in _FORECAST_EPOCHS]
        epochs = round(row.mixing_epochs) if row.mixing_epochs < math.inf else None
        when = "never" if epochs is None else f"{epochs:,} epochs"
        made.add_row(f"{q:g}", *cells, f"{row.class_distance_floor:.3f}", when)
    return made
