"""One value from the text a person types."""

from typing import Literal

import pytest

from jaxdist.launch.config.tree import (
    describe_type,
    format_value,
    literal_choices,
    parse_value,
)

Norm = Literal["global", "replica"]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "8", 8),
        (int, "-1", -1),
        (float, "-1e-3", -1e-3),
        (float, "3", 3.0),
        (int | float, "3", 3),
        (int | float, "0.5", 0.5),
        (bool, "False", False),
        (bool, "true", True),
        (str, "", ""),
        (str, "a,b", "a,b"),
        (str, "--json", "--json"),
        (str, "a=b c", "a=b c"),
        (str | None, "none", None),
        (int | None, "None", None),
        (int | None, "5", 5),
        (tuple[int, ...], "3,4", (3, 4)),
        (tuple[int, ...], "-3", (-3,)),
        (tuple[int, ...], "", ()),
        (tuple[int, int], "3,4", (3, 4)),
        (tuple[str, ...], "data,fsdp", ("data", "fsdp")),
        (Norm, "replica", "replica"),
        (Literal[8, 16], "16", 16),
    ],
)
def test_every_kind_of_field_is_read(kind, text, value):
    read = parse_value(text, kind)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "1e3"),
        (int, "8.0"),
        (int, ""),
        (int, "--help"),
        (float, "abc"),
        (float, "nan"),
        (float, "inf"),
        (bool, "1"),
        (Norm, "local"),
        (tuple[int, ...], "3,x"),
        (tuple[int, int], "3"),
        (int | None, "nil"),
    ],
)
def test_what_is_no_value_is_refused_without_a_word(kind, text, capfd):
    with pytest.raises(ValueError, match="is not"):
        parse_value(text, kind)
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (tuple[int, ...], (3, 4)),
        (tuple[str, ...], ()),
        (int | None, None),
        (float, 1e-7),
        (bool, False),
    ],
)
def test_what_is_written_is_read_back(kind, value):
    assert parse_value(format_value(value), kind) == value


def test_kinds_have_words():
    assert describe_type(int) == "a whole number"
    assert describe_type(bool) == "True or False"
    assert describe_type(float | None) == "a number or None"
    assert describe_type(Literal["a", "b", "c"]) == "a, b or c"
    assert describe_type(tuple[int, ...]) == "whole numbers with commas between"


def test_choices_are_those_of_the_literal():
    assert literal_choices(Norm | None) == ("global", "replica")
    assert literal_choices(int) == ()
