"""What the folders that `write_folder.py` makes hold."""

import random
from typing import Final

TOPIC: Final = "orders"
SHORT: Final = "/short:ticks"
GROUP: Final = "readers"
RECORDS: Final = 240
KEPT_FROM: Final = 20
"""Offsets of partition 0 below it are deleted."""
OPTIONS: Final = ("--chunk-bytes=65536", "--partitionlet-bytes=30000", "--disk-reserve=0")


def key_of(number: int) -> bytes:
    """Of a record; even numbers are in partition 0."""
    return b"key-%d" % (number % 7)


def value_of(number: int) -> bytes:
    """Of a record."""
    return b"value %d " % number + random.Random(number).randbytes(300)


def committed() -> dict[int, int]:
    """The group's cursors by partition."""
    return {0: 50, 1: RECORDS // 2}
