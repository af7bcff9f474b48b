"""References to objects: text by which another process finds a function or class.

`my.py:Net` is in a file, `my_package.nets:Net` in a module that can be imported, and
`__main__:Net` in the notebook or prompt of this process.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from jaxdist.core.errors import BadInput, did_you_mean, nearest_path

# Modules that were loaded from files; no real module is hidden by them, though a file
# may well be called input.py.
_PREFIX: Final = "_jaxdist_file_"


def is_object_reference(name: str) -> bool:
    """Tell whether a name is that of a function or class in a file or module.

    >>> texts = "my.py:Net", "imagenet2012:5.1.0", "resnet50"
    >>> tuple(is_object_reference(text) for text in texts)
    (True, False, False)
    """
    home, _, function = name.rpartition(":")
    return bool(home) and function.isidentifier()


def object_reference(obj: Callable[..., Any]) -> str:
    """Name a function or class of a file or module, so that `resolve_object` finds it
    again.

    Args:
        obj: stands at the top of its file; a file that is no part of a package is
            named by its whole path. One that was typed into a notebook or prompt is
            found again while that goes on, by this process alone.

    Raises:
        BadInput: it stands inside another function.

    >>> object_reference(did_you_mean)
    'jaxdist.core.errors:did_you_mean'
    """
    module, name = sys.modules.get(obj.__module__), obj.__qualname__
    problem = f"it is {name}"
    if name.isidentifier() and module is not None:
        # What comes through a pipe has a name for a file, `<stdin>`.
        file = Path(getattr(module, "__file__", None) or "")
        # What lies beside a file that was loaded is found by that file alone.
        loaded = {Path(str(each.__file__)).parent for each in file_modules()}
        is_beside = "." not in module.__name__ and file.parent in loaded
        is_loaded = module.__name__.startswith(_PREFIX)
        if module.__name__ != "__main__" and not is_loaded and not is_beside:
            return f"{module.__name__}:{name}"
        # Another process has another __main__, and no module of a file: by its path.
        if file.is_file():
            return f"{file.resolve()}:{name}"
        if getattr(module, name, None) is obj:
            return f"__main__:{name}"
        problem = "it is in no file"
    raise BadInput(
        f"{name} has no name that another process can find",
        rule="a function or class of your own stands at the top of a file",
        values=problem,
        remedy="def or class in the first column of a file",
    )


def resolve_object(name: str) -> Any:
    """Return the function or class of a name.

    Args:
        name: `path/file.py:function` or `module:function`.

    Raises:
        BadInput: there is no such file, module or function, or the file fails.
    """
    home, _, function = name.rpartition(":")
    main = sys.modules["__main__"]
    is_main = Path(getattr(main, "__file__", None) or "").resolve() == Path(home)
    if is_main and hasattr(main, function):
        # Loaded again, a program without a guard would do all that it does once more.
        return getattr(main, function)
    try:
        module = (
            load_module(Path(home)) if home.endswith(".py") else import_module(home)
        )
    except ImportError as error:
        raise BadInput(
            f"no module {home}",
            rule="a name is file.py:function or module:function",
            values=str(error),
            remedy=f"{home.replace('.', '/')}.py:FUNCTION, or PYTHONPATH=FOLDER",
        ) from error
    if hasattr(module, function):
        return getattr(module, function)
    if home == "__main__":
        raise BadInput(
            f"no {function} in this program",
            rule="what was typed into a notebook or prompt is there while that goes on",
            values=name,
            remedy=f"{function} in a file, which any process finds",
        )
    near = did_you_mean(function, [n for n in vars(module) if not n.startswith("_")])
    raise BadInput(
        f"{home} has no {function}",
        rule="a name is file.py:function or module:function",
        values=name,
        remedy=f"did you mean {home}:{near}?" if near else f"def {function}(...):",
    )


def check_trusted_references(
    names: Iterable[str], *, experiment: str, folder: Path, trust: bool, remedy: str
) -> None:
    """Refuse code that the files of a run name, unless it is known to be harmless.

    Importing a module runs it, and the files of a run may be somebody else's.

    Args:
        names: texts that may be references, from the files of a run.
        experiment: name or file of the run's experiment, whose own file is trusted
            unless it came with the run.
        folder: the run folder.
        trust: whether any code is trusted.
        remedy: what to type where it is.

    Raises:
        BadInput: a reference to a module that is neither jaxdist's nor the
            experiment's own file.
    """
    own = Path(experiment.partition(":")[0]).resolve()
    if own.is_relative_to(folder.resolve()):
        # What came with the run is trusted no more than the run.
        own = Path()
    for name in names:
        home = name.rpartition(":")[0]
        # `jaxdist.py` is a file of the working folder, and no module of the package.
        is_file = home.endswith(".py")
        is_module = not is_file and "/" not in home
        is_ours = is_module and home.partition(".")[0] == "jaxdist"
        is_own = is_file and Path(home).resolve() == own
        if trust or not is_object_reference(name) or is_ours or is_own:
            continue
        raise BadInput(
            f"the files of run {folder.name} name code that is not known",
            rule="modules of jaxdist and the experiment's own file, if that lies "
            "outside the run folder, are imported; others where they are trusted",
            values=f"{name}, experiment {experiment}",
            remedy=(remedy, "if you know who wrote this run"),
        )


def call_user_function(
    name: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call a function of the user; its errors become bad input.

    Raises:
        BadInput: what it raised, with the line of its file.
    """
    try:
        return function(*args, **kwargs)
    except BadInput:
        raise
    except Exception as error:
        file = Path(inspect.getsourcefile(function) or name.rpartition(":")[0])
        raise _failed(file, error, function.__name__) from error


def load_module(path: Path) -> ModuleType:
    """Load a Python file; the same file is loaded once unless it changes.

    As `python path` does, it imports what lies beside it. That folder comes last, so
    that a file called json.py hides no module.

    Raises:
        BadInput: there is no such file, or it fails.
    """
    spec, name = None, ""
    if path.is_file():
        # The time of the last change is in the name, so an edited file is a new module.
        state = f"{path.resolve()} {path.stat().st_mtime_ns}"
        name = f"{_PREFIX}{path.stem}_{sha256(state.encode()).hexdigest()[:8]}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        near = nearest_path(path, "*.py")
        raise BadInput(
            f"no file {path}",
            rule="a file stays where it was named, while runs of it are used",
            values=f"looked in {path.parent.resolve()}",
            remedy=f"did you mean {near}?" if near else f"mv FOLDER/{path.name} {path}",
        )
    if (home := str(path.resolve().parent)) not in sys.path:
        # For good: a function of the file may import when it is called.
        sys.path.append(home)
    # Registered before it runs, as importlib does: dataclasses look their module up.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        # The next load must not find half of a module.
        del sys.modules[name]
        if not isinstance(error, Exception) or isinstance(error, BadInput):
            raise
        raise _failed(path, error) from error
    return module


def file_modules() -> tuple[ModuleType, ...]:
    """Return the modules that were loaded from files; no import finds them."""
    return tuple(m for name, m in sys.modules.items() if name.startswith(_PREFIX))


def _failed(path: Path, error: Exception, function: str = "") -> BadInput:
    """Name the line of the user's own file, not the lines of the import system."""
    frames = traceback.extract_tb(error.__traceback__)
    here = path.resolve()
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == here]
    # A file that cannot be parsed has no frame of its own.
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1:] and lines[-1]
    first, *_ = str(error).strip().splitlines() or [""]
    at = f", at line {line}" * bool(line)
    return BadInput(
        f"{function}() of {path} fails" if function else f"{path} cannot be loaded",
        rule="a file of your own runs without an error",
        values=f"{type(error).__name__}: {first}",
        remedy=f"mend {path}{at}"
        if function
        else f"python {path} shows the same error{at}",
    )
