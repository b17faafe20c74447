"""One connection: calls in flight, faults, silence, and its end."""

import asyncio

import pytest

from headrace.kafka_client.connection import Limits
from headrace.kafka_client.errors import SourceUnreachable
from headrace.security.client_security import Security
from headrace.wire import fetch
from headrace.wire.batch import build_batch, iter_records
from headrace.wire.fetch import FetchPartition, FetchRequest, FetchResult, FetchTopic, FetchTopicResult
from headrace.wire.header import RequestHeader
from kit.client_calls import DICT, ONE, QUICK, WITH_SASL, Connect, ask, echo, sasl, twice
from kit.fake_kafka import SILENCE, Act, FakeKafka, framed, until


async def test_calls_are_pipelined_and_each_gets_its_own_answer(connect: Connect) -> None:
    async with FakeKafka(echo) as server:
        client = connect(server)
        answers = await asyncio.gather(*(ask(client, number=number) for number in range(200)))
        assert [answer["number"] for answer in answers] == list(range(200))
        assert server.connections == 2  # one to learn the nodes, one to the node


async def test_batches_of_a_fetch_come_as_views_of_the_answers_own_memory(connect: Connect) -> None:
    batch = bytes(build_batch([(1, None, b"x" * 3_000_000, []), (2, b"k", b"v", [])]))
    topic_id = bytes(range(16))

    def answer(header: RequestHeader, body: memoryview) -> bytes:
        asked = fetch.decode_request(body, 0, header.api_version)
        assert asked.topics == [FetchTopic(None, topic_id, [FetchPartition(0, 7, 5, -1, -1, 1 << 20)])]
        result = FetchResult(0, 0, 2, 2, 0, [batch])
        response = fetch.encode_response(header.api_version, topics=[FetchTopicResult(None, topic_id, [result])])
        return b"".join(response)

    async with FakeKafka(answer) as server:
        request = FetchRequest(
            0, 1, 1 << 20, 0, 0, -1, [FetchTopic(None, topic_id, [FetchPartition(0, 7, 5, -1, -1, 1 << 20)])], [], ""
        )
        response = await connect(server).fetch(ONE, request)
        ((records,),) = [each.records for each in response.topics[0].partitions]
        assert isinstance(records, memoryview)
        assert not records.readonly
        assert records.obj is not None
        assert records == batch
        assert [record.key for record in iter_records(records)] == [None, b"k"]


async def test_an_answer_that_nobody_asked_for_ends_the_connection(connect: Connect) -> None:
    async with FakeKafka(twice) as server:
        client = connect(server)
        assert await ask(client, a=1)
        before = server.connections
        server.answer = echo
        await until(lambda: any("nobody asked for" in str(each.error()) for each in client._connections))
        assert await ask(client, a=2)
        assert server.connections == before + 1


async def test_a_slow_network_that_brings_bytes_is_not_taken_for_silence(connect: Connect) -> None:
    """Each piece arrives after half of the allowed silence, the whole after several times the allowed silence."""
    limits = Limits(silence_s=4.0)
    async with FakeKafka(echo) as server:
        client = connect(server, limits=limits)
        await ask(client)
        whole = asyncio.Event()

        async def drip(header: RequestHeader, body: memoryview) -> Act:
            (writer,) = [each for each in server.writers if not each.is_closing()][-1:]
            raw = framed(header, echo(header, body))
            for index in range(3):
                writer.write(raw[index : index + 1])
                await asyncio.sleep(limits.silence_s / 2)
            whole.set()
            return Act(raw[3:])

        server.answer = drip
        began = asyncio.get_running_loop().time()
        assert await ask(client, a=2) == {"method": "test.echo", "a": 2}
        assert whole.is_set()
        assert asyncio.get_running_loop().time() - began > limits.silence_s


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_call_that_allows_less_silence_than_the_one_before_it_fails_at_its_own_time(
    connect: Connect, is_behind: bool
) -> None:
    """`is_behind`: it is sent before the other one is answered."""
    async with FakeKafka(echo) as server:
        client = connect(server, limits=QUICK)
        await ask(client)
        may_answer = asyncio.Event()

        async def answer_the_first(header: RequestHeader, body: memoryview) -> bytes | Act:
            server.answer = lambda _header, _body: SILENCE
            await may_answer.wait()
            return echo(header, body)

        server.answer = answer_the_first
        patient = asyncio.ensure_future(client.admin(ONE, "test.echo", {}, DICT, wait_ms=600_000))
        await until(lambda: server.answer is not answer_the_first)
        hasty = asyncio.ensure_future(ask(client)) if is_behind else None
        await asyncio.sleep(2 * QUICK.silence_s)  # until the connection waits for the patient call alone
        may_answer.set()
        await patient
        async with asyncio.timeout(30):
            with pytest.raises(SourceUnreachable) as silent:
                await (hasty or ask(client))
        assert silent.value.timed_out


async def test_no_more_calls_are_under_way_than_the_limit(connect: Connect) -> None:
    async with FakeKafka(echo) as server:
        client = connect(server, limits=QUICK)
        await ask(client)
        held = asyncio.Event()

        async def answer(header: RequestHeader, body: memoryview) -> bytes:
            await held.wait()
            return echo(header, body)

        server.answer = answer
        calls = [asyncio.ensure_future(ask(client, number=number)) for number in range(50)]
        await until(lambda: any(each._exchange.under_way >= QUICK.under_way for each in client._connections))
        assert max(each._exchange.under_way for each in client._connections) == QUICK.under_way
        held.set()
        assert [answer["number"] for answer in await asyncio.gather(*calls)] == list(range(50))


async def test_a_connection_whose_session_ends_is_replaced_before(connect: Connect) -> None:
    async with FakeKafka(sasl("PLAIN", "x", lifetime_ms=200), versions=WITH_SASL) as server:
        client = connect(
            server,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password="x",
        )
        await ask(client)
        first = set(client._connections)
        await until(lambda: not any(each.is_usable for each in first))
        assert await ask(client, a=1)


def test_the_default_limits_refuse_a_hostile_length() -> None:
    assert Limits().answer_bytes < 1 << 30
    assert Security().protocol == "PLAINTEXT"
