"""A running node frees the disk space of expired records by itself within a minute of their expiry."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from kit.storage import MIB, Client, allocated, wait_until

TTL_S = 4
KEEP, LEAVE = "/test/keep:t", "/test/leave:t"


@pytest.mark.slow
def test_the_bytes_of_a_short_stream_go_within_a_minute_and_those_of_its_neighbour_stay(
    new_cluster: Callable[..., Any],
) -> None:
    cluster = new_cluster(f"--chunk-bytes={4 * MIB}", "--disk-reserve=0", "--no-fsync")
    cluster.admin("stream.create", {"path": "/test/keep", "policy": {"ttl_ms": 0}})
    cluster.admin("stream.create", {"path": "/test/leave", "policy": {"ttl_ms": TTL_S * 1000}})
    client = Client(cluster.port)
    for serial in range(2000):
        client.put(KEEP, b"%08d" % serial + bytes(3_000))
        client.put(LEAVE, b"%08d" % serial + bytes(6_000))
    written = time.monotonic()
    container = max(cluster.data.rglob("containers/*"), key=allocated)
    full = allocated(container)
    kept = 2000 * 3_100
    # What may remain: live records, the open chunk and the next one, both preallocated, and data in shared blocks.
    wait_until(
        lambda: client.offsets(LEAVE)[0] > 1000 and allocated(container) < kept * 1.1 + 8.5 * MIB, seconds=TTL_S + 60
    )
    took = time.monotonic() - written
    print(f"{full / MIB:.1f} MiB became {allocated(container) / MIB:.1f} MiB {took:.1f} s after the last record")
    assert [value[:8] for _, value in client.read(KEEP)] == [b"%08d" % serial for serial in range(2000)]
    start, end = client.offsets(LEAVE)
    assert end == 2000
    assert start > 1000
    client.close()
