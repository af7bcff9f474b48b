"""`jaxdist compile`: a step compiled for a machine that is not here."""

import os
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from jaxdist.core.text.formatting import (
    format_count,
    format_duration,
    format_percent,
    format_size,
)
from jaxdist.launch.cli.parser import (
    CommandParser,
    add_experiment_arguments,
    add_json_option,
    add_output_option,
    add_target_option,
)
from jaxdist.launch.terminal.console import (
    console,
    make_table,
    print_json,
    print_next_commands,
    print_table,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from jaxdist.launch.analysis.target_compile import CompiledStep
    from jaxdist.launch.config.resolve import ResolvedConfig

summary = "compile a step for TPUs or GPUs that are not here"
example = "digits --target tpu-v5e:2x4"

_MAX_ROWS: Final = 10


def add_arguments(parser: CommandParser) -> None:
    """Take an experiment, a target and a plan."""
    add_experiment_arguments(parser)
    add_target_option(parser, required=True)
    parser.add_argument(
        "--plan", metavar="FILE", help="a plan to compile, of `jaxdist plan -o FILE`"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="compile again what was compiled before"
    )
    add_output_option(parser, "write the answer as a page")
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Compile, print, and fail where the program is not the plan's or does not fit."""
    from jaxdist.core.files import check_output
    from jaxdist.launch.config.plan_file import check_plan_target, load_plan_overrides
    from jaxdist.launch.config.resolve import resolve_config

    from_file = load_plan_overrides(args.plan) if args.plan else ()
    resolved = resolve_config(args.experiment, [*from_file, *args.overrides])
    if args.plan:
        check_plan_target(args.plan, resolved)
    # Compiling takes minutes: what could not be written is refused before it.
    if args.output:
        check_output(args.output, force=args.force)
    return show_compiled(args, resolved, fresh=args.fresh, page=args.output)


def show_compiled(
    args: Namespace,
    resolved: "ResolvedConfig",
    *,
    fresh: bool = False,
    page: "Path | None" = None,
) -> int:
    """Compile a step for a target and print it; returns the exit code.

    Args:
        args: `target`, `json`, and the words that were typed.
        resolved: the experiment.
        fresh: whether to compile again where there is an answer.
        page: where to write the answer as a page; None: nowhere.
    """
    from jaxdist.launch.devices.jax_environment import target_answer_folder
    from jaxdist.meshes.targets.compilers import prepare_compilation
    from jaxdist.meshes.targets.target import parse_target

    target = parse_target(args.target)
    prepare_compilation(target)

    # From here on jax is imported.
    from jaxdist.launch.analysis.target_compile import compile_for_target

    folder = target_answer_folder(os.environ)
    found = compile_for_target(resolved, target, folder, fresh=fresh)
    if page is not None:
        from jaxdist.launch.report import write_target_page

        write_target_page(asdict(found), page)
    if args.json:
        print_json(asdict(found))
    else:
        words = " ".join((args.experiment, *args.overrides))
        _print_step(console(), found, words)
    return 0 if found.is_as_planned else 1


def _print_step(out: "Console", found: "CompiledStep", words: str) -> None:
    out.print(f"{found.experiment}    {found.plan}    {found.target}")
    options = f"{len(found.options)} options"
    took = format_duration(found.compile_s)
    out.print(f"  compiler {found.compiler}, {options}, {took}")
    if found.attention:
        out.print(f"  attention: {found.attention}")
    if found.has_logit_chunks:
        out.print("  logits: in chunks")
    room = found.capacity_bytes - found.memory_bytes
    used = f"{format_size(found.memory_bytes)} of {format_size(found.capacity_bytes)}"
    state = "fits" if found.fits else "DOES NOT FIT"
    left = f"{format_size(abs(room))} {'left' if room >= 0 else 'too much'}"
    out.print(f"  memory   {state}: {used} a device, {left}", soft_wrap=True)
    kept = ", ".join(f"{k} {format_size(n)}" for k, n in found.memory_terms.items())
    host = format_size(found.host_bytes)
    out.print(f"           {kept}; host {host}\n", soft_wrap=True)
    _print_collectives(out, found)
    _print_layers(out, found)
    if found.step_s is not None and found.mfu is not None:
        parts = (
            f"{format_duration(found.compute_s or 0)} computing, "
            f"{format_duration(found.exposed_s or 0)} waiting for collectives"
        )
        if found.host_bytes:
            parts += f", {format_duration(found.host_copy_s or 0)} for the host"
        out.print(
            f"  step     {format_duration(found.step_s)} estimated: {parts}; "
            f"MFU {format_percent(found.mfu)}",
            soft_wrap=True,
        )
        out.print(
            f"           without {', '.join(found.not_estimated)}", soft_wrap=True
        )
    elif found.collectives:
        out.print("  step     this compiler estimates no time", soft_wrap=True)
    for difference in found.differences:
        out.print(f"\ndiffers: {difference}", soft_wrap=True)
    out.print()
    again = f"jaxdist compile {words} --target {found.target}"
    print_next_commands(out, f"{again} --json", f"{again} -o step.html")


def _print_layers(out: "Console", found: "CompiledStep") -> None:
    if not found.layers:
        return
    heads = ("cycles", "time", "FLOPs", "bytes", "of peak")
    table = make_table("layer", *heads, right=heads)
    for row in found.layers[:_MAX_ROWS]:
        share = row["utilisation"]
        table.add_row(
            row["layer"] or "loss, optimizer, the rest",
            format_count(row["cycles"]),
            format_duration(row["seconds"]),
            format_size(row["flops"], "FLOP") if row["flops"] else "",
            format_size(row["bytes"]),
            "" if share is None else format_percent(share),
        )
    print_table(out, table)


def _print_collectives(out: "Console", found: "CompiledStep") -> None:
    if not found.collectives:
        return
    heads = ("count", "async", "sent", "hidden")
    table = make_table("collective", "axes", *heads, right=heads)
    for row in found.collectives:
        table.add_row(
            row["kind"],
            # Devices that are no axes of the mesh have no name.
            " x ".join(row["axes"]) or "unknown devices",
            format_count(row["count"]),
            format_count(row["async_count"]),
            format_size(row["sent_bytes"]),
            format_percent(row["hidden_bytes"] / max(1, row["sent_bytes"])),
        )
    print_table(out, table)
    if found.rewrites:
        names = ("planned", "program")
        table = make_table("the compiler", "collective", "axes", *names, right=names)
        for row in found.rewrites:
            sizes = (format_size(row[name]) for name in names)
            table.add_row(row["name"], row["kind"], " x ".join(row["axes"]), *sizes)
        print_table(out, table)
