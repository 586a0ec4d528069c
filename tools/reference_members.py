"""Choose the members of classes that the reference lists: an extension of Griffe.

A member without a docstring is internal, except a field of plain data, whose name and type describe
it. `tools/build_docs.py` loads this file in the process of the builder.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

PLAIN_DATA = ("Struct", "NamedTuple", "TypedDict")
_FACTORY = re.compile(r"(?:msgspec\.)?field\(default_factory=lambda: (.*)\)")


class PublicMembers(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for module in pkg.modules.values():
            if not module.is_alias:
                self.on_package(pkg=module)
        for kind in pkg.classes.values():
            if not kind.is_alias:
                _choose(kind)


def _choose(kind: griffe.Class) -> None:
    plain = any(map(_is_plain_data, [kind, *kind.mro()]))
    for name, member in list(kind.members.items()):
        field = plain and isinstance(member, griffe.Attribute) and "property" not in member.labels
        if not field and not member.has_docstring and not name.startswith("_"):
            del kind.members[name]
        elif isinstance(member, griffe.Attribute) and member.value is not None:
            if not field and "class-attribute" not in member.labels:
                member.value = None  # code of the constructor
            elif factory := _FACTORY.fullmatch(str(member.value)):
                member.value = factory[1]


def _is_plain_data(kind: griffe.Class) -> bool:
    bases = {str(base).rpartition(".")[2] for base in kind.bases}
    return "dataclass" in kind.labels or not bases.isdisjoint(PLAIN_DATA)
