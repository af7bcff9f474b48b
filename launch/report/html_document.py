"""Paper: a template filled, as one HTML document that asks for nothing."""

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from jaxdist.core.text.theme import FILLS, SURFACES, TEXT_ON

_UNIT_PATTERN: Final = re.compile(
    r"(?<=\d) (?=(?:%|h|min|m?s|[kMGT]?B|samples/s|UTC)(?!\w))"
)


def render_template(template: str, context: Mapping[str, Any]) -> str:
    """Write a page in the one style, with the one script.

    Args:
        template: text of a Jinja template; it finds `style`, `script` and `policy`, and
            may include the templates of this package.
        context: everything else that it names.
    """
    style, script = (
        _palette_css() + read_resource("style.css"),
        read_resource("sort.js"),
    )
    return _compile_template(template).render(
        style=Markup(style),
        script=Markup(script),
        policy=_content_security_policy(style, script),
        **context,
    )


@cache
def _compile_template(template: str) -> Template:
    environment = Environment(
        loader=FunctionLoader(read_resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tight"] = nonbreaking_units
    return environment.from_string(template)


def read_resource(name: str, package: str = __package__) -> str:
    """Read a file that lies beside the modules of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def nonbreaking_units(text: str | Markup) -> Markup:
    """Keep numbers and their units on one line.

    >>> text = nonbreaking_units("median 36.4 ms, < 5 %")
    >>> text == "median 36.4&nbsp;ms, &lt; 5&nbsp;%"
    True
    """
    return Markup(_UNIT_PATTERN.sub("&nbsp;", str(escape(text))))


def _palette_css() -> str:
    """Write the palette as CSS variables; paper is always light."""
    colours = FILLS | SURFACES | TEXT_ON
    light = "".join(f"--{name}: {c.light}; " for name, c in colours.items())
    dark = "".join(f"--{name}: {c.dark}; " for name, c in colours.items())
    when = "@media screen and (prefers-color-scheme: dark)"
    return f":root {{ {light}}}\n{when} {{ :root {{ {dark}}} }}\n"


def _content_security_policy(style: str, script: str) -> str:
    """Allow this style and this script and nothing else: the page asks for nothing."""
    return (
        f"default-src 'none'; style-src '{_csp_hash(style)}'; "
        f"script-src '{_csp_hash(script)}'; base-uri 'none'; form-action 'none'"
    )


def _csp_hash(text: str) -> str:
    sha = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(sha).decode()}"
