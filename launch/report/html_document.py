"""HTML documents: one file in the style of all pages, which loads nothing else."""

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from jaxdist.core.text.theme import FILLS, SURFACES, TEXT_ON

_UNIT_PATTERN: Final = re.compile(
    r"(?<=\d) (?=(?:%|h|min|m?s|[kMGT]?B|samples/s|UTC)(?!\w))"
)


def render_template(template: str, context: Mapping[str, Any]) -> str:
    """Write a page in the style of all pages, with their one script.

    Args:
        template: text of a Jinja template; it finds `style`, `script` and `policy`, and
            may include the templates of this package.
        context: everything else that it names.
    """
    # The palette as CSS variables. Paper is always light: dark is for screens alone.
    colours = FILLS | SURFACES | TEXT_ON
    light = "".join(f"--{name}: {c.light}; " for name, c in colours.items())
    dark = "".join(f"--{name}: {c.dark}; " for name, c in colours.items())
    when = "@media screen and (prefers-color-scheme: dark)"
    palette = f":root {{ {light}}}\n{when} {{ :root {{ {dark}}} }}\n"
    style, script = palette + read_resource("style.css"), read_resource("page.js")

    # The policy allows this style and this script by their hashes, and nothing else:
    # names from a run's files that slipped through escaping could still run nothing.
    hashes = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    )
    policy = (
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; "
        "img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    environment = Environment(
        loader=FunctionLoader(read_resource),
        autoescape=True,
        undefined=StrictUndefined,  # a name that is misspelt is an error, not empty
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tight"] = nonbreaking_units
    return environment.from_string(template).render(
        style=Markup(style),
        script=Markup(script),
        policy=policy.format(*hashes),
        **context,
    )


def read_resource(name: str, package: str = __package__) -> str:
    """Read a file that lies beside the modules of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def nonbreaking_units(text: str | Markup) -> Markup:
    """Keep numbers and their units on one line.

    >>> text = nonbreaking_units("median 36.4 ms, < 5 %")
    >>> text == "median 36.4&nbsp;ms, &lt; 5&nbsp;%"
    True
    """
    # The text is escaped before: the entity must not be.
    return Markup(_UNIT_PATTERN.sub("&nbsp;", str(escape(text))))
