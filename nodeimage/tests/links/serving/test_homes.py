"""Topics, states of partitions, homes that move: a link's calls to its source, through bytes, on a real node."""

import asyncio
import uuid

import msgspec
import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home
from headrace.catalog.chains import RollDone, Rolled, RollIntent, RollTarget
from headrace.catalog.committed_offsets import CommittedOffset, CopyOffsets
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import DeleteLink, PutLink
from headrace.catalog.topics import CreateTopics, NewTopic
from headrace.kafka.connection import Connection
from headrace.links.failover.home_apply import HomeApplier
from headrace.links.serving import homes, topics
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.api_keys import ApiKey

STREAM = "/plant"
THERE = "cluster-there"
BOOTSTRAP = ["there:9092"]


@pytest.fixture
def raw_call(broker):
    async def called(method, params=None):
        body = encode_admin_request(method, params or {})
        return msgspec.msgpack.decode(await broker.admin.handle(body, Connection(broker)))

    return called


@pytest.fixture
def call(raw_call):
    async def called(method, **params):
        if method.startswith("link."):
            params = {"version": 1} | ({} if method == "link.meet" else {"stream": STREAM}) | params
        if method == "home.cede":
            params = {"version": 1} | params
        answer = await raw_call(method, params)
        assert answer["error"] == 0, answer["message"]
        return answer["result"]

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


@pytest.fixture
def unsettled(monkeypatch):
    """Keep pending homes pending: the node applies none during the test."""

    async def nothing(home_applier, wanted):
        pass

    monkeypatch.setattr(HomeApplier, "_apply_home", nothing)


@pytest.fixture
def set_home(broker):
    async def done(topic_id, counter, cluster, lists=None):
        (code,) = await broker.catalog.submit(SetHome(items=[HomeChange(topic_id, counter, cluster, lists)]))
        assert code is Code.NONE

    return done


@pytest.fixture
async def copy(broker, stream):
    """A topic whose home is elsewhere, with two partitions, the second with a history."""
    topic_id = uuid.uuid4().bytes
    ((container, epoch),) = broker.placement.place(1, "default")
    made = NewTopic(
        stream=STREAM,
        name="copy",
        topic_id=topic_id,
        partitions=2,
        configs={"retention.ms": "5"},
        container_ids=[container] * 2,
        container_epochs=[epoch] * 2,
        home=(3, THERE),
        origin="cluster-first",
        histories=[(1, 1, "cluster-second", 10), (1, 3, THERE, 20)],
    )
    (outcome,) = await broker.catalog.submit(CreateTopics(items=[made], now=1))
    assert outcome.code is Code.NONE
    return topic_id


class TestTopics:
    async def test_what_a_topic_is_and_who_leads_it(self, call, stream, create, broker):
        topic = await create("/plant:t", 2)
        page = await call("link.topics")
        own = broker.node.cluster_id
        shown = {"name": "t", "topic_id": topic, "partitions": 2, "configs": {}, "home": [0, own], "origin": own}
        assert page == {"topics": [shown | {"leaders": [broker.node.node_id] * 2}], "after": None}

    async def test_a_copy_has_its_home_and_origin(self, call, copy):
        (shown,) = (await call("link.topics"))["topics"]
        assert (shown["home"], shown["origin"], shown["configs"]) == (
            [3, THERE],
            "cluster-first",
            {"retention.ms": "5"},
        )

    async def test_pages_by_name(self, call, stream, create):
        for name in "abcde":
            await create(f"/plant:{name}")
        await create("other")
        names, after = [], None
        for _ in range(9):
            page = await call("link.topics", after=after, limit=2)
            names.append([row["name"] for row in page["topics"]])
            after = page["after"]
            if after is None:
                break
        assert names == [["a", "b"], ["c", "d"], ["e"]]

    async def test_a_page_ends_where_partitions_are_many(self, call, stream, create, monkeypatch):
        monkeypatch.setattr(topics, "MAX_PARTITIONS", 4)
        for name, partitions in (("a", 2), ("b", 2), ("c", 7), ("d", 1)):
            await create(f"/plant:{name}", partitions)
        first = await call("link.topics")
        assert ([row["name"] for row in first["topics"]], first["after"]) == (["a", "b"], "b")
        second = await call("link.topics", after="b")
        assert ([row["name"] for row in second["topics"]], second["after"]) == (["c"], "c")

    async def test_by_id_those_that_are_there(self, call, stream, create):
        a, _, other = await create("/plant:a"), await create("/plant:b"), await create("other")
        page = await call("link.topics", ids=[a, bytes(16), other, a])
        assert ([row["topic_id"] for row in page["topics"]], page["after"]) == ([a], None)

    async def test_too_many_partitions_by_id(self, raw_call, stream, create, monkeypatch):
        monkeypatch.setattr(topics, "MAX_PARTITIONS_BY_ID", 3)
        ids = [await create("/plant:a", 2), await create("/plant:b", 2)]
        answer = await raw_call("link.topics", {"version": 1, "stream": STREAM, "ids": ids})
        assert answer["error"] == Code.INVALID_REQUEST
        assert "fewer" in answer["message"]


class TestMeet:
    async def test_where_partitions_stand_many_in_one_call(self, call, stream, create, append, broker):
        topic = await create("/plant:t", 300)
        await append("/plant:t", b"a", b"b", partition=7)
        met = (await call("link.meet", partitions=[[topic, index] for index in range(300)]))["partitions"]
        own = broker.node.cluster_id
        assert len(met) == 300
        assert met[7]["high_watermark"] == 2
        (held,) = await broker.topics.resolve_ids([topic])
        assert met[0] == {
            "error": 0,
            "message": None,
            "leader_epoch": held.partitions[0].leader_epoch,
            "home": [0, own],
            "origin": own,
            "history": [],
            "log_start": 0,
            "high_watermark": 0,
            "empty_from": 0,
        }

    async def test_each_has_an_error_of_its_own(self, call, stream, create, broker):
        topic = await create("/plant:t")
        asked = [[topic, 0], [topic, 1], [bytes(16), 0], [topic, 0]]
        met = (await call("link.meet", partitions=asked))["partitions"]
        wanted = [0, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, 0]
        assert [each["error"] for each in met] == wanted
        assert "no partition 1" in met[1]["message"]

    async def test_a_copy_has_its_history(self, call, copy):
        met = (await call("link.meet", partitions=[[copy, 0], [copy, 1]]))["partitions"]
        assert [each["error"] for each in met] == [0, 0]
        assert met[0]["history"] == []
        assert met[1]["history"] == [[1, "cluster-second", 10], [3, THERE, 20]]
        assert {(*each["home"], each["origin"]) for each in met} == {(3, THERE, "cluster-first")}

    async def test_what_is_not_settled_for_its_home_is_not_met(self, call, stream, create, set_home, unsettled):
        topic = await create("/plant:t")
        await set_home(topic, 1, THERE)
        (met,) = (await call("link.meet", partitions=[[topic, 0]]))["partitions"]
        assert met["error"] == Code.LEADER_NOT_AVAILABLE
        assert "has not been rolled for its new home" in met["message"]

    async def test_a_roll_that_the_catalog_has_and_the_partition_not_yet(
        self, call, stream, create, append, broker, monkeypatch
    ):
        topic = await create("/plant:t")
        await append("/plant:t", b"a")
        read = topics.read_homes

        def later(reader, ids):
            homes = read(reader, ids)
            return homes._replace(opened={place: id_ + 1 for place, id_ in homes.opened.items()})

        monkeypatch.setattr(topics, "read_homes", later)
        (met,) = (await call("link.meet", partitions=[[topic, 0]]))["partitions"]
        assert met["error"] == Code.LEADER_NOT_AVAILABLE
        monkeypatch.undo()
        before = (await call("link.meet", partitions=[[topic, 0]]))["partitions"][0]["leader_epoch"]
        await call("roll", topic="/plant:t")
        (met,) = (await call("link.meet", partitions=[[topic, 0]]))["partitions"]
        assert (met["error"], met["high_watermark"]) == (0, 1)
        assert met["leader_epoch"] > before


class TestFeed:
    async def test_homes_and_copied_committed_offsets_are_told(self, call, copy, create, set_home, broker):
        topic = await create("/plant:t")

        async def poll(since):
            answer = await call("link.changes", since=since, topics=True, cursors=True, wait_ms=2_000)
            return answer, [answer["run"], answer["serial"]]

        _, since = await poll(None)
        await set_home(topic, 1, THERE)
        answer, since = await poll(since)
        assert answer["topics"] == [topic]
        items = [CommittedOffset(copy, 1, 5, -1)]
        await broker.catalog.submit(CopyOffsets(group="g", items=items, now=3, cluster=broker.node.cluster_id))
        answer, since = await poll(since)
        assert answer["cursors"] == [["g", copy, 1]]


@pytest.mark.usefixtures("unsettled")
class TestAnnounce:
    @pytest.fixture
    def announce(self, call, broker):
        async def done(*items, **params):
            params = {"cluster": THERE, "bootstrap": BOOTSTRAP} | params
            return (await call("link.announce", items=list(items), **params))["items"]

        return done

    @pytest.fixture
    def topic_row(self, broker):
        async def looked_up(topic_id):
            return await broker.catalog.query(lambda reader: reader.topics.by_id(topic_id))

        return looked_up

    @pytest.fixture
    def links(self, broker):
        async def looked_up():
            return await broker.catalog.query(lambda reader: reader.links.all())

        return looked_up

    async def test_a_higher_home_is_taken_note_of_and_followed(
        self, announce, stream, create, broker, topic_row, links
    ):
        topic, own = await create("/plant:t", 2), broker.node.cluster_id
        lists = {0: [[1, THERE, 4]], 1: [[1, THERE, 0]]}
        assert await announce([topic, [1, THERE], own, lists]) == [{"error": 0, "message": None}]
        row = await topic_row(topic)
        assert (row.home, row.origin) == (Home(1, THERE), "")
        pending = await broker.catalog.query(lambda reader: reader.homes.pending([row.number]))
        assert pending[row.number] == {0: [(1, THERE, 4)], 1: [(1, THERE, 0)]}
        (link,) = await links()
        assert (link.name, link.stream) == (f"back-{THERE}", STREAM)
        assert (link.config.source, link.config.source_stream) == (BOOTSTRAP, STREAM)
        assert (link.config.topics, link.config.source_cluster) == (["t"], THERE)

    async def test_a_topic_that_has_grown_there_is_followed_too(
        self, announce, stream, create, broker, topic_row, links
    ):
        topic, own = await create("/plant:t"), broker.node.cluster_id
        lists = {0: [[1, THERE, 4]], 1: [[1, THERE, 0]]}
        assert await announce([topic, [1, THERE], own, lists]) == [{"error": 0, "message": None}]
        row = await topic_row(topic)
        assert (row.home, row.partitions) == (Home(1, THERE), 2), "whoever asks here hears of all that the home has"
        pending = await broker.catalog.query(lambda reader: reader.homes.pending([row.number]))
        assert pending[row.number] == {0: [(1, THERE, 4)], 1: [(1, THERE, 0)]}
        assert await announce([topic, [2, THERE], own, {1: [[2, THERE, 0]], 7: [[2, THERE, 0]]}]) == [
            {"error": 0, "message": None}
        ]
        assert (await topic_row(topic)).partitions == 2, "not by what it says of some alone"
        assert len(await links()) == 1

    async def test_partitions_that_a_home_here_lacked_began_with_it(
        self, announce, stream, create, set_home, broker, topic_row
    ):
        topic, own = await create("/plant:t"), broker.node.cluster_id
        await set_home(topic, 1, own)
        lists = {0: [[1, own, 0], [2, THERE, 4]], 1: [[2, THERE, 3]]}
        assert await announce([topic, [2, THERE], own, lists]) == [{"error": 0, "message": None}]
        row = await topic_row(topic)
        histories = await broker.catalog.query(lambda reader: reader.homes.histories([row.number]))
        assert histories[row.number, 1] == [(1, own, 0)], "as copies have it that had them when they heard of it"

    async def test_a_home_here_that_was_not_known_is_followed_until_it_is_whole(
        self, announce, stream, create, set_home, broker, links
    ):
        topic, own = await create("/plant:t"), broker.node.cluster_id
        await set_home(topic, 1, THERE)
        item = [topic, [2, own], own, {0: [[1, THERE, 4], [2, own, 9]]}]
        assert await announce(item) == [{"error": 0, "message": None}]
        (link,) = await links()
        assert (link.config.topics, link.config.source_cluster) == (["t"], THERE)
        await broker.catalog.submit(DeleteLink(name=link.name))
        assert await announce(item) == [{"error": 0, "message": None}]
        assert await links() == [], "no news"

    async def test_told_again_nothing_changes(self, announce, stream, create, broker, links):
        topic = await create("/plant:t")
        for _ in range(2):
            (answer,) = await announce([topic, [1, THERE], broker.node.cluster_id, {}], source_stream="/elsewhere")
            assert answer["error"] == 0
        (link,) = await links()
        assert link.config.source_stream == "/elsewhere"

    async def test_the_link_takes_up_more_topics_and_in_the_end_the_stream(
        self, announce, stream, create, broker, links, monkeypatch
    ):
        monkeypatch.setattr(homes, "MAX_PATTERNS", 2)
        patterns = []
        for name in "abc":
            topic = await create(f"/plant:{name}")
            await announce([topic, [1, THERE], broker.node.cluster_id, {}])
            (link,) = await links()
            patterns.append(link.config.topics)
        assert patterns == [["a"], ["a", "b"], ["*"]]

    async def test_a_link_that_pulls_from_there_already_is_left_as_it_is(self, announce, stream, create, broker, links):
        config = LinkConfig(source=BOOTSTRAP, source_stream=STREAM, topics=["t*"])
        await broker.catalog.submit(PutLink(name="mine", stream=STREAM, config=config, now=1, create=True))
        topic = await create("/plant:t")
        await announce([topic, [1, THERE], broker.node.cluster_id, {}])
        (link,) = await links()
        assert (link.name, link.config) == ("mine", config)

    async def test_a_link_from_there_that_leaves_the_topic_out_does_not_count(
        self, announce, stream, create, broker, links
    ):
        config = LinkConfig(source=BOOTSTRAP, source_stream=STREAM, topics=["x*"])
        await broker.catalog.submit(PutLink(name="mine", stream=STREAM, config=config, now=1, create=True))
        for name in "tu":
            topic = await create(f"/plant:{name}")
            await announce([topic, [1, THERE], broker.node.cluster_id, {}])
        assert {link.name: link.config.topics for link in await links()} == {
            "mine": ["x*"],
            f"back-{THERE}": ["t", "u"],
        }

    async def test_the_links_of_two_streams_have_two_names(self, announce, call, stream, create, broker, links):
        await call("stream.create", path="/b")
        own = broker.node.cluster_id
        for path in (STREAM, "/b"):
            topic = await create(f"{path}:t")
            (answer,) = await announce([topic, [1, THERE], own, {}], stream=path)
            assert answer["error"] == 0
        assert [(link.name, link.stream) for link in await links()] == [
            (f"back-{THERE}", STREAM),
            (f"back-{THERE}-2", "/b"),
        ]

    async def test_without_addresses_no_link_is_made(self, announce, stream, create, broker, links, topic_row):
        topic = await create("/plant:t")
        await announce([topic, [1, THERE], broker.node.cluster_id, {}], bootstrap=[])
        assert await links() == []
        assert (await topic_row(topic)).home == Home(1, THERE)

    async def test_what_is_refused_is_refused_alone(self, announce, stream, create, broker, copy, links, topic_row):
        own = broker.node.cluster_id
        topic, other = await create("/plant:t"), await create("other")
        answers = await announce(
            [bytes(16), [1, THERE], own, {}],
            [other, [1, THERE], own, {}],
            [topic, [1, THERE], "another-origin", {}],
            [topic, [2, THERE], own, {0: [[2, THERE, 5], [1, "x", 7]]}],
            [topic, [2, THERE], own, {0: [[1, "x", 7], [2, THERE, 5]]}],
            [topic, [2, THERE], own, {0: [[3, THERE, 5]]}],
            [copy, [2, "zzz"], "cluster-first", {}],
            [topic, [1, THERE], own, {}],
        )
        assert [each["error"] for each in answers] == [
            Code.UNKNOWN_TOPIC_ID,
            Code.UNKNOWN_TOPIC_ID,
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
            Code.INVALID_REQUEST,
            Code.FENCED_LEADER_EPOCH,
            0,
        ]
        assert all("\n" not in each["message"] for each in answers[:-1])
        assert (await topic_row(topic)).home == Home(1, THERE)
        assert (await topic_row(copy)).home == Home(3, THERE)

    async def test_what_is_refused_altogether_leaves_no_link(self, announce, stream, create, links):
        await announce([await create("/plant:t"), [1, THERE], "another-origin", {}])
        assert await links() == []

    async def test_by_this_cluster_itself(self, raw_call, stream, broker):
        params = {"version": 1, "stream": STREAM, "items": [], "cluster": broker.node.cluster_id}
        assert (await raw_call("link.announce", params))["error"] == Code.INVALID_REQUEST


class TestCede:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch):
        monkeypatch.setattr(homes, "APPLY_WAIT_S", 0.2)

    @pytest.fixture
    async def applying(self, broker):
        """Records the rolls for topics' homes during a test, as the nodes that lead the partitions do."""

        async def apply_home(row, opened):
            (topic,) = await broker.topics.resolve_ids([row.topic_id])
            partition = await broker.partitions.leader(topic, opened.partition)
            target = RollTarget(row.topic_id, opened.partition, opened.id, opened.container)
            (intended,) = await broker.catalog.submit(RollIntent(items=[target], now=1))
            done = Rolled(
                topic_id=row.topic_id,
                partition=opened.partition,
                sealed=opened.id,
                end=partition.high_watermark,
                epochs=[(partition.leader_epoch, 0)],
                opened=intended.partitionlet.id,
                container_epoch=partition.container.epoch,
                home=row.home,
            )
            await broker.catalog.submit(RollDone(items=[done], now=1))

        async def settle_all():
            while True:
                rows = await broker.catalog.query(lambda reader: reader.homes.unsettled())
                for row in rows:
                    opened = await broker.catalog.query(lambda reader, row=row: reader.chains.open_of([row.number]))
                    for each in opened[row.number]:
                        await apply_home(row, each)
                await asyncio.sleep(0.01)

        task = asyncio.create_task(settle_all())
        yield
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def test_a_home_is_given_away_with_where_its_partitions_end(
        self, call, stream, create, append, applying, broker, monkeypatch
    ):
        monkeypatch.setattr(homes, "APPLY_WAIT_S", 10.0)
        topic = await create("/plant:t", 2)
        await append("/plant:t", b"a", b"b", b"c", partition=1)
        for _ in range(2):  # a repeat gets the same answer
            (demoted,) = (await call("home.cede", topic_ids=[topic], to=THERE))["topics"]
            assert demoted == {"error": 0, "message": None, "home": [1, THERE], "ends": [0, 3]}

    async def test_what_is_not_settled_in_time_is_asked_for_again(self, call, stream, create, broker, monkeypatch):
        async def not_yet(home_applier, wanted):
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, "later")

        monkeypatch.setattr(HomeApplier, "_apply_home", not_yet)
        topic = await create("/plant:t")
        (demoted,) = (await call("home.cede", topic_ids=[topic], to=THERE))["topics"]
        assert demoted["error"] == Code.LEADER_NOT_AVAILABLE
        assert "ask again" in demoted["message"]
        row = await broker.catalog.query(lambda reader: reader.topics.by_id(topic))
        assert row.home == Home(1, THERE)

    async def test_what_is_not_at_home_here(self, call, copy):
        missing = bytes(16)
        answers = (await call("home.cede", topic_ids=[copy, missing], to="third"))["topics"]
        assert [each["error"] for each in answers] == [Code.POLICY_VIOLATION, Code.UNKNOWN_TOPIC_ID]
        assert THERE in answers[0]["message"]

    async def test_what_moved_here_and_is_not_settled(self, call, stream, create, set_home, broker):
        topic, own = await create("/plant:t"), broker.node.cluster_id
        await set_home(topic, 5, own)
        (demoted,) = (await call("home.cede", topic_ids=[topic], to=THERE))["topics"]
        assert demoted["error"] == Code.LEADER_NOT_AVAILABLE
        row = await broker.catalog.query(lambda reader: reader.topics.by_id(topic))
        assert row.home == Home(5, own)

    async def test_what_moved_here_and_lacks_records_yet(self, call, copy, set_home, applying, broker):
        own = broker.node.cluster_id
        await set_home(copy, 4, own, {0: [(4, own, 0)], 1: [(1, "cluster-second", 10), (3, THERE, 20), (4, own, 30)]})
        async with asyncio.timeout(10):
            while await broker.catalog.query(lambda reader: reader.homes.unsettled()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (demoted,) = (await call("home.cede", topic_ids=[copy], to=THERE))["topics"]
        assert demoted["error"] == Code.LEADER_NOT_AVAILABLE
        assert "not complete" in demoted["message"]
        row = await broker.catalog.query(lambda reader: reader.topics.by_id(copy))
        assert row.home == Home(4, own)

    async def test_to_itself(self, raw_call, broker):
        answer = await raw_call("home.cede", {"version": 1, "topic_ids": [], "to": broker.node.cluster_id})
        assert answer["error"] == Code.INVALID_REQUEST


class TestBadInput:
    @pytest.mark.parametrize(
        ("method", "params", "says"),
        [
            ("link.topics", {"limit": 0}, "limit"),
            ("link.topics", {"ids": [b"short"]}, "ids"),
            ("link.topics", {"ids": [bytes(16)] * 10_001}, "ids"),
            ("link.topics", {"after": "x" * 250}, "after"),
            ("link.topics", {"stream": "plant"}, "plant"),
            ("link.meet", {"partitions": [[bytes(16), -1]]}, "partitions"),
            ("link.meet", {"partitions": [[bytes(15), 0]]}, "partitions"),
            ("link.meet", {"partitions": [[bytes(16), 0]] * 10_001}, "partitions"),
            ("link.announce", {"items": [[bytes(16), [0, "c"], "o", {}]], "cluster": "c"}, "items"),
            ("link.announce", {"items": [[bytes(16), [1, ""], "o", {}]], "cluster": "c"}, "items"),
            ("link.announce", {"items": [[bytes(16), [1, "c"], "o", {-1: []}]], "cluster": "c"}, "items"),
            ("link.announce", {"items": [[bytes(16), [1, "c"], "o", {0: [[1, "c", -1]]}]], "cluster": "c"}, "items"),
            ("link.announce", {"items": [], "cluster": "c d"}, "cluster"),
            ("link.announce", {"items": [], "cluster": "c", "bootstrap": ["nowhere"]}, "bootstrap"),
            ("link.announce", {"items": [], "cluster": "c", "bootstrap": ["x\n:1"]}, "bootstrap"),
            ("link.announce", {"items": [], "cluster": "c", "source_stream": "a b"}, "a b"),
            ("home.cede", {"topic_ids": [b""], "to": "c"}, "topic_ids"),
            ("home.cede", {"topic_ids": [], "to": "c/d"}, "to"),
        ],
    )
    async def test_bad_parameters_are_named(self, raw_call, method, params, says):
        head = {"version": 1} | ({} if method in ("link.meet", "home.cede") else {"stream": STREAM})
        answer = await raw_call(method, head | params)
        assert answer["error"] in (Code.INVALID_REQUEST, Code.INVALID_TOPIC_EXCEPTION)
        assert says in answer["message"]

    @pytest.mark.parametrize(
        ("method", "params"),
        [
            ("link.topics", {"stream": STREAM}),
            ("link.meet", {"partitions": []}),
            ("link.announce", {"stream": STREAM, "items": [], "cluster": "c"}),
            ("home.cede", {"topic_ids": [], "to": "c"}),
        ],
    )
    async def test_another_version(self, raw_call, method, params):
        answer = await raw_call(method, {"version": 0} | params)
        assert answer["error"] == Code.UNSUPPORTED_VERSION

    async def test_a_stream_that_is_not_there(self, raw_call):
        answer = await raw_call("link.topics", {"version": 1, "stream": STREAM})
        assert answer["error"] == Code.UNKNOWN_TOPIC_OR_PARTITION
