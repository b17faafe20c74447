"""A reading of one sensor, and how it travels as a record: topic = device, key = sensor, value = JSON.

Responsible for the form of a record and the names of streams and topics. Knows nothing of who sends or reads it.
"""

import re
from typing import Final

import msgspec

SENSORS_STREAM: Final = "/factory/sensors"
INSIGHTS_STREAM: Final = "/factory/insights"
WINDOWS_TOPIC: Final = "windows"
ALL_SENSOR_TOPICS: Final = f"^{SENSORS_STREAM}:.*"
"""A pattern for clients that subscribe by regular expression."""
STEP: Final = 1 / 1024
"""Values are whole multiples of it, so that sums are exact in whatever order they are made, and so are means."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One value of one sensor. `sequence` counts the readings of a sensor from 1, without a gap."""

    time: int
    """Milliseconds since 1970, when the value was read."""
    sensor: str
    value: float
    sequence: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Reading)


def encode(reading: Reading) -> bytes:
    """The record's value."""
    return _encoder.encode(reading)


def decode(value: bytes) -> Reading:
    """The reading of a record's value. Raises msgspec.DecodeError."""
    return _decoder.decode(value)


def on_grid(value: float) -> float:
    """The nearest multiple of STEP."""
    return round(value / STEP) * STEP


def topic_of(device: str) -> str:
    """The full name of a device's topic."""
    return f"{SENSORS_STREAM}:{device}"


def device_of(topic: str) -> str:
    """The device whose topic this is."""
    return topic.partition(":")[2]


def device_name(text: str) -> str:
    """`text` as a topic may be named: letters, digits, `-` and `_`."""
    return _NOT_IN_NAMES.sub("-", text).strip("-") or "unnamed"
