"""The schema of a cluster file: every field by type and range, errors by its place."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Final, cast

from jaxdist.core.cluster.sourced_number import PROVENANCE_KINDS
from jaxdist.core.errors import BadInput
from jaxdist.core.validation import check_fields, check_required_fields

FieldCheck = Callable[[object, str], None]
"""Refuses a value; takes it and its place in the file, as `a.yaml: levels[1].size`."""
_DTYPE_PATTERN: Final = r"tf32|(b?float|u?int)[0-9]+(_\w+)?"
_MIN_DEVICE_BYTES: Final = 1e6


def check_cluster_tree(tree: object, file: str) -> None:
    """Refuse what describes no cluster, before its numbers are read.

    Args:
        tree: as YAML or JSON has it.
        file: its name, for errors.

    Raises:
        BadInput: the first field that cannot be, by its place.
    """
    _CLUSTER(tree, file)
    table = cast("Mapping[str, list[Mapping[str, object]]]", tree)
    # Without a device of the cluster each group has one of its own.
    groups = table.get("host_groups", [])
    if "device" not in table:
        check_required_fields(table, ("device",) if not groups else (), file)
        for i, group in enumerate(groups):
            check_required_fields(group, ("device",), f"{file}: host_groups[{i}]")
    # A path names a level by its name: `levels.host.alpha`.
    names = [str(level["name"]) for level in table["levels"]]
    for place, name in enumerate(names):
        if name in names[:place]:
            first = names.index(name)
            raise _refusal(
                f"{file}: levels[{place}].name",
                name,
                f"each level has a name of its own; levels[{first}] has this one",
                f"name: {name}{place}",
            )


def _refusal(place: str, value: object, rule: str, remedy: str) -> BadInput:
    shown = repr(value)
    return BadInput(
        f"{place} cannot be",
        rule=rule,
        values=shown if len(shown) <= 80 else f"{shown[:77]}...",
        remedy=remedy,
    )


def _name_of(place: str) -> str:
    return re.split(r"[. ]", place)[-1]


def _text(value: object, place: str) -> None:
    if not isinstance(value, str) or not value.strip():
        name = _name_of(place)
        shown = "text" if value is None or value == "" else str(value)[:40]
        raise _refusal(place, value, f"{name} is text", f'{name}: "{shown}"')


def _any_text(value: object, place: str) -> None:
    # `source` may be left empty: a name and numbers with origins are enough.
    if value != "":
        _text(value, place)


def _origin(value: object, place: str) -> None:
    if not isinstance(value, str) or value.partition(":")[0] not in PROVENANCE_KINDS:
        raise _refusal(
            place,
            value,
            f"an origin is text that begins with one of {', '.join(PROVENANCE_KINDS)}, "
            "and a colon",
            f'origin: "given: {value if value else "by hand"}"',
        )


def _whole(value: object, place: str) -> None:
    # bool is an int in Python, and `size: yes` is true in YAML.
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        name = _name_of(place)
        raise _refusal(
            place,
            value,
            f"{name} is a whole number from 1, without quotes",
            f"{name}: 8",
        )


def _whole_or_none(value: object, place: str) -> None:
    if value is not None:
        _whole(value, place)


def _quantity(value: object, place: str) -> None:
    """Check a number, text with a unit, or a table of one of them and its origin."""
    if isinstance(value, Mapping):
        _table({"value": _scalar, "origin": _origin}, ("value",))(value, place)
    else:
        _scalar(value, place)


def _scalar(value: object, place: str) -> None:
    # What text says is for the parser of its unit.
    if isinstance(value, str) and value.strip():
        return
    if not _is_number(value):
        name = _name_of(place)
        raise _refusal(
            place,
            value,
            f"{name} is a number, or a number with its unit",
            f"{name}: as docs/clusters.md has it, or leave it out",
        )


def _device_memory(value: object, place: str) -> None:
    _quantity(value, place)
    number = value["value"] if isinstance(value, Mapping) else value
    try:
        size = float(str(number))
    except ValueError:
        return  # text with a unit
    if size < _MIN_DEVICE_BYTES:
        raise _refusal(
            place, value, "a number without a unit is of bytes", f"memory: {number} GB"
        )


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # A whole number may be beyond all floats.
    return abs(value) < 1e300 and not math.isnan(value)


def _pairs(value: object, place: str) -> None:
    example = f"{_name_of(place)}: [[1.0e+6, 0.05], [1.0e+9, 0.6]]"
    if not isinstance(value, list):
        raise _refusal(place, value, "a list of pairs of numbers", example)
    for i, pair in enumerate(value):
        if not isinstance(pair, list) or not (
            len(pair) == 2 and all(map(_is_float_text, pair))
        ):
            raise _refusal(f"{place}[{i}]", pair, "a pair of numbers", example)


def _is_float_text(value: object) -> bool:
    # PyYAML reads 1e6 as text: floats of YAML 1.1 have a point.
    if isinstance(value, str):
        # Two digits of exponent at most: beyond 1e99 nothing is a number of a machine.
        return bool(re.fullmatch(r"[0-9.]+[eE][+-]?[0-9]{1,2}", value)) and (
            value.count(".") < 2 and value[0] != "."
        )
    return _is_number(value)


def _efficiency(value: object, place: str) -> None:
    if isinstance(value, list):
        _pairs(value, place)
    elif isinstance(value, Mapping):
        _table({"points": _pairs, "origin": _origin}, ("points",))(value, place)
    elif not _is_number(value):
        raise _refusal(
            place,
            value,
            "efficiency is a share of the peak, or points [FLOPs, share]",
            "efficiency: 0.5, without quotes",
        )


def _flops(value: object, place: str) -> None:
    example = "flops: {float32: 19.5 TFLOP/s, bfloat16: 312 TFLOP/s}"
    if not isinstance(value, Mapping) or not value:
        rule = "flops is a table: a dtype, and its peak"
        raise _refusal(place, value, rule, example)
    for name, rate in value.items():
        if not re.fullmatch(_DTYPE_PATTERN, str(name)):
            rule = "a dtype has its whole name: float32, bfloat16, float16"
            raise _refusal(f"{place}.{name}", name, rule, example)
        _quantity(rate, f"{place}.{name}")


def _packing(value: object, place: str) -> None:
    if not isinstance(value, Mapping):
        rule = "packing is a table: an algorithm, and its seconds a number"
        raise _refusal(place, value, rule, "packing: {int8: 0.1 ns}")
    for name, seconds in value.items():
        _quantity(seconds, f"{place}.{name}")


def _rows(value: object, place: str) -> None:
    # Their columns are checked where they are read: there may be thousands.
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise _refusal(place, value, "a list of rows", "as calibrate has written it")


def _table(fields: Mapping[str, FieldCheck], required: tuple[str, ...]) -> FieldCheck:
    """Return the check of a table with such fields."""

    def check(value: object, place: str) -> None:
        # The whole file has no place of its own within itself.
        below = f"{place}: " if place.count(":") == 0 else f"{place}."
        check_fields(value, fields, place)
        table = cast("Mapping[str, object]", value)
        check_required_fields(table, required, place)
        for key, one in table.items():
            fields[key](one, f"{below}{key}")

    return check


def _list_of(entry: FieldCheck, example: str, *, may_be_empty: bool) -> FieldCheck:
    """Return the check of a list of such entries."""

    def check(value: object, place: str) -> None:
        if not isinstance(value, list) or not (value or may_be_empty):
            raise _refusal(place, value, f"{_name_of(place)} is a list", example)
        for i, one in enumerate(value):
            entry(one, f"{place}[{i}]")

    return check


_LINE: Final = _table(
    {
        "kind": _text,
        "devices": _whole,
        "messages": _quantity,
        "share": _quantity,
        "inside": _whole_or_none,
        "bend": _pairs,
        "skew": _quantity,
        "origin": _origin,
    },
    ("kind", "devices", "messages", "share"),
)
_LEVEL: Final = _table(
    {
        "name": _text,
        "size": _whole,
        "alpha": _quantity,
        "bandwidth": _quantity,
        "ports": _whole,
        "port_bandwidth": _quantity,
        "oversubscription": _quantity,
        "length": _quantity,
        "lines": _list_of(_LINE, "lines: [], or without it", may_be_empty=True),
        "origin": _origin,
    },
    ("name", "size", "alpha"),
)
_TIMINGS: Final = {"origin": _origin, "peak": _quantity, "timed": _rows}
_REQUIRED_TIMINGS: Final = ("peak", "timed")
_DEVICE: Final = _table(
    {
        "name": _text,
        "flops": _flops,
        "memory": _device_memory,
        "memory_bandwidth": _quantity,
        "efficiency": _efficiency,
        "launch": _quantity,
        "crowd": _quantity,
        "interference": _quantity,
        "kernels": _table(
            {**_TIMINGS, "memory_rate": _scalar, "tile": _whole, "launch": _scalar},
            _REQUIRED_TIMINGS,
        ),
        "layers": _table(
            {**_TIMINGS, "bandwidth": _scalar, "launch": _scalar},
            (*_REQUIRED_TIMINGS, "bandwidth"),
        ),
        "blocks": _table(_TIMINGS, _REQUIRED_TIMINGS),
        "packing": _packing,
        "origin": _origin,
    },
    ("name", "flops", "memory", "memory_bandwidth", "efficiency"),
)


def _named_device(value: object, place: str) -> None:
    """Check a device: a table, or the name of a cluster whose device it is."""
    if isinstance(value, str) and value.strip():
        return
    _DEVICE(value, place)


def _pair_of_names(value: object, place: str) -> None:
    if not isinstance(value, list) or len(value) != 2:
        rule = "groups is a list of two names of host_groups"
        raise _refusal(place, value, rule, "groups: [a100, t4]")
    for i, name in enumerate(value):
        _text(name, f"{place}[{i}]")


_GROUP_LINK: Final = _table(
    {"level": _text, "alpha": _quantity, "bandwidth": _quantity, "origin": _origin},
    ("level",),
)
_GROUP: Final = _table(
    {
        "name": _text,
        "hosts": _whole,
        "device": _named_device,
        "links": _list_of(_GROUP_LINK, "links: [], or without it", may_be_empty=True),
        "origin": _origin,
    },
    ("name", "hosts"),
)
_INTER_GROUP_LINK: Final = _table(
    {
        "groups": _pair_of_names,
        "alpha": _quantity,
        "bandwidth": _quantity,
        "origin": _origin,
    },
    ("groups",),
)
_CLUSTER: Final = _table(
    {
        "name": _text,
        "source": _any_text,
        "origin": _origin,
        "device": _DEVICE,
        "host_groups": _list_of(
            _GROUP, "host_groups: [{name: a100, hosts: 3}, ...]", may_be_empty=True
        ),
        "inter_group_links": _list_of(
            _INTER_GROUP_LINK,
            "inter_group_links: [{groups: [a100, t4], bandwidth: 25 gbit}]",
            may_be_empty=True,
        ),
        "levels": _list_of(
            _LEVEL, "levels: [{name: host, size: 8, ...}]", may_be_empty=False
        ),
        "host_link": _quantity,
        "host_memory": _quantity,
        "input_rate": _quantity,
        "price": _quantity,
        "jitter": _quantity,
        "overlap": _quantity,
    },
    ("levels",),
)
