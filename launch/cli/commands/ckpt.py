"""`jaxdist ckpt`: look at the checkpoints of a run, anywhere and without its model."""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.core.text.formatting import format_count, format_duration, format_size
from jaxdist.core.validation import json_text
from jaxdist.launch.cli.parser import add_checkpoint_option

if TYPE_CHECKING:
    from rich.console import Console

    from jaxdist.launch.run_folder.folder import RunFolder
    from jaxdist.train.checkpoint.best import CheckpointStep

summary: Final = "list, inspect, verify, hash or download the checkpoints of a run"
example: Final = "ls digits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what may be typed after `jaxdist ckpt`."""
    add = parser.add_argument
    add(
        "action",
        choices=(*_ACTIONS, "pull"),
        help="ls: all, each one verified; inspect: leaves and notes; "
        "verify: recompute the checksums, exit code 1 if damaged; "
        "hash: one digest of the parameters; pull: download the newest copy of a run "
        "in a store, and its settings, into runs/",
    )
    add("run", metavar="RUN", help="name or path of a run; pull: s3://BUCKET/RUN")
    add_checkpoint_option(parser, default="the newest; verify: all")
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for; 1 if a checkpoint is damaged."""
    import jax

    from jaxdist.launch.run_folder.folder import find_run

    # Accelerators are left alone: a run may be using them.
    jax.config.update("jax_platforms", "cpu")
    if args.action == "pull":
        directory = download_run(args.run, Path("runs")).checkpoints
        return act("ls", directory, None, as_json=args.json)
    directory = find_run(args.run).checkpoints
    return act(args.action, directory, args.checkpoint, as_json=args.json)


def act(action: str, directory: Path, step: "CheckpointStep", *, as_json: bool) -> int:
    """Report on a folder of checkpoints and print it.

    Args:
        action: ls, inspect, verify or hash.
        directory: the folder of the checkpoints.
        step: one checkpoint, or None.
        as_json: print one JSON object.

    Returns:
        1 if a checkpoint that was asked about is damaged, else 0.
    """
    from rich.console import Console

    report, show = _ACTIONS[action]
    found = report(directory, step)
    # A run that is resumed deletes its oldest checkpoints: what is gone is not damaged.
    while found.get("damage") and not Path(found["path"]).exists():
        found = report(directory, step)
    if as_json:
        print(json_text(found, indent=2))
    else:
        show(found, Console(highlight=False, soft_wrap=True))
    # A list shows damage as it shows age: only what was asked about one by one fails.
    rows = found.get("checkpoints", [found])
    return int(action != "ls" and any(row.get("damage") for row in rows))


def download_run(address: str, runs: Path) -> "RunFolder":
    """Download the newest copy of a run, and the best, and its settings.

    Args:
        address: of the run in a store.
        runs: folder of runs; it gets one of the run's name.

    Raises:
        BadInput: a run of the name is there, or the store holds no copy of one.
    """
    from jaxdist.launch.run_folder.folder import RunFolder, check_writable
    from jaxdist.train.checkpoint.checkpoints import Checkpoints
    from jaxdist.train.checkpoint.remote_copies import RemoteCopies

    if "://" not in address:
        raise BadInput(
            f"{address or 'an empty name'} is no address of a store",
            rule="a run is downloaded from where its checkpoint.store copied it",
            values="no s3://, gs:// or file:///",
            remedy="jaxdist ckpt pull s3://BUCKET/runs/NAME",
        )
    folder = RunFolder(runs / address.rstrip("/").rpartition("/")[2])
    if folder.path.exists():
        raise BadInput(
            f"{folder.path} is there already",
            rule="a run is downloaded into a folder of its name",
            values=address,
            remedy=f"mv {folder.path} {folder.path}-before",
        )
    check_writable(runs)
    copies = RemoteCopies(address)
    copies.check(write=False)
    if not copies.steps():
        raise BadInput(
            f"{address} has no checkpoint",
            rule="a run's copies are in the store under its name",
            values="no checkpoints/STEP.json there",
            remedy="the address that training had: its checkpoint.store/run.name",
        )
    runs.mkdir(parents=True, exist_ok=True)
    # It has its name once all of it is there: an interrupted download is begun again.
    with TemporaryDirectory(dir=runs, prefix=f".{folder.name}-") as part:
        made = RunFolder(Path(part, folder.name))
        checkpoints = Checkpoints(made.checkpoints, copies=copies)
        try:
            skipped = checkpoints.fetch_newest()
        finally:
            checkpoints.close()
        if not checkpoints.steps():
            raise BadInput(
                f"no copy in {address} can be used",
                rule="every leaf is what was saved",
                values="; ".join(skip.text() for skip in skipped),
                remedy="train again",
            )
        copies.download_run_files(made.path)
        made.path.rename(folder.path)
    for skip in skipped:
        print(f"copy of {skip.text()}", file=sys.stderr)
    return folder


def listing(directory: Path, step: "CheckpointStep" = None) -> dict[str, Any]:
    """List checkpoints, oldest first, each with its damage or None."""
    from jaxdist.train.checkpoint import reader
    from jaxdist.train.checkpoint.best import read_best

    # Each is verified by its checksums, which reads all of its bytes.
    rows = []
    steps = reader.list_steps(directory)
    if step is not None:
        steps = (int(reader.checkpoint_folder(directory, step).name),)
    for folder in (directory / str(number) for number in steps):
        row = _checkpoint_row(folder)
        if row is not None:
            rows.append(row)
        elif step is not None:
            # Gone meanwhile: the error says which there are.
            reader.checkpoint_folder(directory, step)
    aside = [str(path) for path in reader.list_quarantined(directory)]
    best = read_best(directory)
    return {
        "directory": str(directory),
        "checkpoints": rows,
        "best": None if best is None else asdict(best),
        "set_aside": aside,
    }


def _checkpoint_row(folder: Path) -> dict[str, Any] | None:
    """Describe and verify a checkpoint; None where a run has deleted it meanwhile."""
    from jaxdist.train.checkpoint import reader

    try:
        # The time of the folder, since a damaged manifest may have none.
        saved = folder.stat().st_mtime
        files = [path for path in folder.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
    except FileNotFoundError:
        return None
    damage = reader.find_corruption(folder)
    if damage and not folder.exists():
        return None
    return {
        "step": int(folder.name),
        "path": str(folder),
        "bytes": size,
        "saved": saved,
        "age_s": max(time.time() - saved, 0.0),
        "damage": damage,
    }


def inspection(directory: Path, step: "CheckpointStep" = None) -> dict[str, Any]:
    """Tell what one checkpoint says about itself, and the bytes of each leaf."""
    from jaxdist.train.checkpoint import reader

    folder = reader.checkpoint_folder(directory, step)
    try:
        notes = reader.read_manifest(folder)
    except reader.CorruptCheckpointError as damage:
        return {"path": str(folder), "damage": str(damage)}
    return {
        "path": str(folder),
        "step": notes.step,
        "bytes": notes.nbytes,
        "about": dict(notes.about),
        "leaves": {
            name: {**asdict(note), "bytes": note.nbytes}
            for name, note in notes.leaves.items()
        },
    }


def hashing(directory: Path, step: "CheckpointStep" = None) -> dict[str, Any]:
    """Hash the parameters of one checkpoint, verified on the way."""
    from jaxdist.train.checkpoint import reader
    from jaxdist.train.checkpoint.checksum import hash_arrays

    folder, under = reader.checkpoint_folder(directory, step), "params/"
    try:
        notes = reader.read_manifest(folder)
        # Optimizer state is left out: the digest is of the network alone.
        leaves = reader.read_leaves(folder, notes, prefix=under)
        found = hash_arrays((name.removeprefix(under), array) for name, array in leaves)
    except reader.CorruptCheckpointError as damage:
        return {"path": str(folder), "damage": str(damage)}
    return {"path": str(folder), "step": notes.step, "params_sha256": found}


def _show_listing(found: dict[str, Any], console: "Console") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    rows, best = found["checkpoints"], found["best"]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("step", "size", "age"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for row in rows:
        state = f"damaged: {row['damage']}" if row["damage"] else "verified"
        if best and best["step"] == row["step"]:
            state += f", best {best['metric']} {best['value']:.4g}"
        size, age = format_size(row["bytes"]), format_duration(row["age_s"])
        table.add_row(format_count(row["step"]), size, age, escape(state))
    total = format_size(sum(row["bytes"] for row in rows))
    count = f"{format_count(len(rows))} checkpoint{'s' * (len(rows) != 1)}"
    _print_line(console, f"{found['directory']}    {count}, {total}")
    if rows:
        console.print(table)
    for path in found["set_aside"]:
        _print_line(console, f"  set aside  {path}")


def _show_inspection(found: dict[str, Any], console: "Console") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    if "damage" in found:
        _show_corruption(found, console)
        return
    number, leaves = format_count(found["step"]), found["leaves"]
    heading = f"{found['path']}    step {number}, {format_size(found['bytes'])}"
    _print_line(console, f"{heading}, {format_count(len(leaves))} leaves")
    for name, value in found["about"].items():
        _print_line(console, f"  {name}  {value}")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("leaf", "dtype", "shape"):
        table.add_column(name)
    table.add_column("size", justify="right")
    table.add_column("checksum")
    for name, leaf in leaves.items():
        # Random keys are stored as plain numbers with the name of their generator.
        kind = f"{leaf['key']} key" if leaf["key"] else leaf["dtype"]
        shape = escape(str([*leaf["shape"]]))
        table.add_row(
            name, kind, shape, format_size(leaf["bytes"]), leaf["fingerprint"]
        )
    console.print(table)


def _show_verification(found: dict[str, Any], console: "Console") -> None:
    for row in found["checkpoints"]:
        # Every checkpoint has a line: what is whole is worth knowing beside what is
        # not.
        word = "damaged" if row["damage"] else "verified"
        detail = row["damage"] or format_size(row["bytes"])
        _print_line(console, f"  {word:8}  checkpoint {row['step']}  {detail}")
    if not found["checkpoints"]:
        _print_line(console, f"no checkpoint in {found['directory']}")


def _show_hash(found: dict[str, Any], console: "Console") -> None:
    if "damage" in found:
        _show_corruption(found, console)
    else:
        print(found["params_sha256"])


def _show_corruption(found: dict[str, Any], console: "Console") -> None:
    _print_line(console, f"  damaged   {found['path']}  {found['damage']}")


def _print_line(console: "Console", text: str) -> None:
    # Paths may hold brackets, which are no markup.
    console.print(text, markup=False)


_ACTIONS: Final = {
    "ls": (listing, _show_listing),
    "inspect": (inspection, _show_inspection),
    "verify": (listing, _show_verification),
    "hash": (hashing, _show_hash),
}
