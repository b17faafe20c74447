"""ApiVersions: how client and server find the versions that both speak (KIP-35, KIP-511).

Its response header is never flexible. A version that the server does not know is answered in version 0, with error 35
and the ranges, so that the client can ask again.
"""

import struct
from functools import cache

from headrace.errors import Code
from headrace.wire import cold
from headrace.wire.api_keys import ADVERTISED, SUPPORTED, ApiKey
from headrace.wire.primitives import INT16, Buffer, check_end, malformed, read_count

_RANGE = struct.Struct(">hhh")  # key, lowest version, highest version


def is_known(version: int) -> bool:
    """Whether ApiVersions itself is spoken in this version."""
    lowest, highest = SUPPORTED[ApiKey.API_VERSIONS]
    return lowest <= version <= highest


@cache
def _encoded(version: int, error: Code) -> bytes:
    return cold.encode_response(
        ApiKey.API_VERSIONS,
        version,
        {
            "error_code": error,
            "api_keys": [
                {"api_key": key, "min_version": lowest, "max_version": highest}
                for key, (lowest, highest) in ADVERTISED.items()
            ],
        },
    )


def encode_response(version: int) -> bytes:
    """The body of the response to a request of `version`, in version 0 if that is unknown. No features."""
    if is_known(version):
        return _encoded(version, Code.NONE)
    return _encoded(0, Code.UNSUPPORTED_VERSION)


@malformed
def decode_v0_response(buf: Buffer) -> tuple[int, dict[int, tuple[int, int]]]:
    """Error code and versions by API key, of a response of version 0, which every server gives. The request's body is
    empty. Raises `MalformedRequest`.
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
