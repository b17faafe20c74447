"""Limits of a request or an answer that DescribeConfigs reports as configs of a node."""

from typing import Final

MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of records in one Fetch answer, whatever the client requests; a single batch may exceed it."""
MAX_METADATA_BYTES: Final = 4096
"""Bytes of a committed offset's metadata; Kafka's offset.metadata.max.bytes."""
