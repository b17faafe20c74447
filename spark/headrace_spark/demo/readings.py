"""A reading of one sensor, and its form as a record: topic = device, key = sensor, value = JSON.

Defines the form of a record and the names of streams and topics.
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
"""Values are whole multiples of it, so that sums, and hence means, are exact in whatever order values are added."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class Reading(msgspec.Struct, frozen=True, gc=False):
    """One value of one sensor. `sequence` counts a sensor's readings from 1, without gaps."""

    time: int
    """When the value was read, in milliseconds since 1970."""
    sensor: str
    value: float
    sequence: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Reading)


def encode(reading: Reading) -> bytes:
    """Return the record's value."""
    return _encoder.encode(reading)


def decode(value: bytes) -> Reading:
    """Return the reading in a record's value. Raises msgspec.DecodeError."""
    return _decoder.decode(value)


def on_grid(value: float) -> float:
    """Return the nearest multiple of STEP."""
    return round(value / STEP) * STEP


def topic_of(device: str) -> str:
    """Return the full name of a device's topic."""
    return f"{SENSORS_STREAM}:{device}"


def device_of(topic: str) -> str:
    """Return the device to which a topic belongs."""
    return topic.partition(":")[2]


def device_name(text: str) -> str:
    """Return `text` as a valid topic name: letters, digits, `-` and `_`."""
    return _NOT_IN_NAMES.sub("-", text).strip("-") or "unnamed"
