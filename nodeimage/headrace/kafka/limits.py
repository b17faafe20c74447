"""Limits of one request or answer that DescribeConfigs tells as configs of a node."""

from typing import Final

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""Whatever a client asks for, one answer to Fetch holds no more than this (and one batch)."""
MAX_METADATA_BYTES: Final = 4096
"""Of one committed offset; Kafka's offset.metadata.max.bytes."""
