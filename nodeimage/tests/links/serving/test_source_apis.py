"""A link's calls to its source: the change feed and committed offsets, through bytes, on a real node."""

import asyncio
import random
import time

import msgspec
import pytest

from headrace.base.errors import Code
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.committed_offsets import CommitOffsets, CommittedOffset, DeleteOffsets
from headrace.catalog.groups import DeleteGroups
from headrace.catalog.rows import Replaced
from headrace.kafka.connection import Connection
from headrace.links.serving import change_feed, source_apis
from headrace.links.serving.change_feed import ROUNDED_S
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import read_response_header, request_header

STREAM = "/plant"


@pytest.fixture
def raw_call(broker):
    async def called(method, params=None):
        body = encode_admin_request(method, params or {})
        return msgspec.msgpack.decode(await broker.admin.handle(body, Connection(broker.dispatcher)))

    return called


@pytest.fixture
def call(raw_call):
    """The result of a call that succeeds; by default in version 1, about the stream."""

    async def called(method, **params):
        if method.startswith("link."):
            params = {"version": 1, "stream": STREAM} | params
        answer = await raw_call(method, params)
        assert answer["error"] == 0, answer["message"]
        return answer["result"]

    return called


@pytest.fixture
def refused(raw_call):
    async def called(method, **params):
        answer = await raw_call(method, {"version": 1, "stream": STREAM} | params)
        assert answer["result"] is None
        assert "\n" not in answer["message"]
        return answer["error"], answer["message"]

    return called


@pytest.fixture
async def stream(call):
    await call("stream.create", path=STREAM)


@pytest.fixture
def create(ask):
    async def created(name, partitions=1):
        topics = [{"name": name, "num_partitions": partitions, "replication_factor": -1}]
        [made] = (await ask(ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 5_000})).topics
        assert made.error_code == 0, made.error_message
        return made.topic_id.bytes

    return created


class Follower:
    """A reader of the feed, such as a link."""

    def __init__(self, call, **asked):
        self.call = call
        self.asked = {"topics": True, "cursors": True} | asked
        self.since = None
        self.resets = 0

    async def poll(self, **params):
        answer = await self.call("link.changes", since=self.since, **self.asked | params)
        self.since = [answer["run"], answer["serial"]]
        self.resets += answer["reset"]
        return answer


@pytest.fixture
async def follower(call, stream):
    """A follower that has begun to read."""
    made = Follower(call)
    assert (await made.poll())["reset"]
    return made


def nothing(answer):
    return not (answer["reset"] or answer["partitions"] or answer["topics"] or answer["cursors"])


class TestHello:
    async def test_says_who_is_here_and_what_it_speaks(self, call, broker, stream):
        told = await call("link.hello")
        assert told["cluster_id"] == broker.node.cluster_id
        assert told["versions"] == [1, 1]
        assert told["nodes"] == [[broker.node.node_id, broker.node.host, broker.node.port]]
        assert told["policy"]["ttl_ms"] == 0
        assert told["problem"] is None

    async def test_answers_a_version_that_it_does_not_know(self, call, stream):
        assert (await call("link.hello", version=99))["versions"] == [1, 1]

    async def test_a_stream_that_is_not_there_is_a_problem_that_names_it(self, call):
        told = await call("link.hello")
        assert STREAM in told["problem"]
        assert told["policy"] == {}


class TestBadInput:
    @pytest.mark.parametrize("method", ["link.changes", "link.cursors"])
    async def test_another_version_is_refused_with_those_that_are_spoken(self, refused, stream, method):
        code, message = await refused(method, version=2)
        assert code == Code.UNSUPPORTED_VERSION
        assert "1 to 1" in message

    @pytest.mark.parametrize(
        ("method", "params", "says"),
        [
            ("link.hello", {"stream": "plant"}, "plant"),
            ("link.hello", {"stream": "/" + "x" * 300}, "stream"),
            ("link.changes", {"stream": "/a/../b"}, "/a/../b"),
            ("link.changes", {"since": ["run"]}, "since"),
            ("link.changes", {"since": ["r" * 65, 1]}, "since"),
            ("link.changes", {"wait_ms": 30_001}, "wait_ms"),
            ("link.changes", {"wait_ms": -1}, "wait_ms"),
            ("link.changes", {"limit": 0}, "limit"),
            ("link.changes", {"limit": 10_001}, "limit"),
            ("link.changes", {"colour": "red"}, "colour"),
            ("link.cursors", {"limit": 10_001}, "limit"),
            ("link.cursors", {"after": ["g", b"short", 0]}, "after"),
            ("link.cursors", {"keys": [["g", b"x" * 17, 0]]}, "keys"),
            ("link.cursors", {"keys": [["g", b"x" * 15, 0]]}, "keys"),
            ("link.cursors", {"keys": [["g", b"", 0]]}, "keys"),
            ("link.cursors", {"keys": [["g", b"x" * 16, -1]]}, "keys"),
            ("link.cursors", {"keys": [["g", b"", -1]] * 10_001}, "keys"),
        ],
    )
    async def test_bad_parameters_are_named(self, refused, method, params, says):
        code, message = await refused(method, **params)
        assert code in (Code.INVALID_REQUEST, Code.INVALID_TOPIC_EXCEPTION)
        assert says in message

    async def test_a_stream_that_is_not_there(self, refused):
        code, message = await refused("link.changes")
        assert code == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert STREAM in message


class TestChanges:
    async def test_whoever_begins_lists_all_anew(self, call, stream):
        answer = await call("link.changes", wait_ms=5_000)
        assert answer["reset"]
        assert (answer["partitions"], answer["topics"], answer["cursors"]) == ([], [], [])

    async def test_nothing_new_is_told_when_the_time_is_up(self, follower):
        began = time.monotonic()
        assert nothing(await follower.poll(wait_ms=200))
        assert time.monotonic() - began >= 0.19  # the loop counts in whole milliseconds

    async def test_records_are_told_at_once_with_the_high_watermark(self, follower, create, append):
        topic = await create("/plant:t", 2)
        await follower.poll()
        waiting = asyncio.create_task(follower.poll(wait_ms=30_000))
        await asyncio.sleep(0)
        began = time.monotonic()
        assert await append("/plant:t", b"a", b"b", partition=1) == 2
        answer = await waiting
        assert time.monotonic() - began < 20
        assert answer["partitions"] == [[topic, 1, 2]]
        assert not answer["reset"]
        assert nothing(await follower.poll())

    async def test_a_partition_that_moves_often_is_told_once(self, follower, create, append):
        topic = await create("/plant:t")
        await follower.poll()
        for _ in range(20):
            await append("/plant:t", b"a")
        assert (await follower.poll())["partitions"] == [[topic, 0, 20]]

    async def test_other_streams_are_not_told(self, follower, create, append):
        await create("t")
        await append("t", b"a")
        assert nothing(await follower.poll(wait_ms=50))

    async def test_what_was_not_asked_for_is_not_told(self, call, stream, create, append):
        follower = Follower(call, topics=False, cursors=False)
        await follower.poll()
        topic = await create("/plant:t")
        assert nothing(await follower.poll(wait_ms=50))
        await append("/plant:t", b"a")
        answer = await follower.poll(wait_ms=5_000)
        assert (answer["partitions"], answer["topics"]) == ([[topic, 0, 1]], [])

    async def test_a_limit_gives_the_oldest_first_and_the_rest_next_time(self, follower, create, append):
        topic = await create("/plant:t", 5)
        await follower.poll()
        for partition in range(5):
            await append("/plant:t", b"a", partition=partition)
        told = [(await follower.poll(limit=2))["partitions"] for _ in range(4)]
        assert [len(each) for each in told] == [2, 2, 1, 0]
        assert sorted(row for rows in told for row in rows) == [[topic, partition, 1] for partition in range(5)]

    async def test_topics_made_changed_grown_shortened_and_deleted(self, follower, create, append, ask, broker):
        topic = await create("/plant:t")
        assert (await follower.poll())["topics"] == [topic]
        change = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
        resource = {"resource_type": 2, "resource_name": "/plant:t", "configs": [change]}
        await ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
        assert (await follower.poll())["topics"] == [topic]
        grown = {"name": "/plant:t", "count": 3, "assignments": None}
        await ask(ApiKey.CREATE_PARTITIONS, 3, {"topics": [grown], "timeout_ms": 5_000, "validate_only": False})
        assert (await follower.poll())["topics"] == [topic]
        await append("/plant:t", b"a")
        assert (await follower.poll())["topics"] == []
        await broker.catalog.submit(SetLogStart(items=[LogStart(topic, 0, 1)]))
        assert (await follower.poll())["topics"] == [topic]
        await ask(ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "/plant:t", "topic_id": None}], "timeout_ms": 5_000})
        assert (await follower.poll())["topics"] == [topic]

    async def test_a_topic_that_is_not_in_memory_is_told_too(self, follower, create, broker):
        topic = await create("/plant:t")
        await follower.poll()
        assert broker.topics.cached_id(topic) is None
        await broker.catalog.submit(SetLogStart(items=[LogStart(topic, 0, 0)]))
        assert (await follower.poll(wait_ms=5_000))["topics"] == [topic]

    async def test_a_partition_that_was_rolled_is_told_by_who_leads_it_now(self, follower, create, append, call):
        topic = await create("/plant:t")
        await append("/plant:t", b"a")
        await follower.poll()
        await call("roll", topic="/plant:t")
        assert (await follower.poll())["partitions"] == [[topic, 0, 1]]

    async def test_committed_offsets_committed_and_deleted(self, follower, create, broker):
        topic = await create("/plant:t", 2)
        await follower.poll()
        items = [CommittedOffset(topic, 1, 5, -1, "m")]
        await broker.catalog.submit(CommitOffsets(group="g", generation=-1, member_id="", items=items, now=7))
        assert (await follower.poll(wait_ms=5_000))["cursors"] == [["g", topic, 1]]
        await broker.catalog.submit(DeleteOffsets(group="g", items=[(topic, 1)]))
        assert (await follower.poll(wait_ms=5_000))["cursors"] == [["g", topic, 1]]
        await broker.catalog.submit(DeleteGroups(groups=["g"]))
        assert (await follower.poll(wait_ms=5_000))["cursors"] == [["g", b"", -1]]

    async def test_a_stream_that_is_deleted_ends_the_wait(self, follower, raw_call, call):
        since = follower.since
        asked = {"version": 1, "stream": STREAM, "since": since, "wait_ms": 5_000}
        waiting = asyncio.create_task(raw_call("link.changes", asked))
        await asyncio.sleep(0)
        await call("stream.delete", path=STREAM)
        assert (await waiting)["error"] == Code.UNKNOWN_TOPIC_OR_PARTITION
        await call("stream.create", path=STREAM)
        assert (await follower.poll())["reset"]


class TestResets:
    async def test_a_place_of_another_run_or_from_the_future(self, follower):
        run, serial = follower.since
        for since in (["0" * 32, serial], [run, serial + 1], [run, -1]):
            follower.since = since
            assert (await follower.poll(wait_ms=5_000))["reset"]

    async def test_a_node_that_begins_to_lead_a_container_tells_those_who_wait(self, follower, broker):
        waiting = asyncio.create_task(follower.poll(wait_ms=5_000))
        await asyncio.sleep(0)
        container = next(iter(broker.containers.values()))
        broker._led.discard(container)
        broker.container_led(container)
        assert (await waiting)["reset"]
        assert nothing(await follower.poll())

    async def test_another_replicas_catalog(self, follower, broker):
        run = follower.since[0]
        broker.changes.applied([(Replaced(0), None)])
        answer = await follower.poll()
        assert answer["reset"]
        assert answer["run"] != run

    async def test_whoever_stayed_away_while_nothing_was_noted(self, follower, create, append, broker, monkeypatch):
        await create("/plant:t")
        await follower.poll()
        monkeypatch.setattr(change_feed, "SUBSCRIBED_S", 0.0)
        broker.changes._expire()
        assert not broker.changes.wanted
        await append("/plant:t", b"a")
        assert (await follower.poll())["reset"]
        assert broker.changes.wanted

    async def test_one_who_waits_subscribes(self, follower, broker, monkeypatch):
        waiting = asyncio.create_task(follower.poll(wait_ms=300))
        await asyncio.sleep(0)
        monkeypatch.setattr(change_feed, "SUBSCRIBED_S", 0.0)
        broker.changes._expire()
        assert nothing(await waiting)

    async def test_whoever_lags_behind_what_is_kept(self, call, follower, create, broker, monkeypatch):
        monkeypatch.setattr(change_feed, "MAX_CHANGES", 4)
        behind = Follower(call)
        await behind.poll()
        for number in range(9):
            await create(f"/plant:t{number}")
            assert not (await follower.poll())["reset"]
            assert broker.changes._held <= 4
        assert (await behind.poll())["reset"]

    @pytest.mark.parametrize("seed", range(4))
    async def test_no_record_is_missed_among_appends_polls_losses_and_restarts(
        self, call, stream, create, append, broker, monkeypatch, seed
    ):
        monkeypatch.setattr(change_feed, "MAX_CHANGES", 12)
        monkeypatch.setattr(change_feed, "MAX_NOTED", 5)
        rng = random.Random(seed)
        topic = await create("/plant:t", 16)
        ends = dict.fromkeys(range(16), 0)
        (held,) = await broker.topics.resolve_ids([topic])
        over = False
        told_without_reset = []

        async def write():
            for _ in range(300):
                partition = rng.randrange(16) if rng.random() < 0.7 else 0
                ends[partition] = await append("/plant:t", b"x", partition=partition)
                if rng.random() < 0.02:
                    broker.changes.restart()
                if rng.random() < 0.05:
                    await asyncio.sleep(0.006)

        async def follow(follower, pause):
            known = dict.fromkeys(range(16), -1)
            while True:
                ended = over
                answer = await follower.poll(wait_ms=rng.choice([0, 5, 20]), limit=rng.choice([1, 3, 100]))
                if answer["reset"]:
                    known = {index: (await broker.partitions.leader(held, index)).high_watermark for index in known}
                for topic_id, index, end in answer["partitions"]:
                    assert topic_id == topic
                    known[index] = max(known[index], end)
                told_without_reset.append(bool(answer["partitions"]))
                if ended and nothing(answer):
                    return known
                if rng.random() < pause:
                    await asyncio.sleep(0.02)

        followers = [Follower(call), Follower(call, topics=False), Follower(call)]
        following = [
            asyncio.create_task(follow(each, pause)) for each, pause in zip(followers, (0, 0.3, 1), strict=True)
        ]
        await write()
        over = True
        for known in await asyncio.gather(*following):
            assert known == ends
        assert all(each.resets > 1 for each in followers)
        assert any(told_without_reset), "hints were told, and not by resets alone"


class TestConnections:
    """Over a socket."""

    @pytest.fixture
    async def asking(self, broker):
        """Sends a call over a new connection; returns the connection's reader and writer."""

        async def asked(method, **params):
            reader, writer = await asyncio.open_connection(broker.node.host, broker.node.port)
            header = request_header(ApiKey.HEADRACE_ADMIN, 0, 1, "link")
            body = header + encode_admin_request(method, params)
            writer.write(len(body).to_bytes(4, "big") + body)
            await writer.drain()
            return reader, writer

        return asked

    @staticmethod
    async def answer(reader):
        raw = memoryview(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
        _, start = read_response_header(raw, ApiKey.HEADRACE_ADMIN, 0)
        return msgspec.msgpack.decode(raw[start:])

    @staticmethod
    async def waits(broker, count):
        async with asyncio.timeout(10):
            while broker.changes._waiters != count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def test_one_that_goes_away_leaves_nothing_behind(self, asking, follower, broker):
        _, writer = await asking("link.changes", version=1, stream=STREAM, since=follower.since, wait_ms=5_000)
        await self.waits(broker, 1)
        writer.transport.abort()
        await self.waits(broker, 0)
        (subscribed,) = broker.changes._by_path.values()
        assert not subscribed.waiting

    async def test_a_node_that_stops_answers_those_who_wait(self, asking, follower, node):
        reader, _ = await asking("link.changes", version=1, stream=STREAM, since=follower.since, wait_ms=30_000)
        await self.waits(node.parts, 1)
        began = time.monotonic()
        stopping = asyncio.create_task(node.stop())
        assert (await self.answer(reader))["error"] == 0
        await stopping
        assert time.monotonic() - began < 20

    async def test_a_wait_holds_up_no_other_connection(self, asking, follower, broker):
        _, held = await asking("link.changes", version=1, stream=STREAM, since=follower.since, wait_ms=5_000)
        await self.waits(broker, 1)
        reader, _ = await asking("link.hello", version=1, stream=STREAM)
        assert (await self.answer(reader))["result"]["problem"] is None
        assert broker.changes._waiters == 1
        held.close()


class TestCursors:
    @pytest.fixture
    async def committed(self, stream, create, broker):
        """Committed offsets of three groups on two topics of the stream, and on one of another; returns the topics'
        ids."""
        topics = [await create("/plant:a", 3), await create("/plant:b"), await create("other")]
        for group in ("g1", "g2", "g3"):
            items = [CommittedOffset(topics[0], index, 10 + index, -1, group) for index in range(3)]
            items += [CommittedOffset(topics[1], 0, 7, -1), CommittedOffset(topics[2], 0, 8, -1)]
            await broker.catalog.submit(CommitOffsets(group=group, generation=-1, member_id="", items=items, now=5))
        return topics

    async def test_all_of_a_stream_in_pages(self, call, committed):
        a, b, _ = committed
        found, after = [], None
        for _ in range(9):
            page = await call("link.cursors", after=after, limit=2)
            found += page["cursors"]
            after = page["after"]
            if after is None:
                break
        assert after is None
        wanted = [
            row
            for group in ("g1", "g2", "g3")
            for row in [*([group, a, index, 10 + index, group, 5] for index in range(3)), [group, b, 0, 7, "", 5]]
        ]
        assert found == wanted

    async def test_those_asked_for_and_not_those_that_are_not_there(self, call, committed):
        a, b, other = committed
        keys = [["g2", a, 1], ["g2", a, 99], ["g1", b, 0], ["none", a, 0], ["g3", other, 0], ["g1", bytes(16), 0]]
        page = await call("link.cursors", keys=keys)
        assert sorted(page["cursors"]) == [["g1", b, 0, 7, "", 5], ["g2", a, 1, 11, "g2", 5]]
        assert page["after"] is None

    async def test_all_of_a_group(self, call, committed):
        page = await call("link.cursors", keys=[["g2", b"", -1]])
        assert [row[:3] for row in page["cursors"]] == [["g2", committed[0], n] for n in range(3)] + [
            ["g2", committed[1], 0]
        ]

    async def test_a_page_goes_on_where_its_topic_was_deleted_meanwhile(self, call, committed, ask):
        page = await call("link.cursors", limit=1)
        assert page["after"] == ["g1", committed[0], 0]
        await ask(ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "/plant:a", "topic_id": None}], "timeout_ms": 5_000})
        page = await call("link.cursors", after=page["after"])
        assert [row[0] for row in page["cursors"]] == ["g1", "g2", "g3"]


def test_the_longest_wait_is_shorter_than_a_subscription():
    assert source_apis.MAX_WAIT_MS / 1000 < change_feed.SUBSCRIBED_S / 2


def test_whoever_waited_until_a_millisecond_finds_that_it_has_come() -> None:
    rounded_down = [ms for ms in range(2_000_000) if int(ms / 1000 * 1000) < ms]
    assert rounded_down  # a wait until such a time would spin until the next millisecond
    assert all(int((ms / 1000 + ROUNDED_S) * 1000) >= ms for ms in rounded_down)
