"""What the link calls have in common: their versions, and checked parameters.

A target begins with `link.hello`, whose parameters and answer never change, and which is answered whatever version it
carries; the target continues in the highest version that both sides understand. Every other call in a version that this
node does not understand is refused as a whole.
"""

from typing import Annotated, Final

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.catalog.names import MAX_LENGTH, check_stream
from headrace.partitions.admin_params import Params

VERSIONS: Final = (1, 1)
"""Lowest and highest version of the link calls that this node understands."""
MAX_ITEMS: Final = 10_000
"""The maximum number of partitions, topics or committed offsets in one call."""
MAX_ROWS: Final = 2_000
"""The maximum number of topics or committed offsets in one page, even if more are requested, since they contain texts
from clients."""

TopicId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Group = Annotated[str, msgspec.Meta(max_length=2**15 - 1)]
Path = Annotated[str, msgspec.Meta(max_length=MAX_LENGTH)]
Cluster = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]


class Versioned(Params, frozen=True):
    """Parameters of a link call."""

    version: int


class OfStream(Versioned, frozen=True):
    """Parameters of a link call about a stream."""

    stream: Path


def check_version(params: Versioned) -> None:
    """Check the call's version. Raises KafkaError UNSUPPORTED_VERSION."""
    low, high = VERSIONS
    if not low <= params.version <= high:
        raise KafkaError(
            Code.UNSUPPORTED_VERSION,
            f"this node speaks versions {low} to {high} of the link calls, not {params.version}; call link.hello first",
        )


def check_call(params: OfStream) -> None:
    """Check the call's version and stream path. Raises KafkaError: UNSUPPORTED_VERSION, or for an invalid path."""
    check_version(params)
    check_stream(params.stream)
