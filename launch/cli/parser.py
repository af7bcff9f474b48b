"""Parses command lines, and adds the options that several commands share."""

import argparse
import re
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from jaxdist.core.errors import BadInput, did_you_mean
from jaxdist.launch.config.experiment import experiment_names

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Query = TypeVar("Query", bound="DataclassInstance")

KEY_METAVAR: Final = "key.sub=value"
"""How the help writes settings of an experiment."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the help between words, and never inside of a `command in backticks`."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        # textwrap does not break at a no-break space, but would at a hyphen: `--dry-`.
        words = re.sub(
            r"`[^`]*`", lambda found: _bind(found[0]), " ".join(text.split())
        )
        lines = textwrap.wrap(
            words, width, break_on_hyphens=False, break_long_words=False
        )
        return [line.replace(_NO_BREAK, " ") for line in lines]


_NO_BREAK: Final = "\u00a0"


def _bind(text: str) -> str:
    """Replace spaces by such that no line ends at."""
    return text.replace(" ", _NO_BREAK)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are BadInput with a remedy, and whose forms have options.

    Args:
        prog: words that stand in front of the arguments.
        summary: one line for the help.
        epilog: lines of the help behind the options.
        example: a command line that works: the end of the help, and the remedy for a
            missing argument.
    """

    def __init__(
        self, prog: str, summary: str, epilog: str = "", example: str = ""
    ) -> None:
        super().__init__(
            prog=prog,
            description=summary,
            epilog=epilog,
            # With abbreviations an option added later would change what old command
            # lines mean.
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )
        self.forms: dict[str, CommandParser] = {}
        """Forms by their word, those of old command lines left out."""
        self.takes_keys = False
        """Whether settings of an experiment may be typed: `add_overrides`."""
        # Forms share one mapping, so that each knows what the others take.
        self._siblings = self.forms
        self._old_forms: dict[str, CommandParser] = {}
        self._example, self._default_form, self._form_hint = example, "", ""

    def add_form(
        self,
        name: str,
        summary: str,
        *,
        example: str,
        default: bool = False,
        hidden: bool = False,
    ) -> "CommandParser":
        """Add a form of the command with options of its own: `jaxdist launch local`.

        The form that was typed is `args.action`.

        Args:
            name: its word.
            summary: one line for the help.
            example: its arguments in a command line that works.
            default: whether the form is meant where the first word names none.
            hidden: whether it is kept for old command lines, and in no help.
        """
        # argparse has one set of subparsers; it writes their help and checks the word.
        if not self.forms and not hidden:
            self._words = self.add_subparsers(dest="action", required=True)
        prog = f"{self.prog} {name}"
        typed = f"{self.prog if default else prog} {example}".rstrip()
        if hidden:
            form = CommandParser(prog, summary, self.epilog or "", typed)
            self._old_forms[name] = form
        else:
            form = self._words.add_parser(
                name,
                help=summary,
                prog=prog,
                summary=summary,
                epilog=self.epilog,
                example=typed,
            )
            self.forms[name] = form
        # `parse` hands the words to the form itself, past argparse, which would set it.
        form.set_defaults(action=name)
        form._siblings = self.forms
        if default:
            self._default_form = name
            if not hidden:
                self._form_hint = f"without one of these words: {name}\n"
        return form

    def add_program(self) -> None:
        """Take a program behind `--`, a command line of its own: `args.program`."""
        self.set_defaults(program=())
        behind = "behind --: `train EXPERIMENT ...`, or another program with its words"
        self.epilog = f"{behind}\n{self.epilog}"

    @property
    def examples(self) -> tuple[str, ...]:
        """Command lines that work: its own, or one of each form."""
        if self.forms:
            return tuple(line for form in self.forms.values() for line in form.examples)
        return (self._example,) if self._example else ()

    @property
    def option_names(self) -> frozenset[str]:
        """The options that the command and its forms take."""
        forms = (*self.forms.values(), *self._old_forms.values())
        return frozenset(self._option_string_actions).union(
            *(form.option_names for form in forms)
        )

    @property
    def visible_actions(self) -> tuple[argparse.Action, ...]:
        """Options and positional words that are in the help."""
        return tuple(a for a in self._actions if a.help != argparse.SUPPRESS)

    def split_form(self, words: Sequence[str]) -> "tuple[CommandParser, list[str]]":
        """Return the form that words are for, and the words without its own.

        Itself where it has no forms, or where no word names one and none is meant.
        """
        forms = {**self.forms, **self._old_forms}
        place = self._find_form(words)
        name = self._default_form if place is None else words[place]
        if name not in forms:
            return self, list(words)
        if place is None:
            self._check_misspelt_form(words)
        return forms[name], [w for at, w in enumerate(words) if at != place]

    def make_optional(self, name: str) -> None:
        """Let a positional argument be left out; it is None then."""
        for action in self._actions:
            if action.dest == name:
                action.nargs, action.required = "?", False

    def format_help(self) -> str:
        """Return the help, which ends with examples."""
        title = "example" if len(self.examples) == 1 else "examples"
        lines = "".join(f"  {line}\n" for line in self.examples)
        last = f"\n{title}:\n{lines}" if lines else ""
        own = self.epilog
        try:
            self.epilog = f"{self._form_hint}{own}"
            return super().format_help() + last
        finally:
            self.epilog = own

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Read the words; options may stand among positional words, before a form too.

        Where the command takes a program, that is what stands behind `--`.

        Raises:
            BadInput: an option or a value that the command does not have.
        """
        words = list(words)
        if self.forms:
            form, words = self.split_form(words)
            if form is not self:
                return form.parse(words)
            # argparse prints the help, or says what is wrong with the word.
            place = self._find_form(words)
            return self.parse_args([] if place is None else [words[place]])
        program = None
        # argparse would take the options of the program for the command's own.
        if self.get_default("program") is not None and "--" in words:
            end = words.index("--")
            words, program = words[:end], tuple(words[end + 1 :])
        for word in words:
            self._check_sibling_option(word.partition("=")[0])
        # Overrides and options may alternate: `train digits --json optim.lr=0.1`, which
        # parse_args refuses.
        args = self.parse_intermixed_args(words)
        if program is not None:
            args.program = program
        return args

    def _find_form(self, words: Sequence[str]) -> int | None:
        """Return the place of the word of a form, None where there is none."""
        place = self._find_word(words)
        if place is None or words[place] in ("-h", "--help"):
            return place
        forms = {**self.forms, **self._old_forms}
        return place if words[place] in forms or not self._default_form else None

    def _check_misspelt_form(self, words: Sequence[str]) -> None:
        """Refuse a word that is nearly a form's, and nothing else that there is."""
        place = self._find_word(words)
        word = "" if place is None else words[place]
        near = did_you_mean(word, self.forms) if word.isidentifier() else None
        if near and word not in experiment_names() and not Path(word).exists():
            command = self.prog.removeprefix("jaxdist ")
            raise BadInput(
                f"{command} has no form {word}",
                rule=f"its forms are {', '.join(self.forms)}",
                remedy=f"did you mean {command} {near}?",
            )

    def _find_word(self, words: Sequence[str]) -> int | None:
        """Return the place of the first word that is no option and no value of one."""
        forms = {**self.forms, **self._old_forms}
        options = {}
        for form in forms.values():
            options.update(form._option_string_actions)
        is_value = False
        for place, word in enumerate(words):
            # A value of an option is skipped, whatever it is: `--name local`.
            if is_value:
                is_value = False
            elif word == "--":
                break
            elif word in ("-h", "--help"):
                return place
            elif word.startswith("-"):
                # An option without a value, as --json, has 0 here.
                is_value = word in options and options[word].nargs is None
            else:
                return place
        return None

    def _check_sibling_option(self, option: str) -> None:
        """Refuse an option that another form of the command takes, and say which."""
        # Before argparse, which would complain first of what is missing.
        owners = [
            f"{form.prog} takes it"
            for form in self._siblings.values()
            if any(option in action.option_strings for action in form.visible_actions)
        ]
        if owners and option not in self._option_string_actions:
            raise BadInput(
                f"{self.prog.removeprefix('jaxdist ')} takes no {option}",
                rule="; ".join(owners),
                remedy=f"{self.prog} --help lists what it takes",
            )

    def error(self, message: str) -> NoReturn:
        """Turn an error of argparse into BadInput."""
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
        # argparse reports the word and not what it could have been: names are compared
        # here.
        unknown = re.match(r"unrecognized arguments: (.*)", message)
        if unknown:
            word = unknown[1].split()[0]
            near = self._nearest_option(word.partition("=")[0])
            meant = f"did you mean {near}? " if near else ""
            kind = "option" if word.startswith("-") else "argument"
            raise BadInput(f"no {kind} {word}", remedy=meant + help_line)
        # A missing argument is best shown in a whole command line.
        shown = self.examples[:1] if "required" in message else ()
        raise BadInput(message, remedy=[*shown, help_line])

    def _nearest_option(self, option: str) -> str | None:
        """Return the option, or the setting as an option, that was likely meant."""
        actions = self._option_string_actions
        known = [o for o, action in actions.items() if action.help != argparse.SUPPRESS]
        if self.takes_keys and option.startswith("--"):
            from jaxdist.launch.config.aliases import SHORT_KEYS
            from jaxdist.launch.config.experiment import Experiment
            from jaxdist.launch.config.tree import key_types

            known += [f"--{key.replace('_', '-')}" for key in SHORT_KEYS]
            known += [f"--{key}" for key in key_types(Experiment)]
        return did_you_mean(option, known)


def query_from(args: argparse.Namespace, query: type[Query]) -> Query:
    """Return the options of a command as its dataclass, whose fields they are named by.

    Args:
        args: parsed words.
        query: class of the options, such as `PlanQuery`.
    """
    # A field without an option is an error and no default: none is forgotten.
    return query(**{field.name: getattr(args, field.name) for field in fields(query)})


def parse_int_list(text: str) -> tuple[int, ...]:
    """Read numbers with commas between them, as the type of an option."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not numbers with commas: {text}") from None


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add `--json`: one object on standard output, in seconds and bytes."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, and nothing else"
    )


def add_output_option(
    parser: argparse.ArgumentParser, purpose: str, default: Path | None = None
) -> None:
    """Add `-o FILE` and `--force`: `args.output`, to be held against `check_output`.

    Args:
        parser: of a command.
        purpose: what the file is for, in the help.
        default: the file where none is named.
    """
    parser.add_argument(
        *("-o", "--output"), metavar="FILE", type=Path, default=default, help=purpose
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite FILE where it is there"
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


def add_experiment_arguments(parser: CommandParser, *, or_step: bool = False) -> None:
    """Add EXPERIMENT and its overrides: `args.experiment`, `args.overrides`.

    Args:
        parser: of a command.
        or_step: whether a script and the name of its step will do as well.
    """
    what = "a name of `jaxdist experiments`, or a file my_experiment.py"
    if or_step:
        what = (
            "a name of `jaxdist experiments`, a file my_experiment.py, or "
            "my_script.py:step for a jitted function of your own with its `args`"
        )
    parser.add_argument("experiment", metavar="EXPERIMENT", help=what)
    add_overrides(parser)


def add_overrides(parser: CommandParser) -> None:
    """Add settings to change: `args.overrides`, and a file of them, `args.config_file`.

    Each may be typed as an option too: `--epochs 2` is `epochs=2` (`words.py`).
    """
    parser.takes_keys = True
    parser.add_argument(
        "overrides",
        metavar=KEY_METAVAR,
        nargs="*",
        default=(),  # without it argparse calls an empty list a missing argument
        help="change a value; `jaxdist config EXPERIMENT` lists the keys; an option is "
        "as good: `--epochs 2`, `--lr 0.1`",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        dest="config_file",
        help="YAML or TOML file of such values; what is typed beside it wins",
    )
    parser.add_argument(
        "--hf",
        metavar="FILE",
        type=Path,
        dest="hf_config",
        help="config.json of Hugging Face: the network has its sizes, EXPERIMENT may "
        "be left out; weights=FOLDER starts from its weights too",
    )


def add_run_argument(parser: argparse.ArgumentParser, name: str = "run") -> None:
    """Add RUN, a name or a path: `args.run`, to be found with `find_run`."""
    parser.add_argument(
        name, metavar=name.upper(), help="a run inside the folder of runs, or a path"
    )


def add_checkpoint_option(
    parser: argparse.ArgumentParser, *, default: str = "the newest"
) -> None:
    """Add `--checkpoint`: `args.checkpoint`, a step, `best` or None.

    Args:
        parser: of a command.
        default: what is taken where none is named, in the help.
    """
    parser.add_argument(
        "--checkpoint",
        type=lambda text: text if text == "best" else int(text),
        metavar="N",
        help=f"step of the checkpoint, or best ({default})",
    )


def add_target_option(
    parser: argparse.ArgumentParser, *, required: bool = False
) -> None:
    """Add `--target`: a machine that is not here, for `parse_target`."""
    parser.add_argument(
        "--target",
        metavar="CHIP:SHAPE",
        required=required,
        help="a machine that need not be here: tpu-v5p:4x4x4, tpu-v6e:4x4, h100:2x8 "
        "(hosts x devices), ... of docs/targets.md",
    )


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`: code that a run names is imported, whoever wrote it."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import any module that the files of the run name; without it those of "
        "jaxdist and the experiment's own file",
    )


def add_runs_folder_option(parser: argparse.ArgumentParser) -> None:
    """Add `--dir`, the folder of the runs that are given by name: `args.dir`."""
    parser.add_argument(
        "--dir",
        metavar="FOLDER",
        default="runs",
        help="folder of the runs that are given by name (runs)",
    )
