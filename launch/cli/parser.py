"""Arguments: the words of a command line, and the options that commands share."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from jaxdist.core.errors import BadInput, did_you_mean


class CommandParser(argparse.ArgumentParser):
    """A parser whose complaints teach: bad options are BadInput with a suggestion."""

    def __init__(self, prog: str, summary: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=summary,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Read the words; options may stand between the overrides.

        Where the command takes a program, that is what stands behind `--`.

        Raises:
            BadInput: an option or a value that the command does not have.
        """
        if self.get_default("program") is None or "--" not in words:
            return self.parse_intermixed_args(words)
        end = list(words).index("--")
        args = self.parse_intermixed_args(words[:end])
        args.program = tuple(words[end + 1 :])
        return args

    def error(self, message: str) -> NoReturn:
        """Turn a complaint of argparse into BadInput."""
        help_line = f"{self.prog} --help lists what it takes"
        choice = re.match(
            r"argument (.+): invalid choice: '(.*)' \(choose from (.*)\)", message
        )
        if choice:
            known = re.findall(r"'([^']*)'", choice[3])
            near = did_you_mean(choice[2], known)
            raise BadInput(
                f"no {choice[1]} {choice[2]}",
                rule=f"{choice[1]} is one of {', '.join(known)}",
                remedy=f"did you mean {near}?" if near else help_line,
            )
        unknown = re.match(r"unrecognized arguments: (.*)", message)
        if unknown:
            word = unknown[1].split()[0]
            near = did_you_mean(word.split("=")[0], self._option_string_actions)
            meant = f"did you mean {near}? " if near else ""
            raise BadInput(f"no option {word}", remedy=meant + help_line)
        raise BadInput(message, remedy=help_line)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json`: one object on standard output, seconds and bytes as units."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, and nothing else"
    )


def check_output_folder(path: Path) -> None:
    """Refuse a file to be written whose folder is not there.

    Raises:
        BadInput: says the same file here.
    """
    if not path.parent.is_dir():
        raise BadInput(
            f"no folder {path.parent}",
            rule="a file is written into a folder that exists",
            values=f"-o {path}",
            remedy=f"-o {path.name}",
        )


def add_what_if_option(parser: argparse.ArgumentParser) -> None:
    """Add numbers of the cluster to change: `args.what_if`."""
    parser.add_argument(
        "--what-if",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="another number of the cluster: levels.net.bandwidth=1gbit, "
        "device.memory=80GB; may be given again",
    )


def add_program_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `-- PROGRAM ...`, words of a command of its own: `args.program`."""
    parser.set_defaults(program=())


def add_restart_options(parser: argparse.ArgumentParser, help_prefix: str) -> None:
    """Add how often processes are started again: `args.restarts`, `args.grace`."""
    parser.add_argument(
        "--restarts",
        type=int,
        metavar="N",
        help=f"{help_prefix}start all again where one fails, up to N times (0; with a "
        "range "
        "of processes, 10)",
    )
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help=f"{help_prefix}seconds that they have to save, on SIGTERM or Ctrl-C (30)",
    )


def add_rejoin_option(parser: argparse.ArgumentParser, help_prefix: str) -> None:
    """Add when a place that was lost is asked again: `args.back_after`."""
    parser.add_argument(
        "--back-after",
        type=float,
        metavar="S",
        help=f"{help_prefix}with a range, seconds before a process or host that was "
        "lost is "
        "taken back, twice as many each time (30)",
    )


def add_experiment_arguments(parser: argparse.ArgumentParser) -> None:
    """Add EXPERIMENT and its overrides: `args.experiment`, `args.overrides`."""
    _add_experiment(
        parser, "a name of `jaxdist experiments`, or a file my_experiment.py"
    )


def add_experiment_or_step(parser: argparse.ArgumentParser) -> None:
    """Add the same, where a script and the name of its step will do as well."""
    _add_experiment(
        parser,
        "a name of `jaxdist experiments`, a file my_experiment.py, or "
        "my_script.py:step for a jitted function of your own with its `args`",
    )


def _add_experiment(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT", help=what)
    parser.add_argument(
        "overrides",
        metavar="key.sub=value",
        nargs="*",
        default=(),  # without it argparse calls an empty list a missing argument
        help="change a value; `jaxdist config EXPERIMENT` lists the keys",
    )


def add_run_argument(parser: argparse.ArgumentParser, name: str = "run") -> None:
    """Add RUN, a name or a path: `args.run`, to be found with `find_run`."""
    parser.add_argument(
        name, metavar=name.upper(), help="a run inside the folder of runs, or a path"
    )


def add_runs_folder_option(parser: argparse.ArgumentParser) -> None:
    """Add `--dir`, the folder of the runs that are given by name: `args.dir`."""
    parser.add_argument(
        "--dir",
        metavar="FOLDER",
        default="runs",
        help="folder of the runs that are given by name (runs)",
    )
