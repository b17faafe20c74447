"""Commands on a running node, and the records that they leave."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.target import split_address
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.wire import produce
from headrace.wire.api_keys import ApiKey

Headrace = Callable[..., Any]

Process = Callable[..., "subprocess.Popen[str]"]

NAB = Path(__file__).parents[4] / "shared" / "data" / "nab" / "data"


@pytest.fixture
def hr(headrace: Headrace, cluster: Any) -> Headrace:
    """`headrace` with the shared node as its running embedded cluster."""

    def run(*arguments: str, **more: str) -> Any:
        return headrace(*arguments, HEADRACE_DATA=str(cluster.data), **more)

    return run


def stored(bootstrap: str, topic: str, batch: bytes) -> None:
    """Stores a record batch as it is."""
    request = produce.ProduceRequest(None, -1, 10_000, [produce.PartitionRecords(topic, 0, memoryview(batch))])
    with BrokerConnection(*split_address(bootstrap.split(",")[0])) as connection:
        answer = connection.call(ApiKey.PRODUCE, 7, produce.encode_request(7, request))
    results, _ = produce.decode_response(answer, 0, 7)
    assert [each.error for each in results] == [0]
