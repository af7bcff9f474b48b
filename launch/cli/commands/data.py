"""`jaxdist data quality`: how well an experiment's samples are mixed, by their part."""

import math
from argparse import Namespace
from dataclasses import replace
from typing import Any, Final

from jaxdist.core.text.formatting import format_percent
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
)
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_json,
    print_next_commands,
    print_table,
)

summary = "forecast how well exchanged samples are mixed"
example = "quality digits --exchange-fraction 0.1"

_FORECAST_EPOCHS: Final = (0, 1, 5, 10, 30)


def add_arguments(parser: CommandParser) -> None:
    """Take `quality`, an experiment, overrides, and the parts to compare."""
    parser.add_argument(
        "action",
        choices=("quality",),
        help="quality: forecast, for each fraction, how many samples stay where they "
        "were and how far the classes of a partition are from those of all",
    )
    add_experiment_arguments(parser)
    parser.add_argument(
        "--exchange-fraction",
        metavar="F",
        type=float,
        action="append",
        help="part of its samples that a partition exchanges an epoch, 0 to 1; may be "
        "given several times (the experiment's own, or 0, 0.05, 0.1, 0.3, 1)",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Forecast and print."""
    from jaxdist.launch.config.resolve import resolve_config
    from jaxdist.launch.training.job.shuffle_quality import (
        forecast_quality,
        read_labels,
    )

    resolved = resolve_config(args.experiment, args.overrides)

    from jaxdist.input.registry import open_data
    from jaxdist.launch.training.job.batch_spec import feature_spec

    config, asked = resolved.config, resolved.config.plan.shuffle
    train, _ = open_data(config.data, feature_spec(config))
    usual, own = (0.0, 0.05, 0.1, 0.3, 1.0), asked.exchange_fraction
    # Captions and text have no label each, and no classes to mix.
    labels = read_labels(train)
    fractions = args.exchange_fraction or (usual if own is None else (own,))
    rows = {}
    for q in fractions:
        shuffle = replace(asked, exchange_fraction=q)
        rows[q] = forecast_quality(shuffle, config, len(train), labels)
    if args.json:
        trees: dict[str, dict[str, Any]] = {}
        for q, row in rows.items():
            epochs_to_mix = row.mixing_epochs
            trees[f"{q:g}"] = {
                "partitions": row.shuffle.partitions,
                "exchanged": row.shuffle.exchange_count,
                "home": {str(e): row.local_fraction(e) for e in _FORECAST_EPOCHS},
                "distance": {str(e): row.class_distance(e) for e in _FORECAST_EPOCHS},
                "floor": row.class_distance_floor,
                # JSON has no infinity.
                "forgotten": epochs_to_mix if epochs_to_mix < math.inf else None,
            }
        print_json(trees)
        return 0
    first = next(iter(rows.values())).shuffle
    out = console()
    out.print(
        f"{resolved.experiment}    {len(train):,} samples in {first.partitions:,} "
        f"partitions of {first.slots:,}\n\n"
        "  home: part of the samples that are in their first partition"
    )
    epochs = tuple(f"epoch {e}" for e in _FORECAST_EPOCHS)
    heads: tuple[str, ...] = ("Q", "exchanged", *epochs)
    table = make_table(*heads, right=heads)
    for q, row in rows.items():
        shares = (format_percent(row.local_fraction(e)) for e in _FORECAST_EPOCHS)
        sent = f"{row.shuffle.exchange_count:,} of {row.shuffle.slots:,}"
        table.add_row(f"{q:g}", sent, *shares)
    print_table(out, table)
    if labels is None:
        out.print("  samples have no label each: no distance between classes\n")
    else:
        # `random` is the distance of partitions that were drawn at random: no
        # exchange brings them nearer than that.
        out.print("  classes: distance of a partition's from those of all, 0 to 1")
        heads = ("Q", *epochs, "random", "forgotten")
        table = make_table(*heads, right=heads)
        for q, row in rows.items():
            cells = [f"{row.class_distance(e):.3f}" for e in _FORECAST_EPOCHS]
            mixed = row.mixing_epochs
            when = f"{round(mixed):,} epochs" if mixed < math.inf else "never"
            table.add_row(f"{q:g}", *cells, f"{row.class_distance_floor:.3f}", when)
        print_table(out, table)
    words = " ".join((args.experiment, *args.overrides))
    print_next_commands(
        out, f"jaxdist train {words} plan.shuffle.exchange_fraction={list(rows)[-1]:g}"
    )
    return 0
