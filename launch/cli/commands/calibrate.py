"""`jaxdist calibrate`: measure a machine, read what others measured, or fit rows.

A machine that is not here is calibrated by what its compiler estimates.
"""

import os
from argparse import Namespace
from pathlib import Path

from jaxdist.core.files import check_output
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
    add_output_option,
    add_overrides,
    query_from,
)
from jaxdist.launch.terminal.console import console, print_json

summary = "measure this machine, or take what others measured"
example = ""


def add_arguments(parser: CommandParser) -> None:
    """Take what to measure; or `read`, `fit` and files; or `target` and a chip."""
    machine = parser.add_form(
        "machine",
        "measure the kernels and links of this machine",
        example="--quick --devices 8 -o cluster.json",
        default=True,
    )
    layers = parser.add_form(
        "layers",
        "time the layers of an experiment, and add them to a measured machine",
        example="digits --devices 2 --cluster mine.json -o layers.json",
    )
    # Before these were two, one command line could ask for either.
    both = parser.add_form(
        "measure", "measure a machine", example="--quick", default=True, hidden=True
    )
    machine.set_defaults(experiment=None, overrides=())
    add_experiment_arguments(layers)
    both.add_argument("experiment", metavar="EXPERIMENT", nargs="?")
    add_overrides(both)
    for form in (machine, layers, both):
        _add_measuring_options(form)

    read = parser.add_form(
        "read",
        "take what nccl-tests or OSU measured as a level of a cluster",
        example="all_reduce_perf.txt --cluster dgx-h100 -o pod.json",
    )
    add = read.add_argument
    add("files", metavar="FILE", type=Path, nargs="+", help="what the programs printed")
    add("--level", metavar="NAME", help="of the cluster (that the ranks span)")
    add("--ranks", metavar="N", type=int, help="where OSU does not print them")
    add(
        "--program",
        metavar="NAME",
        help="which it was, where the text does not say or has several",
    )

    fit = parser.add_form(
        "fit",
        "fit constants to rows that were measured elsewhere",
        example="runs.csv --train 'devices<=8' -o fitted.json",
    )
    add = fit.add_argument
    add(
        "measured",
        metavar="FILE.csv|FOLDER",
        type=Path,
        help="measured rows: a file, or all CSV files of a folder",
    )
    add(
        "--train",
        metavar="SELECTION",
        help="rows to fit: 'devices<=8', 'row %% 3 == 0', 'model in (a, b) and "
        "batch==64'; the others are left to be scored",
    )
    add("--format", metavar="NAME", help="form of the rows (told by the header)")
    add(
        "--constants",
        metavar="A,B,...",
        help="constants to fit, at most three (the first three of the format)",
    )
    add(
        "--allow-many-constants",
        action="store_true",
        help="fit more than three constants",
    )
    target = parser.add_form(
        "target",
        "calibrate TPUs that are not here by the cycles that their compiler estimates",
        example="tpu-v5p -o v5p.json",
    )
    target.add_argument(
        "target", metavar="CHIP", help="tpu-v4, tpu-v5e, tpu-v5p or tpu-v6e"
    )
    add_output_option(target, "file to write (cluster.json)", Path("cluster.json"))
    add_json_option(target)
    machine.set_defaults(cluster=None)
    for form, cluster, output in (
        (machine, "", "cluster.json"),
        (
            layers,
            "the file of the machine; without it that is measured first",
            "cluster.json",
        ),
        (both, "a measured one, to which the layers are added", "cluster.json"),
        (read, "the one whose level is replaced", "cluster.json"),
        (fit, "the one that they were measured on (that of the format)", "fitted.json"),
    ):
        if cluster:
            form.add_argument("--cluster", metavar="NAME|FILE", help=cluster)
        add_output_option(form, f"file to write ({output})", Path(output))
        form.add_argument(
            "--allow-noisy", action="store_true", help="take what spreads a lot as well"
        )
        add_json_option(form)


def _add_measuring_options(form: CommandParser) -> None:
    """Take how many devices are measured, and how."""
    add = form.add_argument
    add(
        "--devices",
        metavar="N",
        type=int,
        help="devices that are measured together (one; of several processes all they "
        "have; those of --cluster)",
    )
    add(
        "--max-size",
        metavar="SIZE",
        help="bytes up to which collectives are timed (8MB; 64MB for large gradients "
        "on fast links)",
    )
    add("--dtype", default="float32", help="of the numbers of kernels (float32)")
    add(
        "--quick",
        action="store_true",
        help="few kernels and messages, no compressors: about 20 s, not minutes",
    )


def run(args: Namespace) -> int:
    """Measure, read or fit, write and print."""
    # Measuring takes minutes: what could not be written is refused before it.
    check_output(args.output, force=args.force)
    if args.action == "read":
        return _import_benchmark(args)
    if args.action == "fit":
        return _fit(args)
    if args.action == "target":
        return _calibrate_target(args)

    from jaxdist.launch.calibration.measure import (
        CalibrationQuery,
        calibrate,
        print_calibration,
    )

    made = calibrate(query_from(args, CalibrationQuery))
    # All processes of a launcher measure together; one of them tells.
    if made.is_primary:
        print_json(made.to_dict()) if args.json else print_calibration(console(), made)
    return 0


def _import_benchmark(args: Namespace) -> int:
    from jaxdist.launch.calibration.import_benchmark import (
        ImportQuery,
        import_level,
        print_level_import,
    )

    made = import_level(query_from(args, ImportQuery))
    print_json(made.to_dict()) if args.json else print_level_import(console(), made)
    return 0


def _fit(args: Namespace) -> int:
    from jaxdist.launch.calibration.fit import FitQuery, print_fit, run_fit

    made = run_fit(query_from(args, FitQuery))
    print_json(made.to_dict()) if args.json else print_fit(console(), made)
    return 0


def _calibrate_target(args: Namespace) -> int:
    from jaxdist.core.files import write_output
    from jaxdist.launch.devices.jax_environment import target_answer_folder
    from jaxdist.launch.terminal.progress_bar import TaskProgress
    from jaxdist.meshes.targets.compilers import prepare_compilation
    from jaxdist.meshes.targets.target import host_target

    target = host_target(args.target)
    prepare_compilation(target)

    # From here on jax is imported.
    from jaxdist.launch.analysis.target_curves import (
        FITTED_NETWORKS,
        calibrate_target,
        compile_network,
        print_target_calibration,
    )

    count, folder = len(FITTED_NETWORKS), target_answer_folder(os.environ)
    found = []
    with TaskProgress(count, f"compiling {count} networks") as progress:
        for words in FITTED_NETWORKS:
            found.append(compile_network(words, target, folder))
            progress.advance(found[-1].network.name)
    made = calibrate_target(target, found, args.output)
    write_output(args.output, made.cluster.to_json(), force=args.force)
    if args.json:
        print_json(made.to_dict())
    else:
        print_target_calibration(console(), made)
    return 0
