"""A topic's retention by time and size: its configs, with its stream's policy as the default.

Configs are stored as Kafka clients give them, text by name. Values are checked when requests arrive. Nothing here
raises, since stored values may come from another version.
"""

from collections.abc import Mapping

from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import Retention

RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
CLEANUP_POLICY = "cleanup.policy"


def overrides_retention(configs: Mapping[str, str]) -> bool:
    """Whether a topic's configs may change its retention from its stream's."""
    return RETENTION_MS in configs or RETENTION_BYTES in configs or CLEANUP_POLICY in configs


def retention(policy: StreamPolicy, configs: Mapping[str, str]) -> Retention:
    """The retention of a topic with `configs` in a stream with `policy`; an invalid value counts as absent.

    Kafka's retention.ms=-1 becomes 0, for ever, and its 0 becomes the shortest retention, 1 ms. A topic whose
    cleanup.policy is `compact` without `delete` keeps everything, without limits of time or size.
    """
    cleanup = {part.strip() for part in configs.get(CLEANUP_POLICY, "delete").split(",")}
    if "compact" in cleanup and "delete" not in cleanup:
        return Retention(ttl_ms=0, bytes=-1)
    millis, size = _int(configs.get(RETENTION_MS, "")), _int(configs.get(RETENTION_BYTES, ""))
    return Retention(
        ttl_ms=policy.ttl_ms if millis is None else 0 if millis < 0 else max(1, millis),
        bytes=policy.retention_bytes if size is None else max(-1, size),
    )


def _int(value: str) -> int | None:
    if len(value) > 20:  # no 64-bit number is longer; int() of a long text is slow
        return None
    try:
        return int(value)
    except ValueError:
        return None
