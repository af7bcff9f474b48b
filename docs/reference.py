"""Writes the reference pages of the site, from parsers, dataclasses and docstrings.

cli.md has every command with its options, keys.md every key of a configuration, and
python.md what the public modules export. They are made with the site (`make docs`) and
not kept, so that they are never behind the code.

    python docs/reference.py FOLDER
"""

import ast
import dataclasses
import importlib
import inspect
import os
import re
import sys
import textwrap
import typing
from pathlib import Path

import jaxdist
from jaxdist.launch.cli import main as cli
from jaxdist.launch.cli.parser import CommandParser
from jaxdist.launch.config import Experiment

SECTION = re.compile(r"^(Args|Returns|Raises|Yields):\n((?:(?:    .*)?\n?)+)", re.M)
ENTRY = re.compile(r"^(\*{0,2}[\w.]+): (.*(?:\n(?:    .*|\s*$))*)", re.M)


def cell(text):
    """Text inside a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(head, rows):
    """A table of Markdown; empty where it has no rows."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] if rows else []


# The command line


def argument_rows(parser):
    """The arguments of a parser: how each is written, and what it does."""
    for action in parser._actions:
        if action.help == "==SUPPRESS==" or "--help" in action.option_strings:
            continue
        if action is getattr(parser, "_words", None):
            continue
        shown = parser._get_formatter()._format_action_invocation(action)
        text = (action.help or "") % {**vars(action), "prog": parser.prog}
        if action.choices and not action.option_strings:
            text = f"{text}: {', '.join(map(str, action.choices))}"
        yield [f"`{cell(shown)}`", cell(text.replace("<", "&lt;"))]


def capitalized(text):
    """A line of help as a sentence."""
    return text[:1].upper() + text[1:]


def command_lines(parser, level):
    """The section of a command or of one of its forms."""
    formatter = parser._get_formatter()
    formatter.add_usage(
        parser.usage, parser._actions, parser._mutually_exclusive_groups
    )
    usage = re.sub(r"^(usage: | {7})", "", formatter.format_help().rstrip(), flags=re.M)
    yield from [
        "",
        f"{'#' * level} {parser.prog}",
        "",
        f"{capitalized(parser.description)}.",
        "",
    ]
    if not parser.forms:
        yield from ["```text", usage, "```", ""]
    yield from table(["argument", "what it does"], list(argument_rows(parser)))
    notes = [n for n in (parser.epilog or "").splitlines() if n != cli.EXIT_CODES]
    if notes and not parser.forms:
        yield from ["", "```text", *notes, "```"]
    for form in parser.forms.values():
        yield from command_lines(form, level + 1)


def cli_page():
    """Every command with its forms and options."""
    lines = [
        "# Command line",
        "",
        "`jaxdist COMMAND --help` prints the same. Options may stand among the other",
        f"words. {cli.EXIT_CODES.capitalize()}.",
        "",
    ]
    rows, sections = [], []
    for name in cli.command_names():
        command = cli.load_command(name)
        parser = CommandParser(f"jaxdist {name}", command.summary, cli.EXIT_CODES)
        command.add_arguments(parser)
        rows.append([f"[`{name}`](#jaxdist-{name})", cell(command.summary)])
        sections += command_lines(parser, 2)
    return "\n".join([*lines, *table(["command", "what it does"], rows), *sections])


# Keys of a configuration


def field_docs(kind):
    """{field: the text below it} of a dataclass and its bases."""
    found = {}
    for one in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(one):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        for line, following in zip(tree.body, tree.body[1:]):
            text = getattr(getattr(following, "value", None), "value", None)
            if isinstance(line, ast.AnnAssign) and isinstance(text, str):
                found[line.target.id] = text
    return found


def shown_type(kind):
    """A type as a reader writes it."""
    if kind is type(None):
        return "None"
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"{value}" for value in typing.get_args(kind))
    # An annotation of the code, without the modules that names are in.
    text = re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(kind))
    return text.replace("typing.", "")


def shown_default(field):
    """The default of a field, as it is typed."""
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        default = field.default
    else:
        return ""
    if dataclasses.is_dataclass(default):
        return ""
    if isinstance(default, tuple | list):
        return ",".join(map(str, default))
    return str(default)


def key_rows(kind, prefix=""):
    """Rows of a dataclass's keys, and (key, text, class) of those that have keys."""
    types, docs = typing.get_type_hints(kind), field_docs(kind)
    rows, inner = [], []
    for field in dataclasses.fields(kind):
        of, key = types[field.name], f"{prefix}{field.name}"
        if dataclasses.is_dataclass(of):
            inner += [(key, docs.get(field.name, ""), of)]
            continue
        default = shown_default(field)
        rows.append(
            [
                f"`{key}`",
                cell(shown_type(of)),
                f"`{cell(default)}`" if default else "",
                cell(docs.get(field.name, "")),
            ]
        )
    return rows, inner


def key_lines(kind, prefix=""):
    """The sections of a dataclass and of those inside it."""
    rows, inner = key_rows(kind, prefix)
    yield from table(["key", "value", "default", "meaning"], rows)
    for key, text, of in inner:
        yield from ["", f"## {key}", "", *([text, ""] if text else [])]
        yield from key_lines(of, f"{key}.")


def keys_page():
    """Every key of an experiment, with its default."""
    lines = [
        "# Configuration keys",
        "",
        "Every key of an experiment with its default. `jaxdist train digits KEY=VALUE`",
        "changes one, and `jaxdist config EXPERIMENT` shows what an experiment sets.",
        "[How values are written](../configuration.md#values).",
        "",
    ]
    return "\n".join([*lines, *key_lines(Experiment)])


# Python


def public_modules():
    """Names of the public modules: `jaxdist`, and those that its docstring lists."""
    return re.findall(r"^    (jaxdist[\w.]*)  ", jaxdist.__doc__, re.M)


def signature(name, value):
    """How a name is called, without the modules of its types; None for no function."""
    if not callable(value):
        return None
    try:
        found = inspect.signature(value)
        if next(iter(found.parameters), "") == "args" and isinstance(value, type):
            found = inspect.signature(value.__init__)  # of a module of flax
    except (TypeError, ValueError):
        return None
    parts, kind = [], inspect.Parameter.POSITIONAL_ONLY
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        starts = parameter.kind is inspect.Parameter.KEYWORD_ONLY and kind < 2
        parts += ["*"] * starts + [shown_parameter(parameter)]
        kind = parameter.kind
    returned = found.return_annotation
    has_return = returned is not found.empty and not isinstance(value, type)
    after = f" -> {shown_annotation(returned)}" if has_return else ""
    line = f"{name}({', '.join(parts)}){after}"
    if len(line) <= 88:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){after}"])


def shown_parameter(parameter):
    """A parameter as it stands in a signature."""
    text = parameter.name
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        text = f"*{text}"
    elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
        text = f"**{text}"
    if parameter.annotation is not parameter.empty:
        text = f"{text}: {shown_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        default = getattr(parameter.default, "__name__", repr(parameter.default))
        text = f"{text} = {'...' if ' at 0x' in default else default}"
    return text


def shown_annotation(annotation):
    """An annotation without the modules that its names are in."""
    shown = (
        annotation
        if isinstance(annotation, str)
        else inspect.formatannotation(annotation)
    )
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", shown)


def docstring_lines(value):
    """A docstring as Markdown: its text, its arguments as a table, its example."""
    text = inspect.getdoc(value) or ""
    # What `dataclass` writes for a class without a docstring says nothing.
    if isinstance(value, type) and text.startswith(f"{value.__name__}("):
        return
    text, example = (*re.split(r"(?=^>>> )", text, maxsplit=1, flags=re.M), "")[:2]
    last = 0
    for found in SECTION.finditer(text):
        yield text[last : found.start()].strip()
        last, body = found.end(), textwrap.dedent(found[2])
        entries = [[f"`{n}`", cell(t)] for n, t in ENTRY.findall(body)]
        if entries and found[1] in ("Args", "Raises"):
            kind = "argument" if found[1] == "Args" else "raises"
            yield ""
            yield from table(
                [kind, "meaning" if kind == "argument" else "when"], entries
            )
        else:
            yield from ["", f"**{found[1]}:** {' '.join(body.split())}"]
        yield ""
    yield text[last:].strip()
    if example:
        yield from ["", "```python", example.strip(), "```"]


def field_lines(value):
    """The fields of a dataclass as a table."""
    if not dataclasses.is_dataclass(value):
        return
    docs, rows = field_docs(value), []
    for field in dataclasses.fields(value):
        default = shown_default(field)
        rows.append(
            [
                f"`{field.name}`",
                cell(shown_annotation(field.type)),
                f"`{cell(default)}`" if default else "",
                cell(docs.get(field.name, "")),
            ]
        )
    yield from ["", *table(["field", "type", "default", "meaning"], rows)]


def first_sentence(value):
    """The first line of a docstring, as a cell."""
    text = inspect.getdoc(value) or ""
    return (
        cell(text.split("\n\n")[0]) if not text.startswith(f"{_name(value)}(") else ""
    )


def _name(value):
    return getattr(value, "__name__", "")


def python_page():
    """What `jaxdist` exports in full, and the names of the other public modules."""
    lines = [
        "# Python",
        "",
        "Public is what these modules export; every other module is internal.",
        "`help(jaxdist.input)` prints the same.",
        "",
        "## jaxdist",
    ]
    for name in jaxdist.__all__:
        value = getattr(jaxdist, name)
        lines += ["", f"### {name}", ""]
        call = signature(name, value)
        if call and not dataclasses.is_dataclass(value):
            lines += ["```python", call, "```", ""]
        if inspect.ismodule(value):
            lines += [
                f"A module: see [{value.__name__}](#{anchor(value.__name__)}).",
                "",
            ]
        else:
            lines += [*docstring_lines(value), *field_lines(value)]
    for module in public_modules()[1:]:
        home = importlib.import_module(module)
        summary = (home.__doc__ or "").split("\n\n")[0]
        rows = [
            [
                f"`{name}`",
                first_sentence(getattr(home, name))
                if callable(getattr(home, name))
                else "",
            ]
            for name in home.__all__
        ]
        lines += ["", f"## {module}", "", summary, "", *table(["name", "what"], rows)]
    return "\n".join(lines)


def anchor(title):
    """The anchor of a heading."""
    return title.lower().replace(".", "")


PAGES = {"cli.md": cli_page, "keys.md": keys_page, "python.md": python_page}


def main():
    """Write the pages into a folder."""
    (name,) = sys.argv[1:]
    os.environ["COLUMNS"] = "88"  # how wide argparse writes
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    for file, page in PAGES.items():
        (folder / file).write_text(f"{page()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
