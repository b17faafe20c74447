"""Every kind of thing that is written or sent, with its fields: what a feature level is about.

python nodeimage/tests/levels/written_fields.py    prints them as JSON
"""

import json
import sys
from importlib import import_module
from typing import Final

import msgspec

from headrace.log.frames import FrameType

MODULES: Final = (
    "headrace.catalog.commands",
    "headrace.catalog.link_commands",
    "headrace.partitions.rolls.frames",
    "headrace.store.record_types",
    "headrace.peer.messages",
    "headrace.peer.reports",
)


def written_fields() -> dict[str, list[str]]:
    """Fields by kind, in their order: of commands, frames' payloads, records and peer messages; and the frame types."""
    found = {"FrameType": [each.name for each in FrameType]}
    for name in MODULES:
        module = import_module(name)
        for kind, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == name:
                fields = [each.name for each in msgspec.structs.fields(value)]
                found[f"{name.removeprefix('headrace.')}.{kind}"] = fields
    return dict(sorted(found.items()))


if __name__ == "__main__":
    json.dump(written_fields(), sys.stdout, indent=1)
