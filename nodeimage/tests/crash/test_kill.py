"""kill -9 at random moments under load: nothing acknowledged is lost, nothing is there twice (invariant 1).

HEADRACE_KILLS of them, 30 by default, 300 in `make nightly`.
"""

import os
import random
import time
from collections.abc import Callable

import pytest

from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from kit.kill_history import Writer, check, read_all

KILLS = int(os.environ.get("HEADRACE_KILLS", "30"))
OPTIONS = ("--chunk-bytes=1048576", "--partitionlet-bytes=400000", "--container-bytes=16777216", "--disk-reserve=0")


def producer_id(address: tuple[str, int]) -> int:
    with BrokerConnection(*address) as connection:
        fields = {"transactional_id": None, "transaction_timeout_ms": 60000}
        body = generic_codec.encode_request(ApiKey.INIT_PRODUCER_ID, 1, fields)
        answer = generic_codec.decode_response(
            ApiKey.INIT_PRODUCER_ID, 1, connection.call(ApiKey.INIT_PRODUCER_ID, 1, body)
        )
    assert int(generic_codec.field(answer, "error_code", 0)) == 0
    return int(answer.producer_id)


@pytest.mark.slow
@pytest.mark.timeout(240 + 8 * KILLS)
def test_kills_under_load_lose_nothing_and_double_nothing(new_cluster: Callable[..., object]) -> None:
    cluster = new_cluster(*OPTIONS)
    address = (cluster.host, cluster.port)  # type: ignore[attr-defined]
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    topics = ["/default:crash-a", "/default:crash-b"]
    cluster.admin("stream.alter", {"path": "/default", "changes": {"default_partitions": 3}})  # type: ignore[attr-defined]
    with BrokerConnection(*address) as connection:
        body = generic_codec.encode_request(
            ApiKey.CREATE_TOPICS,
            5,
            {
                "topics": [
                    {"name": name, "num_partitions": 3, "replication_factor": -1, "assignments": [], "configs": []}
                    for name in topics
                ],
                "timeout_ms": 10000,
                "validate_only": False,
            },
        )
        connection.call(ApiKey.CREATE_TOPICS, 5, body)
    partitions = [(topic, number) for topic in topics for number in range(3)]
    writers = [
        Writer(
            name=f"w{index}",
            address=address,
            partitions=partitions,
            producer_id=producer_id(address) if index % 2 else -1,
            seed=chance.randrange(1 << 32),
        )
        for index in range(4)
    ]
    threads = [writer.start() for writer in writers]
    for kill in range(KILLS):
        time.sleep(chance.uniform(0.02, 0.5))  # the moment is the point
        cluster.kill()  # type: ignore[attr-defined]
        cluster.start()  # type: ignore[attr-defined]
        for writer in writers:
            assert writer.failure is None, f"kill {kill}: {writer.failure!r}"
        if kill % 10 == 9:
            print(f"{kill + 1} kills, {sum(len(writer.batches) for writer in writers)} batches")
    for writer in writers:
        writer.stopping.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    cluster.kill()  # type: ignore[attr-defined]
    cluster.start()  # type: ignore[attr-defined]
    result = check(writers, lambda topic, partition: read_all(address, topic, partition))
    print(result)
    assert result["acknowledged"] > 10 * KILLS
    state = cluster.admin("scrub.start")  # type: ignore[attr-defined]
    while state["running"]:
        time.sleep(0.1)
        state = cluster.admin("scrub.status")  # type: ignore[attr-defined]
    assert state["errors"] == [], state
