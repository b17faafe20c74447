"""A start after a crash scans a bounded part of the log, whatever is stored."""

import time
from collections.abc import Callable
from typing import Any

from kit.storage import MIB, Client

TOPIC = "/default:stored"


def test_a_start_after_a_kill_scans_no_more_than_one_checkpoint_per_container(
    new_cluster: Callable[..., Any],
) -> None:
    cluster = new_cluster(f"--chunk-bytes={32 * MIB}", "--disk-reserve=0", "--no-fsync")
    client = Client(cluster.port)
    record = bytes(900_000)
    for _ in range(80):
        client.put(TOPIC, record)
    client.close()
    cluster.kill()
    began = time.monotonic()
    cluster.start()
    ready = time.monotonic() - began
    status = cluster.admin("status")
    stored = status["disk"]["stored_bytes"]
    scanned = status["disk"]["scanned_at_start_bytes"]
    print(f"{stored / MIB:.0f} MiB stored, {scanned / MIB:.1f} MiB scanned, ready after {ready:.2f} s")
    assert stored > 60 * MIB
    assert scanned <= 16 * MIB * len(status["containers"])
    client = Client(cluster.port)
    assert client.offsets(TOPIC) == (0, 80)
    assert client.put(TOPIC, b"next") == 80
    client.close()
