"""The event loop never waits for a disk, a helper process or a long step: it stalls for less than 50 ms under any
load."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kit.storage import MIB, Client, wait_until

STALL_MS = 50
SECONDS = 8


@pytest.mark.alone
def test_the_loop_does_not_stall_under_load_regroup_scrub_expiry_and_rolls(new_cluster: Callable[..., Any]) -> None:
    """Measures how long the event loop is blocked at a time."""
    sizes = (f"--chunk-bytes={4 * MIB}", f"--partitionlet-bytes={4 * MIB}", f"--container-bytes={64 * MIB}")
    cluster = new_cluster(*sizes, "--disk-reserve=0")
    cluster.admin("stream.create", {"path": "/test/short", "policy": {"ttl_ms": 1000}})
    many = [f"/test/short:many-{number}" for number in range(200)]
    large = ["/default:large-0", "/default:large-1"]
    setup = Client(cluster.port)
    setup.create(*many, *large)
    setup.close()
    stopping = threading.Event()
    failures: list[BaseException] = []

    def run(work: Callable[[Client], None]) -> threading.Thread:
        def body() -> None:
            try:
                client = Client(cluster.port)
                while not stopping.is_set():
                    work(client)
                client.close()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        return thread

    def read(client: Client) -> None:
        start, _ = client.offsets(large[0])
        client.fetch((large[0], 0, start), *((topic, 0, client.offsets(topic)[0]) for topic in many[:20]))

    def spread(client: Client) -> None:
        for topic in many:
            client.put(topic, bytes(1_000))

    def append(client: Client) -> None:
        client.put(large[0], bytes(20_000))

    threads = [run(spread), run(spread), run(append), run(read)]
    cluster.admin("scrub.start")
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not failures:
        if not cluster.admin("scrub.status")["running"]:
            cluster.admin("scrub.start")
        time.sleep(0.1)
    wait_until(
        lambda: failures or cluster.admin("status")["maintenance"]["chunks_regrouped_since_start"] > 0, seconds=20
    )
    stopping.set()
    for thread in threads:
        thread.join(30)
    assert not failures, (failures, cluster.log()[-3000:])
    status = cluster.admin("status")
    print(status["loop_lag_ms"], status["maintenance"], status["clients"]["requests_since_start"])
    assert status["maintenance"]["given_back_since_start_bytes"] > 0
    assert status["clients"]["requests_since_start"] > 1000
    assert status["loop_lag_ms"]["worst_own"] < STALL_MS, status["loop_lag_ms"]


def test_the_meter_sees_a_stall() -> None:
    import asyncio

    from headrace.base.loop_lag import LoopLag

    async def stalled() -> None:
        lag = LoopLag(asyncio.get_running_loop())
        lag.start()
        await asyncio.sleep(0.05)
        assert lag.shown()["worst"] < 5000
        began = time.process_time()
        while time.process_time() - began < 0.12:  # blocks the loop on purpose
            pass
        await asyncio.sleep(0.03)
        assert lag.shown()["worst"] >= 90
        assert lag.shown()["worst_own"] >= 90
        lag.close()

    asyncio.run(stalled())
