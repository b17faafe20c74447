"""ApiVersions: how client and server find the versions that both support (KIP-35, KIP-511).

The response header of this API is never flexible.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from headrace.base.errors import Code
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.primitives import INT16, Buffer, check_end, malformed, read_count

FEATURES_FROM: Final = 3
ZERO_FROM: Final = 4
_RANGE = struct.Struct(">hhh")  # key, lowest version, highest version


class Finalized(NamedTuple):
    """A feature of the cluster (KIP-584): its level, and the range of levels that the node supports. `epoch` rises with
    every change of any feature."""

    name: str
    level: int
    oldest: int
    newest: int
    epoch: int


@lru_cache(64)
def encode_response(
    version: int,
    apis: tuple[tuple[ApiKey, Versions], ...],
    feature: Finalized | None = None,
    *,
    error: Code = Code.NONE,
) -> bytes:
    """The body of the response of a server that supports `apis`."""
    fields: dict[str, object] = {
        "error_code": error,
        "api_keys": [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in apis],
    }
    if feature is not None and version >= FEATURES_FROM:
        fields |= _features(version, feature)
    return generic_codec.encode_response(ApiKey.API_VERSIONS, version, fields)


def _features(version: int, feature: Finalized) -> dict[str, object]:
    # Clients of version 3 reject a feature whose range begins at 0 (KAFKA-17011); a level of 0 is sent to no client.
    oldest = feature.oldest if version >= ZERO_FROM else max(feature.oldest, 1)
    fields: dict[str, object] = {"finalized_features_epoch": feature.epoch}
    if oldest <= feature.newest:
        supported = {"name": feature.name, "min_version": oldest, "max_version": feature.newest}
        fields["supported_features"] = [supported]
    if feature.level:
        level = {"name": feature.name, "max_version_level": feature.level, "min_version_level": feature.level}
        fields["finalized_features"] = [level]
    return fields


@malformed
def decode_v0_response(buf: Buffer) -> tuple[int, dict[int, tuple[int, int]]]:
    """The error code and the versions by API key in a response of version 0, which every server supports. The body of
    such a request is empty. Raises `MalformedRequest`.
    """
    (error,) = INT16.unpack_from(buf)
    count, pos = read_count(buf, INT16.size, False)
    ranges: dict[int, tuple[int, int]] = {}
    for _ in range(count):
        key, lowest, highest = _RANGE.unpack_from(buf, pos)
        ranges[key] = (lowest, highest)
        pos += _RANGE.size
    check_end(buf, pos)
    return error, ranges
