"""Every kind of thing that is written or sent, with its fields: what a feature level is about.

PYTHONPATH=nodeimage/tests python -m kit.written_fields    prints them as JSON
"""

import json
import sys
from importlib import import_module
from typing import Final

import msgspec

from headrace.log.frames import FrameType

MODULES: Final = {
    "headrace.catalog.policy": "catalog.commands",
    "headrace.catalog.streams": "catalog.commands",
    "headrace.catalog.topics": "catalog.commands",
    "headrace.catalog.deletions": "catalog.commands",
    "headrace.catalog.chains": "catalog.commands",
    "headrace.catalog.groups": "catalog.commands",
    "headrace.catalog.committed_offsets": "catalog.commands",
    "headrace.catalog.recovery": "catalog.commands",
    "headrace.catalog.users": "catalog.commands",
    "headrace.catalog.access": "catalog.commands",
    "headrace.catalog.quotas": "catalog.commands",
    "headrace.catalog.feature_level": "catalog.commands",
    "headrace.catalog.link_config": "catalog.link_commands",
    "headrace.catalog.links": "catalog.link_commands",
    "headrace.catalog.homes": "catalog.link_commands",
    "headrace.partitions.rolls.frames": "broker.roll_frames",
    "headrace.store.record_types": "store.record_types",
    "headrace.peer.messages": "peer.messages",
    "headrace.peer.reports": "peer.reports",
}
"""Modules under the names that they had when level 0 was recorded, which identify their kinds for ever."""
FORMER_NAMES: Final = {"CommittedOffset": "Cursor"}
"""Former names of kinds that have no tag, likewise."""


def written_fields() -> dict[str, list[str]]:
    """Fields by kind, in their order: of commands, frames' payloads, records and peer messages; and the frame types."""
    found = {"FrameType": [each.name for each in FrameType]}
    for name, former in MODULES.items():
        module = import_module(name)
        for kind, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == name:
                tag = value.__struct_config__.tag
                written = tag if isinstance(tag, str) else FORMER_NAMES.get(kind, kind)
                found[f"{former}.{written}"] = [each.encode_name for each in msgspec.structs.fields(value)]
    return dict(sorted(found.items()))


if __name__ == "__main__":
    json.dump(written_fields(), sys.stdout, indent=1)
