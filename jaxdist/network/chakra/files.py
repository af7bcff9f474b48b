"""Files of execution traces: one a rank, as Chakra's tools and ASTRA-sim read them.

    FOLDER/step.0.et          GlobalMetadata, then a Node each, each behind its length
    FOLDER/comm_groups.json   {"1": [0, 1], ...}: ranks of the process groups

`comm_size` are the bytes that a rank gives, as ASTRA-sim counts them: of an all-gather
its own part, of a reduce-scatter the whole array.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from jaxdist.core.errors import BadInput
from jaxdist.core.files import write_atomic
from jaxdist.core.validation import json_text
from jaxdist.network.chakra.schema import (
    COLLECTIVE_NAMES,
    COLLECTIVE_TYPES,
    COMM_COLL_NODE,
    COMM_RECV_NODE,
    COMM_SEND_NODE,
    COMP_NODE,
    SCHEMA_VERSION,
    message_classes,
)
from jaxdist.network.chakra.trace import ExecutionTrace, NodeKind, TraceNode

GROUPS_FILE: Final = "comm_groups.json"
"""Name of the file of process groups; ASTRA-sim is told its path."""

_NODE_TYPES: Final[Mapping[NodeKind, int]] = {
    "compute": COMP_NODE,
    "collective": COMM_COLL_NODE,
    "send": COMM_SEND_NODE,
    "receive": COMM_RECV_NODE,
}
_NODE_COUNT: Final = "num_nodes"
"""Attribute of the metadata: a file that ends between two nodes is seen to be short."""


def write_traces(folder: Path, trace: ExecutionTrace, name: str = "step") -> None:
    """Write a trace, one file a rank.

    Args:
        folder: made where it is not there.
        trace: all ranks.
        name: first part of the names of the files.

    Raises:
        BadInput: the folder has traces, or is a file.
    """
    check_trace_folder(folder)
    from google.protobuf import proto

    folder.mkdir(parents=True, exist_ok=True)
    classes = message_classes()
    for rank, nodes in enumerate(trace.ranks):
        metadata = classes["GlobalMetadata"](version=SCHEMA_VERSION)
        metadata.attr.add(name=_NODE_COUNT, int64_val=len(nodes))
        text = io.BytesIO()
        proto.serialize_length_prefixed(metadata, text)
        for node in nodes:
            proto.serialize_length_prefixed(_to_message(node, rank), text)
        (folder / f"{name}.{rank}.et").write_bytes(text.getvalue())
    # The group of all ranks is not listed: no name means all, here and for ASTRA-sim.
    groups = {key: list(ranks) for key, ranks in trace.groups.items()}
    write_atomic(folder / GROUPS_FILE, json_text(groups) + "\n")


def check_trace_folder(folder: Path) -> None:
    """Refuse a folder that traces cannot be written to.

    Raises:
        BadInput: it has traces, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(
            f"{folder} is a file",
            rule="traces are written into a folder, one file a rank",
            values=str(folder),
            remedy=f"{folder}.traces",
        )
    if folder.is_dir() and any(folder.glob("*.et")):
        # Files of more ranks than are written would stay and be read along.
        raise BadInput(
            f"{folder} has traces already",
            rule="a folder has the traces of one step",
            values=str(folder),
            remedy="another folder",
        )


def read_traces(folder: Path) -> ExecutionTrace:
    """Read a folder of traces.

    Raises:
        BadInput: no traces, ranks that are missing, a file that is cut off, a
            collective or a group that is not known, or what `ExecutionTrace` refuses.
    """
    named: dict[str, dict[int, Path]] = {}
    for file in folder.glob("*.et"):
        # The number is the last part: names may have dots and digits themselves.
        if found := re.fullmatch(r"(.+)\.(\d+)\.et", file.name):
            named.setdefault(found[1], {})[int(found[2])] = file
    if len(named) != 1:
        raise BadInput(
            f"{folder} is no folder of one execution trace",
            rule="a folder has one trace: NAME.0.et, NAME.1.et, ..., a file a rank",
            values=", ".join(sorted(named)) or "no such files",
            remedy="jaxdist predict EXPERIMENT --cluster NAME --chakra FOLDER",
        )
    ((name, files),) = named.items()
    if missing := sorted(set(range(max(files) + 1)) - files.keys()):
        raise BadInput(
            f"{folder} lacks {len(missing)} of {max(files) + 1} ranks",
            rule="ranks are numbered from 0, each with a file",
            values=f"no {name}.{missing[0]}.et",
            remedy="copy the whole folder",
        )
    ranks = tuple(tuple(_read_rank(files[rank])) for rank in range(len(files)))
    return ExecutionTrace(ranks=ranks, groups=_read_groups(folder / GROUPS_FILE))


def _read_rank(file: Path) -> Iterator[TraceNode]:
    """Yield the nodes of a file."""
    from google.protobuf import proto
    from google.protobuf.message import DecodeError

    classes, data = message_classes(), io.BytesIO(file.read_bytes())

    def read(kind: str) -> Any:
        try:
            return proto.parse_length_prefixed(classes[kind], data)
        except (DecodeError, EOFError, ValueError) as error:
            raise _cut_off(file, f"{error} at byte {data.tell():,}") from None

    metadata = read("GlobalMetadata")
    if metadata is None:
        raise _cut_off(file, "it is empty")
    count = 0
    while (message := read("Node")) is not None:
        count += 1
        yield _from_message(message, file)
    # Other tools write no count; their files are taken as they end.
    wanted = _attributes(metadata).get(_NODE_COUNT, count)
    if wanted != count:
        raise _cut_off(file, f"{count:,} of {wanted:,} nodes")


def _cut_off(file: Path, values: str) -> BadInput:
    return BadInput(
        f"{file.name} is cut off, or no execution trace",
        rule="a trace is Chakra's GlobalMetadata and Node messages, each whole",
        values=values,
        remedy="copy or write the file anew",
    )


def _read_groups(file: Path) -> dict[str, tuple[int, ...]]:
    """Read the process groups; none where there is no file."""
    if not file.exists():
        return {}
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
        return {str(name): tuple(map(int, ranks)) for name, ranks in dict(tree).items()}
    except (ValueError, TypeError) as error:
        raise BadInput(
            f"{file.name} has no process groups",
            rule='its form is {"1": [0, 1], "2": [2, 3]}: a name, and its ranks',
            values=str(error),
            remedy="write the folder anew",
        ) from None


def _to_message(node: TraceNode, rank: int) -> Any:
    message = message_classes()["Node"](
        id=node.id,
        name=node.name,
        type=_NODE_TYPES[node.kind],
        data_deps=node.dependencies,
        duration_micros=node.duration_us,
    )
    add = message.attr.add
    add(name="is_cpu_op", bool_val=False)
    if node.kind == "compute":
        return message
    # Types of the values are those that Chakra's generator writes and its feeder reads.
    add(name="comm_size", int64_val=node.size)
    if node.kind == "collective":
        add(name="comm_type", int64_val=COLLECTIVE_TYPES[node.collective])
        if node.group:
            add(name="pg_name", string_val=node.group)
        return message
    ends = (rank, node.peer) if node.kind == "send" else (node.peer, rank)
    add(name="comm_src", int32_val=ends[0])
    add(name="comm_dst", int32_val=ends[1])
    add(name="comm_tag", int32_val=node.tag)
    return message


def _from_message(message: Any, file: Path) -> TraceNode:
    # Loads, stores and metadata take their duration, as what is computed does.
    kinds = {number: kind for kind, number in _NODE_TYPES.items()}
    kind, known = kinds.get(message.type, "compute"), _attributes(message)
    collective, peer = "", 0
    if kind == "collective":
        number = known.get("comm_type", -1)
        if number not in COLLECTIVE_NAMES:
            raise BadInput(
                f"{file.name} has a collective that is not known",
                rule=f"comm_type is one of {_collective_list()}",
                values=f"node {message.id}, {message.name}: comm_type {number}",
                remedy="leave it out of the trace",
            )
        collective = COLLECTIVE_NAMES[number]
    elif kind in ("send", "receive"):
        peer = int(known.get("comm_dst" if kind == "send" else "comm_src", 0))
    # ASTRA-sim: no group and group 0 are all ranks.
    group = str(known.get("pg_name", ""))
    return TraceNode(
        id=message.id,
        name=message.name,
        kind=kind,
        # An edge of either kind holds a node back, and may be given as both.
        dependencies=tuple(dict.fromkeys((*message.data_deps, *message.ctrl_deps))),
        duration_us=message.duration_micros if kind == "compute" else 0,
        collective=collective,
        group="" if group == "0" or kind != "collective" else group,
        size=int(known.get("comm_size", 0)),
        peer=peer,
        tag=int(known.get("comm_tag", 0)),
    )


def _attributes(message: Any) -> dict[str, Any]:
    """Return the attributes of a message by name, whatever their type."""
    found = {}
    for each in message.attr:
        field = each.WhichOneof("value")
        if field is not None:
            found[each.name] = getattr(each, field)
    return found


def _collective_list() -> str:
    return ", ".join(f"{number} ({name})" for number, name in COLLECTIVE_NAMES.items())
