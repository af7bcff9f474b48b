"""What to type next about a run, with all that the commands have to be given."""

import shlex
from contextlib import suppress
from pathlib import Path

from jaxdist.core.errors import BadInput
from jaxdist.core.run_record import Run
from jaxdist.input.registry import is_text
from jaxdist.launch.config.experiment import RunConfig
from jaxdist.launch.run_folder.folder import RunFolder
from jaxdist.launch.run_folder.lockfile import (
    ConfigLock,
    read_config_lock,
    read_trusted_config,
)


def cli_resume_command(folder: RunFolder) -> str:
    """Return the command of jaxdist that resumes a run, with what it has to be given.

    >>> cli_resume_command(RunFolder(Path("runs/a")))
    'jaxdist resume a'
    >>> cli_resume_command(RunFolder(Path("/b")))
    'jaxdist resume /b'
    """
    return f"jaxdist resume {_quote_run(folder)}{_trust_option(folder)}"


def resume_command(folder: RunFolder) -> str:
    """Return what resumes a run: a command of jaxdist, or the program that began it.

    A program has values that no file of the run has, an optimizer say.
    """
    lock = _read_lock(folder)
    if lock is not None and is_of_program(lock):
        return shlex.join(lock.command)
    return cli_resume_command(folder)


def suggest_commands(run: Run, folder: RunFolder) -> list[str]:
    """Name what to type next: resume a run that stopped, or use what it made.

    Args:
        run: what happened.
        folder: where it is; its files may be damaged.
    """
    if run.status == "stopped":
        return [resume_command(folder)]
    lock, name, trust = _read_lock(folder), _quote_run(folder), _trust_option(folder)
    config = lock.resolved.config if lock else None
    commands = []
    # What people train a language model for comes before what checks it.
    if config and is_text(config.data.name):
        commands.append(f'jaxdist generate {name}{trust} --prompt "The"')
    # No other process finds what was typed into a notebook or prompt.
    names = (config.data.name, config.model.name) if config else ()
    if not any(each.startswith("__main__:") for each in names):
        commands.append(f"jaxdist eval {name}{trust}")
    return [
        *commands,
        f"jaxdist ckpt verify {name}",
        f"jaxdist trace {name} -o trace.json",
    ]


def is_of_program(lock: ConfigLock) -> bool:
    """Tell whether a program began a run, not a command of jaxdist."""
    return bool(lock.command) and lock.command[0] != "jaxdist"


def _read_lock(folder: RunFolder) -> ConfigLock | None:
    """Read the configuration of a run; None where there is none that can be read."""
    with suppress(BadInput):
        return read_config_lock(folder) if folder.has_run else None
    return None


def _quote_run(folder: RunFolder) -> str:
    """Name a run as `find_run` looks for it, by its name where that is enough."""
    is_near = folder.path.parent == Path(RunConfig().dir)
    return shlex.quote(folder.name if is_near else str(folder.path))


def _trust_option(folder: RunFolder) -> str:
    """Return what imports the code of a file that only the run names."""
    if _read_lock(folder) is None:
        return ""
    try:
        read_trusted_config(folder, trust=False)
    except BadInput:
        return " --trust"
    return ""
