"""The blocks before and after training: their words, at any width and encoding."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from jaxdist.core.plan import MeshShape, Plan
from jaxdist.core.run_record import Run
from jaxdist.launch.terminal.run_summary import TerminalRunHeader, run_summary

RUN = Run(
    name="digits",
    experiment="digits",
    devices=8,
    steps=660,
    accuracy=357 / 360,
    loss=0.032,
    correct=357,
    held_out=360,
    samples_per_s=1760.0,
    step_s=0.0364,
    step_s_p5=0.0349,
    step_s_p95=0.0398,
    wall_s=34.2,
    phases_s={
        "compute": 23.6,
        "compile": 7.9,
        "evaluation": 1.9,
        "input": 0.4,
        "checkpoint": 0.3,
        "other": 0.1,
    },
    bytes_by_collective={
        "halo, spatial_h": 96_000,
        "all-reduce, data x spatial_h": 548_310,
        "all-reduce, loss": 8,
    },
    memory_bytes=39_000_000,
    checkpoint=660,
)
OPENING = TerminalRunHeader(
    experiment="digits",
    plan=Plan(mesh=MeshShape(data=4, spatial_h=2)),
    platform="cpu",
    is_virtual=True,
    model="resnet8",
    parameter_count=78_330,
    data="digits",
    train_samples=1437,
    test_samples=360,
    batch=64,
    epochs=30,
    steps=660,
    folder=Path("runs/digits"),
    value_sources={"default": 35, "experiment": 6},
    audit="14 collectives, as planned",
    memory_bytes=39_000_000,
)
FOLDER = Path("runs/digits")
NEXT = [
    "jaxdist eval digits",
    "jaxdist ckpt verify digits",
    "jaxdist trace digits -o trace.json",
]


def printed(block, width=100, encoding="utf-8", **more):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, legacy_windows=False, **more)
    console.print(block)
    file.seek(0)
    return file.read()


def test_the_block_before_training():
    assert printed(OPENING) == (
        "digits    data 4 x spatial_h 2    8 devices (cpu, fake), 1 process\n"
        "  model   resnet8, 78,330 parameters            data    digits, 1,437 train, 360 test\n"
        "  batch   64 global, 16 a replica               length  30 epochs, 660 steps\n"
        "  run     runs/digits (new)                     config  41 values, 6 by the experiment\n"
        "  audit   14 collectives, as planned            memory  39.0 MB a device, compiled\n"
    )


def test_on_an_accelerator_the_kernel_of_attention_is_named():
    on_tpu = replace(OPENING, platform="tpu", is_virtual=False, attention="splash")
    assert "\n  attention: splash\n" in printed(on_tpu)
    assert "attention" not in printed(replace(OPENING, attention="einsum"))


def test_logits_in_chunks_are_named():
    assert "\n  logits: in chunks\n" in printed(replace(OPENING, has_logit_chunks=True))
    assert "logits" not in printed(OPENING)


def test_the_block_after_training():
    assert printed(run_summary(RUN, FOLDER, NEXT)) == (
        "done      test accuracy 99.17 % (357 of 360), loss 0.032, 34.2 s, checkpoint at step 660\n"
        "\n"
        "  Time by phase         s    share                        Bytes a step and device\n"
        "  compute            23.6   69.0 %  ████████████████████    all-reduce, data x spatial_h   548 kB\n"
        "  compile             7.9   23.1 %  ██████▋                 halo, spatial_h               96.0 kB\n"
        "  evaluation          1.9    5.6 %  █▌                      all-reduce, loss                  8 B\n"
        "  input               0.4    1.2 %  ▎                     Memory a device\n"
        "  checkpoint          0.3    0.9 %  ▎                       compiled step  39.0 MB\n"
        "  other               0.1    0.3 %\n"
        "\n"
        "  1,760 samples/s, step 36.4 ms (p5 34.9, p95 39.8)\n"
        "\n"
        "  report   runs/digits/report.html\n"
        "  try      jaxdist eval digits\n"
        "           jaxdist ckpt verify digits\n"
        "           jaxdist trace digits -o trace.json\n"
    )


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("block", [OPENING, run_summary(RUN, FOLDER, NEXT)])
def test_nothing_is_wider_than_the_terminal(block, width):
    lines = printed(block, width).splitlines()
    assert max(map(len, lines)) <= width


def test_tables_stand_below_each_other_where_they_do_not_fit_beside():
    lines = printed(run_summary(RUN, FOLDER, NEXT), 80).splitlines()
    other = next(n for n, line in enumerate(lines) if line.startswith("  other"))
    assert lines[other + 2] == "  Bytes a step and device"


def test_every_sign_is_ascii_where_the_encoding_is():
    after = printed(run_summary(RUN, FOLDER, NEXT), encoding="ascii")
    assert "compute            23.6   69.0 %  ####################" in after
    assert printed(OPENING, encoding="ascii").isascii()


def test_colour_adds_nothing_but_escapes():
    coloured = printed(
        run_summary(RUN, FOLDER, NEXT), color_system="truecolor", force_terminal=True
    )
    for word in ("compute", "all-reduce, data x spatial_h", "compiled step"):
        assert word in coloured


def test_a_resumed_run_says_from_where_and_what_was_skipped():
    resumed = replace(
        OPENING,
        resumed_at=440,
        warnings=(
            "checkpoint 460 skipped: params/stem/kernel, checksum 7d01 instead of 3ac9",
        ),
    )
    text = printed(resumed)
    assert "  run     runs/digits, resumed at step 440 (newest verified)" in text
    assert "warn:     checkpoint 460 skipped: params/stem/kernel" in text
    assert max(map(len, printed(resumed, 60).splitlines())) <= 60


def test_values_of_the_command_line_are_counted():
    some = replace(
        OPENING,
        value_sources={"default": 3, "experiment": 1, "command line": 2, "the plan": 9},
    )
    text = " ".join(printed(some).split())
    assert (
        "15 values, 1 by the experiment, 2 on the command line, 9 by the plan" in text
    )


def test_facts_that_are_not_known_are_left_out():
    text = printed(replace(OPENING, audit="", memory_bytes=0))
    assert "audit" not in text
    assert "memory" not in text
    for width in (60, 100):
        assert all(
            line.strip()
            for line in printed(
                replace(OPENING, audit="", memory_bytes=0), width
            ).splitlines()
        )


def test_a_stopped_run_says_how_to_go_on():
    run = Run(
        name="my run", experiment="digits", status="stopped", steps=440, checkpoint=440
    )
    again = "jaxdist resume 'my run' --trust"
    text = printed(run_summary(run, Path("runs/my run"), [again]))
    assert text.startswith(
        "stopped   at step 440, not evaluated, checkpoint at step 440\n"
    )
    assert again in text
    assert "samples/s" not in text
    assert "Time by phase" not in text


def test_commands_are_at_most_three():
    text = printed(run_summary(RUN, FOLDER, ["one", "two", "three", "four"]))
    assert "  try      one\n           two\n           three\n" in text
    assert "four" not in text


def test_names_are_not_read_as_markup():
    run = replace(RUN, bytes_by_collective={"[red]all[/red], data": 5})
    assert "[red]all[/red], data" in printed(run_summary(run, Path("runs/[b]"), NEXT))
    assert "runs/[b]/report.html" in printed(run_summary(run, Path("runs/[b]"), NEXT))
