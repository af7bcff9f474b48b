"""Errors and warnings: with the broken rule, the values, and a remedy to type."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class JaxdistWarning(UserWarning):
    """Something that a person should know and that stops nothing: `warnings.warn`."""


class BadInput(ValueError):
    """Something the user gave cannot be used; nothing was written or lost.

    Args:
        message: one short line saying what is wrong, without a full stop.
        rule: the rule that was broken.
        values: the values that broke it, with who set them where that is known.
        remedy: what to type instead; several lines where there are several ways.

    >>> print(BadInput("no experiment named digit", remedy="try digits"))
    no experiment named digit
      remedy   try digits
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str = "",
        values: str = "",
        remedy: str | Sequence[str] = (),
    ) -> None:
        self.what, self.rule, self.values = message, rule, values
        self.remedy = (remedy,) if isinstance(remedy, str) else tuple(remedy)
        lines = [message]
        parts = (("rule", (rule,)), ("values", (values,)), ("remedy", self.remedy))
        for name, texts in parts:
            for row, text in enumerate(filter(None, texts)):
                lines.append(f"  {name if row == 0 else '':8} {text}")
        super().__init__("\n".join(lines))


class DiskFullError(BadInput):
    """A disk has no room: nothing is wrong with what was asked for.

    The same command goes on once there is room, so it fails and is not refused.
    """


class SourceFailedError(BadInput):
    """A data source of one's own raised while a run read it: the run has failed."""


class StoreFailedError(BadInput):
    """An object store failed in the midst of a run; what is on the disk is intact."""


class FatalError(RuntimeError):
    """An invariant of jaxdist does not hold, so the run must not continue."""


class RetryableError(RuntimeError):
    """The run stopped in good order and the same command resumes it."""


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the known word nearest to a misspelt one, if any is near.

    >>> did_you_mean("optm.lr", ["optim.lr", "seed"])
    'optim.lr'
    """
    # At 0.6 two swapped or missing letters are found, and no unrelated word.
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return near[0] if near else None


def nearest_path(path: Path, pattern: str = "*") -> Path | None:
    """Return what lies where a path leads and has the name nearest to its own.

    Args:
        path: of a file or folder that is not there.
        pattern: names that count, as `Path.glob` takes them.
    """
    # By the name alone: in a long path any two are alike.
    near = did_you_mean(path.name, (each.name for each in path.parent.glob(pattern)))
    return path.parent / near if near else None


def unknown_name_error(
    kind: str, name: str, known: Iterable[str], default_remedy: str
) -> BadInput:
    """Return the refusal of a name that is none of those that are known.

    Args:
        kind: what is named: `pace`.
        name: the name that was given.
        known: those that there are.
        default_remedy: the remedy where none of them is near.

    >>> print(unknown_name_error("pace", "step", ["steps", "ranks"], "ranks"))
    no pace named step
      rule     one of steps, ranks
      remedy   did you mean steps?
    """
    names = list(known)
    near = did_you_mean(name, names)
    return BadInput(
        f"no {kind} named {name}",
        rule=f"one of {', '.join(names)}",
        remedy=f"did you mean {near}?" if near else default_remedy,
    )


@contextmanager
def decoder_errors(refuse: Callable[[str], BadInput]) -> Iterator[None]:
    """Turn whatever a decoder of files raises into one refusal, which names the file.

    Args:
        refuse: makes the refusal of what the decoder said.

    Raises:
        BadInput: the decoder raised anything.

    >>> with decoder_errors(lambda said: BadInput(f"a.gz is damaged: {said}")):
    ...     raise EOFError("it ends early")
    Traceback (most recent call last):
    ...
    jaxdist.core.errors.BadInput: a.gz is damaged: it ends early
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # zlib.error, EOFError, BadZipFile, struct.error, ...
        raise refuse(str(error) or type(error).__name__) from error


class MultipleErrors(BadInput):
    """More than one thing that cannot be used; each keeps its own remedy."""

    def __init__(self, errors: Sequence[BadInput]) -> None:
        self.each = tuple(errors)
        super().__init__(f"{len(self.each)} mistakes")
        # What is printed are all of them, each with its own remedy.
        self.args = ("\n\n".join(map(str, errors)),)


def raise_all(errors: Sequence[BadInput]) -> None:
    """Raise what was found: nothing, the one mistake, or all of them together.

    Raises:
        BadInput: there is at least one.
    """
    # Errors may be collections themselves; each mistake is shown once.
    flat = [one for error in errors for one in getattr(error, "each", (error,))]
    if len(flat) > 1:
        raise MultipleErrors(flat)
    if flat:
        raise flat[0]
