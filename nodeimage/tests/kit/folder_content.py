"""The contents of the folders that `write_folder.py` writes."""

import random
from typing import Final

TOPIC: Final = "orders"
SHORT: Final = "/short:ticks"
GROUP: Final = "readers"
RECORDS: Final = 240
KEPT_FROM: Final = 20
"""Offsets of partition 0 below this one are deleted."""
USER: Final = "alice"
USERS: Final = "sensors"
"""The user's group."""
ACCESS: Final = (
    ("cluster", "admin", "u:alice"),
    ("/short", "produce", "u:bob | g:sensors"),
    ("/default:orders", "consume", "p & !u:bob"),
    ("/plant/*", "topic", ""),
    ("group:readers*", "consume", "g:sensors"),
    ("group:readers-1", "consume", "g:sensors"),
)
"""Access expressions, from level 2 on: object, permission, expression."""
OPTIONS: Final = ("--chunk-bytes=65536", "--partitionlet-bytes=30000", "--disk-reserve=0")


def key_of(number: int) -> bytes:
    """The key of a record; even numbers are in partition 0."""
    return b"key-%d" % (number % 7)


def value_of(number: int) -> bytes:
    """The value of a record."""
    return b"value %d " % number + random.Random(number).randbytes(300)


def committed() -> dict[int, int]:
    """The group's committed offsets by partition."""
    return {0: 50, 1: RECORDS // 2}
