"""The messages of Chakra's execution traces, built as protobuf descriptors.

Fields have the names and numbers of `et_def.proto` (MLCommons Chakra 1.0.0; MIT). Only
messages that a trace is made of are here: what a file has more is skipped by protobuf.

Source: Sridharan et al. 2023, "Chakra: Advancing Performance Benchmarking and Co-design
using Standardized Execution Traces", arXiv 2305.14516.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

PACKAGE: Final = "ChakraProtoMsg"
SCHEMA_VERSION: Final = "1.0.0"

COMP_NODE: Final = 4
COMM_SEND_NODE: Final = 5
COMM_RECV_NODE: Final = 6
COMM_COLL_NODE: Final = 7

COLLECTIVE_TYPES: Final[Mapping[str, int]] = MappingProxyType(
    {"all-reduce": 0, "all-gather": 2, "all-to-all": 6, "reduce-scatter": 7}
)
"""`CollectiveCommType` by the compiler's name of a collective."""

COLLECTIVE_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    # 8 is PyTorch's reduce-scatter of equal blocks, which is the only one here.
    {**{number: name for name, number in COLLECTIVE_TYPES.items()}, 8: "reduce-scatter"}
)
"""The compiler's name of a collective by `CollectiveCommType`."""

# A field is its name, number and type; `[]` marks a repeated one, `*` one of `value`.
_MESSAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "BoolList": "values 1 bool[]",
        "AttributeProto": "name 1 string, doc_string 2 string, double_val 3 double*, "
        "float_val 5 float*, int32_val 7 int32*, int64_val 9 int64*, "
        "uint32_val 11 uint32*, uint64_val 13 uint64*, bool_val 27 bool*, "
        "bool_list 28 BoolList*, string_val 29 string*",
        "GlobalMetadata": "version 1 string, attr 2 AttributeProto[]",
        "Node": "id 1 uint64, name 2 string, type 3 int32, ctrl_deps 4 uint64[], "
        "data_deps 5 uint64[], start_time_micros 6 uint64, duration_micros 7 uint64, "
        "attr 10 AttributeProto[]",
    }
)


@cache
def message_classes() -> Mapping[str, Any]:
    """Return the classes of the messages, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    # `type` is an enum in the schema: an int32 has the same bytes, and keeps values
    # that are newer than this list.
    file = descriptor_pb2.FileDescriptorProto(
        name="jaxdist/chakra.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            field, number, kind = text.split()
            word = kind.rstrip("[]*")
            row = message.field.add(name=field, number=int(number))
            row.label = kinds.LABEL_REPEATED if "[]" in kind else kinds.LABEL_OPTIONAL
            if word in _MESSAGES:
                row.type, row.type_name = kinds.TYPE_MESSAGE, f".{PACKAGE}.{word}"
            else:
                row.type = kinds.Type.Value(f"TYPE_{word.upper()}")
            if "*" in kind:
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                row.oneof_index = 0
    # A pool of its own: another library may have the same schema in the default one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return MappingProxyType(
        {
            name: message_factory.GetMessageClass(
                pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
            )
            for name in _MESSAGES
        }
    )
