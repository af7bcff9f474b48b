"""A YAML file that is a table: platforms and clusters are read from such."""

from pathlib import Path
from typing import Any

from jaxdist.core.errors import BadInput, did_you_mean


def read_table(path: Path, *, what: str, holds: str, option: str, page: str) -> Any:
    """Read a file as a table.

    Args:
        path: of the file; JSON is YAML too.
        what: it is: `a platform`.
        holds: what it has, for errors.
        option: that names it on the command line.
        page: of the documentation, which has an example.

    Raises:
        BadInput: no file, or no table in it.
    """
    # Not at the top: whoever reads no file does not wait for it.
    import yaml

    if not path.is_file():
        near = did_you_mean(str(path), [str(p) for p in path.parent.glob("*.*")])
        raise BadInput(
            f"no file {path}",
            rule=f"{what} is a name or a file that exists",
            values=f"{option} {path}",
            remedy=f"did you mean {near}?" if near else f"{page} has an example",
        )
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{path} cannot be read",
            rule=f"{what} is a YAML file",
            values=" ".join(str(error).split()),
            remedy=f"{page} has an example",
        ) from error
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise BadInput(
            f"{path} is not a table",
            rule=f"the file of {what} is a table: {holds}",
            values=f"{type(tree).__name__}",
            remedy=f"{page} has an example",
        )
    return tree
