"""Plugins of jax: the accelerators that this installation can compile for."""

import pkgutil
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from jaxdist.core.errors import BadInput

_PACKAGES: Final = {
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda13-plugin", "jax-cuda12-plugin"),
}
"""Packages that have the compiler of a platform."""

INSTALL_COMMANDS: Final = {
    "gpu": "pip install 'jaxdist[cuda13]' (or cuda12, for drivers before 580)",
    "tpu": "pip install 'jaxdist[tpu]'",
}
"""What installs the compiler of a platform."""


def installed_plugins() -> frozenset[str]:
    """Return the accelerators that this installation of jax has a plugin for."""
    # jax looks for its plugins in this namespace package, and for that of TPUs by the
    # name of its library.
    spec = find_spec("jax_plugins")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    names = [module.name for module in pkgutil.iter_modules(folders)]
    gpu = any("cuda" in name or "rocm" in name for name in names)
    found = {"gpu": gpu, "tpu": find_spec("libtpu") is not None}
    return frozenset(kind for kind, able in found.items() if able)


def check_compiler(platform: str) -> None:
    """Refuse a platform whose compiler is not installed.

    Raises:
        BadInput: with the command that installs it.
    """
    if platform not in installed_plugins():
        raise BadInput(
            f"there is no compiler for a {platform} here",
            rule="to compile for a machine that is not here takes its compiler, which "
            "an extra of jaxdist installs",
            values=f"{' or '.join(_PACKAGES[platform])}: not installed",
            remedy=INSTALL_COMMANDS[platform],
        )


def compiler_version(platform: str) -> str:
    """Return the package that has a platform's compiler, with its version.

    Programs compiled by different versions differ, so a stored answer names it.
    """
    for name in _PACKAGES[platform]:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return ""
