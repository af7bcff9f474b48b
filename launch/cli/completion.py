"""Completion: what may be typed next, told from the parsers, and scripts for shells.

A script asks `jaxdist completion words` at each Tab. Nothing here imports jax: the
answer takes as long as `--help`, about 0.2 s.
"""

import argparse
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from jaxdist.launch.cli.main import (
    COMMAND_GROUPS,
    command_names,
    load_command,
    make_parser,
    rename_command,
)
from jaxdist.launch.cli.parser import KEY_METAVAR, CommandParser
from jaxdist.launch.config.experiment import Experiment, experiment_names
from jaxdist.launch.config.tree import (
    flatten_config,
    format_value,
    key_types,
    literal_choices,
)
from jaxdist.launch.launchers.program import MULTI_PROCESS_COMMANDS
from jaxdist.launch.run_folder.folder import RunFolder, run_names

SHELLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bash": """\
_jaxdist() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion words --shell bash -- \\
        "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o nospace -F _jaxdist jaxdist
""",
        "zsh": """\
#compdef jaxdist
_jaxdist() {
    local line
    local -a whole begun
    for line in "${(@f)$("${(Q)words[1]}" completion words --shell zsh -- \\
        "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        # What ends so is only the beginning of a word.
        if [[ $line == *[=/] ]]; then begun+=("$line")
        elif [[ -n $line ]]; then whole+=("$line"); fi
    done
    (( $#whole )) && compadd -- "${whole[@]}"
    (( $#begun )) && compadd -S '' -- "${begun[@]}"
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _jaxdist jaxdist
""",
        "fish": """\
function __jaxdist_words
    set -l typed (commandline -opc) (commandline -ct)
    $typed[1] completion words --shell fish -- $typed[2..-1] 2>/dev/null
end
complete -c jaxdist -f -a '(__jaxdist_words)'
""",
    }
)
"""The script of each shell, to be sourced."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A word that may stand where the last one is typed."""

    text: str
    """The whole word; a beginning of one, where it ends in `=` or `/`."""
    about: str = ""
    """A line on it."""


def complete_words(words: Sequence[str]) -> list[Completion]:
    """Return what the last word may become.

    Args:
        words: those behind `jaxdist`; the last one is being typed, and may be empty.
    """
    *before, typed = words or ("",)
    return [
        found for found in _candidates(before, typed) if found.text.startswith(typed)
    ]


def answer_shell(shell: str, words: Sequence[str]) -> list[str]:
    """Return the lines that the script of a shell takes.

    Args:
        shell: a name of `SHELLS`.
        words: those behind `jaxdist`, as the shell has split them.
    """
    found = complete_words(_join_split_words(words) if shell == "bash" else words)
    if shell == "fish":
        return [f"{one.text}\t{one.about}" for one in found]
    if shell == "zsh":
        return [one.text for one in found]
    # Bash replaces what stands behind the last `=`, and adds no space by itself.
    last = words[-1] if words else ""
    is_split = last == "=" or (len(words) > 1 and words[-2] == "=")
    texts = [one.text.partition("=")[2] if is_split else one.text for one in found]
    return [
        # Bash puts the text into the line as it is, where it would be split.
        re.sub(r"([^\w=/.,:@%+-])", r"\\\1", text)
        + " " * (not text.endswith(("=", "/")))
        for text in texts
    ]


def _join_split_words(words: Sequence[str]) -> list[str]:
    """Join what bash has split at `=`: it counts as a word of its own there.

    >>> _join_split_words(["train", "digits", "optim.name", "=", "ad"])
    ['train', 'digits', 'optim.name=ad']
    """
    joined: list[str] = []
    glued = False
    for word in words:
        if joined and (word == "=" or glued):
            joined[-1] += word
        else:
            joined.append(word)
        glued = word == "="
    return joined


def _candidates(before: Sequence[str], typed: str) -> Iterator[Completion]:
    """Yield what may stand behind some words, whatever was typed of it."""
    if not before:
        for name in (name for names in COMMAND_GROUPS.values() for name in names):
            yield Completion(text=name, about=load_command(name).summary)
        if typed.startswith("-"):
            yield from map(_plain, ("--help", "--version"))
        return
    name, rest, _ = rename_command(before[0], before[1:])
    if name not in command_names():
        return
    parser = make_parser(name)
    form, words = parser.split_form(rest)
    # Behind `--` is another command line.
    if "--" in rest:
        program = rest[rest.index("--") + 1 :]
        # Only a form that takes a program has this default (`add_program`).
        if form.get_default("program") is None:
            return
        found = _candidates(program, typed)
        yield from (
            one for one in found if program or one.text in MULTI_PROCESS_COMMANDS
        )
        return
    if parser.forms and not any(word in parser.forms for word in rest):
        for word, one in parser.forms.items():
            yield Completion(text=word, about=one.description or "")
    if form is not parser or not parser.forms:
        yield from _form_candidates(form, words, typed)


def _form_candidates(
    form: CommandParser, before: Sequence[str], typed: str
) -> Iterator[Completion]:
    """Yield what may stand behind the words of a form, or of a command without."""
    options = {
        option: action
        for action in form.visible_actions
        for option in action.option_strings
    }
    folder, waiting, count = "runs", None, 0
    for word in before:
        if waiting is not None:
            folder = word if waiting.dest == "dir" else folder
            waiting = None
        elif word.startswith("-"):
            option, equals, value = word.partition("=")
            action = options.get(option)
            if equals:  # its value is there already
                named = action is not None and action.dest == "dir"
                folder = value if named else folder
                continue
            # An action of no arguments, such as --json, has 0.
            waiting = action if action is not None and action.nargs is None else None
        else:
            count += 1
    if waiting is not None:
        yield from _values(waiting, typed, folder)
        return
    option, equals, value = typed.partition("=")
    if equals and option in options:
        for one in _values(options[option], value, folder):
            yield Completion(text=f"{option}={one.text}", about=one.about)
        return
    if typed.startswith("-"):
        for option, action in options.items():
            if option.startswith("--"):
                yield Completion(text=option, about=_about(action))
        return
    positional = [a for a in form.visible_actions if not a.option_strings]
    words = [
        a for a in positional for _ in range(_MANY if a.nargs in ("*", "+") else 1)
    ]
    if count < len(words):
        yield from _values(words[count], typed, folder)


# For words of which there may be any number.
_MANY: Final = 1000


def _values(action: argparse.Action, typed: str, folder: str) -> Iterator[Completion]:
    """Yield the values that an option or a positional word may have.

    Args:
        action: the option, whose metavar says what kind its values are of.
        typed: the beginning of the value.
        folder: the folder of runs.
    """
    kind = str(action.metavar or "")
    if action.choices is not None:
        yield from map(_plain, map(str, action.choices))
    elif kind == KEY_METAVAR:
        yield from _settings(typed)
    elif kind.startswith("RUN"):
        yield from map(_plain, run_names(folder))
        yield from _files(typed, folders=True)
    elif action.dest in ("experiment", "name", "model") and not action.option_strings:
        yield from map(_plain, experiment_names())
        yield from _files(typed, ending=".py")
    elif "NAME|FILE" in kind:
        yield from map(_plain, _cluster_names())
        yield from _files(typed)
    elif kind == "FOLDER":
        yield from _files(typed, folders=True)
    elif "FILE" in kind:
        yield from _files(typed)


def _settings(typed: str) -> Iterator[Completion]:
    """Yield keys of the configuration, or the values of the key that was typed."""
    types, usual = key_types(Experiment), flatten_config(Experiment(name=""))
    key, equals, _ = typed.partition("=")
    if not equals:
        for key in types:
            yield Completion(
                text=f"{key}=", about=f"default {format_value(usual[key])}"
            )
    elif key in types:
        choices = (
            ("True", "False") if types[key] is bool else literal_choices(types[key])
        )
        yield from (_plain(f"{key}={value}") for value in choices)


def _cluster_names() -> list[str]:
    """Return what `jaxdist.meshes.clusters.load.cluster_names` does, without numpy."""
    # Found, not imported: reading clusters needs numpy, and only their names are.
    spec = find_spec("jaxdist.meshes.clusters")
    folders = spec.submodule_search_locations if spec else None
    found = (path for folder in folders or () for path in Path(folder).glob("*.yaml"))
    return sorted(path.stem for path in found)


def _files(
    typed: str, *, folders: bool = False, ending: str = ""
) -> Iterator[Completion]:
    """Yield the files and folders that a path may go on with."""
    head = typed[: typed.rfind("/") + 1]
    # The shell does not write the home folder out before it asks.
    place = Path(os.path.expanduser(head) or ".")
    if not place.is_dir():
        return
    for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
        if entry.name.startswith(".") and not typed[len(head) :].startswith("."):
            continue
        if entry.is_dir():
            # The folder of a run is a whole word: what is in it is no run.
            is_run = folders and RunFolder(Path(entry.path)).has_run
            yield _plain(f"{head}{entry.name}" + "/" * (not is_run))
        elif not folders and entry.name.endswith(ending):
            yield _plain(f"{head}{entry.name}")


def _plain(text: str) -> Completion:
    return Completion(text=text)


def _about(action: Any) -> str:
    return " ".join(str(action.help or "").replace("%%", "%").split())
