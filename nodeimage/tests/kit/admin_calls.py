"""Admin calls of a node inside the test's own loop."""

import msgspec
import pytest

from headrace.kafka.connection import Connection
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.api_keys import ApiKey


@pytest.fixture
def raw_call(broker):
    async def called(method, params=None):
        body = encode_admin_request(method, params or {})
        return msgspec.msgpack.decode(await broker.admin.handle(body, Connection(broker)))

    return called


@pytest.fixture
def call(raw_call):
    """The result of a call that succeeds."""

    async def called(method, **params):
        answer = await raw_call(method, params)
        assert answer["error"] == 0, answer["message"]
        return answer["result"]

    return called


@pytest.fixture
def refused(raw_call):
    """The code and message of a call that is refused."""

    async def called(method, **params):
        answer = await raw_call(method, params)
        assert answer["result"] is None
        assert "\n" not in answer["message"]
        return answer["error"], answer["message"]

    return called


async def create(ask, name, partitions=1):
    topics = [{"name": name, "num_partitions": partitions, "replication_factor": -1}]
    [made] = (await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 5_000})).topics
    assert made.error_code == 0, made.error_message
    return made.topic_id.bytes
