"""The space of a sweep: ranges and lists of values, read from words as they are typed.

optim.lr=1e-3..1e-1:log   from a number to another, drawn by their logarithms
epochs=3..8               whole numbers where both ends are
model.width=8,16,32       one of these
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from jaxdist.core.errors import BadInput, raise_all
from jaxdist.launch.config.aliases import rename_overrides
from jaxdist.launch.config.experiment import Experiment
from jaxdist.launch.config.resolve import resolve_config
from jaxdist.launch.config.tree import (
    describe_type,
    format_value,
    is_sequence_type,
    key_types,
    parse_value,
)

Metric = Literal["test_loss", "accuracy"]
"""What a sweep makes small, or large."""
_OWN_KEYS: Final = {"run.name": "--name NAME", "run.dir": "--dir FOLDER"}
"""Keys that a sweep sets itself, and what is typed instead."""


@dataclass(frozen=True, kw_only=True)
class ParameterRange:
    """A hyper-parameter between two numbers, both of them included."""

    key: str
    """Its key in the configuration."""
    low: float
    """The smallest value."""
    high: float
    """The largest value."""
    log: bool = False
    """Whether its logarithm is drawn evenly."""
    whole: bool = False
    """Whether it is a whole number."""

    @property
    def text(self) -> str:
        """The range as it is typed."""
        ends = f"{format_value(self.low)}..{format_value(self.high)}"
        return f"{self.key}={ends}{':log' * self.log}"

    @property
    def samples(self) -> tuple[str, ...]:
        """Values that are checked before the first trial."""
        return format_value(self.low), format_value(self.high)


@dataclass(frozen=True, kw_only=True)
class ParameterChoice:
    """A hyper-parameter that is one of some values."""

    key: str
    """Its key in the configuration."""
    choices: tuple[str, ...]
    """The values as they are typed."""

    @property
    def text(self) -> str:
        """The list as it is typed."""
        return f"{self.key}={','.join(self.choices)}"

    @property
    def samples(self) -> tuple[str, ...]:
        """Values that are checked before the first trial."""
        return self.choices


Parameter = ParameterRange | ParameterChoice


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """What a sweep varies, and what all of its trials have."""

    parameters: tuple[Parameter, ...]
    """What is drawn for each trial, in the order in which it was typed."""
    fixed: tuple[str, ...] = ()
    """Overrides of all trials."""


def parse_space(experiment: str, words: Sequence[str]) -> SearchSpace:
    """Read the words of a sweep, and hold them against the experiment.

    Args:
        experiment: its name, or path of a file that has one.
        words: `key.sub=value`, of which those with a range or a list are varied.

    Raises:
        BadInput: everything that is wrong, together; nothing to vary.
    """
    renamed, _ = rename_overrides(words)
    types = key_types(Experiment)
    found: dict[str, Parameter] = {}
    fixed: list[str] = []
    errors: list[BadInput] = []
    for word in renamed:
        key, _, text = word.partition("=")
        try:
            parameter = _parse_parameter(key, text, types)
        except BadInput as error:
            errors.append(error)
            continue
        if key in _OWN_KEYS:
            errors.append(
                BadInput(
                    f"{word} names a run",
                    rule="each trial of a sweep is a run of its own in one folder",
                    values=word,
                    remedy=f"{_OWN_KEYS[key]} names the folder",
                )
            )
        elif parameter is None:
            fixed.append(word)
        elif key in found:
            errors.append(
                BadInput(
                    f"{key} is varied twice",
                    rule="a hyper-parameter has one range or list",
                    values=f"{found[key].text}, {word}",
                    remedy=word,
                )
            )
        else:
            found[key] = parameter
    raise_all(errors)
    space = SearchSpace(parameters=tuple(found.values()), fixed=tuple(fixed))
    if not found:
        # A word with a wrong key counts as fixed: what is wrong is said here, first.
        resolve_config(experiment, fixed)
        raise BadInput(
            "the sweep varies nothing",
            rule="a range or a list is drawn from: key=LOW..HIGH, key=LOW..HIGH:log, "
            "key=A,B,C",
            values=" ".join(words) or "no words",
            remedy=f"jaxdist sweep {experiment} optim.lr=1e-3..1e-1:log --trials 20",
        )
    _check_values(experiment, space)
    return space


def _check_values(experiment: str, space: SearchSpace) -> None:
    """Resolve the configuration of each value that is at an end, or in a list.

    Raises:
        BadInput: the experiment cannot have it; each mistake once.
    """
    # One value at a time, beside the first of the others: there may be too many
    # combinations to check them all.
    first = {each.key: f"{each.key}={each.samples[0]}" for each in space.parameters}
    errors: dict[str, BadInput] = {}
    for each in space.parameters:
        for sample in each.samples:
            words = {**first, each.key: f"{each.key}={sample}"}
            try:
                resolve_config(experiment, [*space.fixed, *words.values()])
            except BadInput as error:
                # Most values break the same rule, and it is said once.
                for one in getattr(error, "each", (error,)):
                    errors.setdefault(str(one), one)
    raise_all(list(errors.values()))


def _parse_parameter(key: str, text: str, types: Mapping[str, Any]) -> Parameter | None:
    """Read one word; None where it is a plain override, right or wrong.

    Raises:
        BadInput: a range or a list that cannot be.
    """
    kind = types.get(key)
    # What is wrong with a key is said with all other mistakes of the configuration, and
    # commas are the members of a list where the value is one.
    if kind is None or is_sequence_type(kind):
        return None
    if ".." in text and is_number_type(kind):
        return _parse_range(key, text, kind)
    if "," in text:
        return _parse_choice(key, text, kind)
    return None


def is_number_type(kind: Any) -> bool:
    """Tell whether a value of this type can be a number.

    >>> is_number_type(int | float), is_number_type(float | None), is_number_type(bool)
    (True, True, False)
    """
    return "number" in describe_type(kind)


def _parse_range(key: str, text: str, kind: Any) -> ParameterRange:
    ends, _, scale = text.partition(":")
    low, _, high = ends.partition("..")

    def refuse(what: str, rule: str, remedy: str) -> BadInput:
        return BadInput(what, rule=rule, values=f"{key}={text}", remedy=remedy)

    example = f"{key}=1..8" if _is_whole(kind, "1") else f"{key}=1e-3..1e-1:log"
    # `1..8:` has an empty scale, which `partition` does not tell from none.
    if scale not in ("", "log") or text.endswith(":"):
        raise refuse(
            f"no scale {scale or 'of no name'} of a range",
            "a range is drawn evenly, LOW..HIGH, or by its logarithm, LOW..HIGH:log",
            f"{key}={ends}:log",
        )
    try:
        first, last = parse_value(low, kind), parse_value(high, kind)
        numbers = float(first), float(last)
    # TypeError: an end that reads as none.
    except (ValueError, TypeError):
        raise refuse(
            f"{key} has no such range",
            f"the ends of a range are values of {key}: {describe_type(kind)}",
            example,
        ) from None
    if numbers[0] >= numbers[1]:
        ordered = f"{key}={high}..{low}{':log' * (scale == 'log')}"
        same = numbers[0] == numbers[1]
        raise refuse(
            f"the range of {key} is empty",
            "LOW is below HIGH",
            f"{key}={low}" if same else ordered,
        )
    if scale and numbers[0] <= 0:
        raise refuse(
            f"{low} has no logarithm",
            "both ends of a range with :log are above zero",
            f"{key}={low}..{high}" if numbers[0] < 0 else f"{key}=1e-6..{high}:log",
        )
    return ParameterRange(
        key=key,
        low=first,
        high=last,
        log=bool(scale),
        whole=_is_whole(kind, low, high),
    )


def _is_whole(kind: Any, *ends: str) -> bool:
    """Tell whether a range has whole numbers: its key has, or both ends are written so.

    >>> _is_whole(int, "1", "2"), _is_whole(int | float, "3", "6")
    (True, True)
    >>> _is_whole(int | float, "0.5", "6"), _is_whole(float, "1", "2")
    (False, False)
    """
    return all(isinstance(parse_value(end, kind), int) for end in ends)


def _parse_choice(key: str, text: str, kind: Any) -> ParameterChoice:
    words = text.split(",")
    for word in words:
        try:
            parse_value(word, kind)
        except ValueError:
            right = [each for each in words if _is_value(each, kind)]
            ranged = ".." in text
            raise BadInput(
                f"{key} cannot be {word or 'empty'}",
                rule=f"a list has values of {key}: {describe_type(kind)}"
                + ("; a range is no member of it" if ranged else ""),
                values=f"{key}={text}",
                remedy=f"{key}={','.join(right) or 'A,B'}",
            ) from None
    if len(set(words)) < len(words):
        raise BadInput(
            f"{key} has a value twice",
            rule="each value of a list is another one",
            values=f"{key}={text}",
            remedy=f"{key}={','.join(dict.fromkeys(words))}",
        )
    return ParameterChoice(key=key, choices=tuple(words))


def _is_value(text: str, kind: Any) -> bool:
    try:
        parse_value(text, kind)
    except ValueError:
        return False
    return bool(text)
