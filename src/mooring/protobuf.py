"""Protobuf messages that are built at import from a table.

Generated code rejects older protobuf runtimes; descriptors built here work with protobuf 5, 6 and
7. Each table has its own pool and package, so that it does not clash with other descriptors of the
same messages in the process. Only field numbers are on the wire.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def build(package: str, messages: Mapping[str, str]) -> dict[str, Any]:
    """The class of each message. The table maps the name of a message to its fields, separated by
    spaces: `name=number:type`, with `*` before the type for repeated ones; fields joined by `|` are
    a oneof. A type that is not a scalar is a message of the same table. Enumerations are written as
    int32, which has the same encoding."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    for name, fields in messages.items():
        kind = file.message_type.add(name=name)
        for word in re.sub(r"\|\s+", "|", fields).split():
            choices = word.split("|")
            if len(choices) > 1:
                kind.oneof_decl.add(name=f"choice{len(kind.oneof_decl)}")
            for choice in choices:
                field = _add_field(kind, choice, package, messages)
                if len(choices) > 1:
                    field.oneof_index = len(kind.oneof_decl) - 1
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def _add_field(message: Any, text: str, package: str, messages: Mapping[str, str]) -> Any:
    name, rest = text.split("=")
    number, kind = rest.split(":")
    field = message.field.add(name=name, number=int(number))
    repeated, kind = kind.startswith("*"), kind.lstrip("*")
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if kind in messages:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
    else:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    return field
