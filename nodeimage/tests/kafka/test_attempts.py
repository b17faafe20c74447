"""Attempts without permission: each by its name, with its result. Nothing of the other tenant changes."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream
from headrace.node.parts import NodeParts
from headrace.partitions.topics import Topic
from headrace.security.access_rules import Kind, Permission
from headrace.wire import fetch as wire
from headrace.wire.api_keys import ApiKey
from headrace.wire.batch import TRANSACTIONAL_BIT, build_batch, stamp_max_timestamp
from kit.access import AuditTold, User, codes_of, put, secure
from kit.group_calls import SUBSCRIPTION, alone

TOPIC_29, GROUP_30, CLUSTER_31, ID_53 = (
    Code.TOPIC_AUTHORIZATION_FAILED,
    Code.GROUP_AUTHORIZATION_FAILED,
    Code.CLUSTER_AUTHORIZATION_FAILED,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
NO_ID = Code.UNKNOWN_TOPIC_ID
SECRETS, ALIAS, BARE = "/rival:secrets", "rival..secrets", "secrets"


class World:
    """Alice's stream /acme and bob's /rival, with a group of bob's and a topic of bob's in the default stream."""

    def __init__(self, parts: NodeParts) -> None:
        self.parts = parts
        self.alice, self.bob, self.root = User(parts, "alice"), User(parts, "bob"), User(parts, "root")
        self.guest = User(parts)
        self.near = User(parts, "alice", default_stream="/rival")
        """Alice, at a listener where bare names are those of bob's stream."""
        self.secret_id = b""
        self.audit = AuditTold(parts)
        self.member = ""

    async def begin(self) -> None:
        for path in ("/acme", "/rival"):
            await self.parts.catalog.submit(CreateStream(path=path, policy=StreamPolicy(), now=Millis(1)))
        made = await self.parts.topics.resolve(["/acme:orders", SECRETS, "/default:private"], create=True)
        assert isinstance(made[1], Topic)
        self.secret_id = made[1].topic_id
        every = [
            (Kind.STREAM, "/acme", "u:alice"),
            (Kind.STREAM, "/rival", "u:bob"),
            (Kind.GROUP_PREFIX, "rival-", "u:bob"),
        ]
        await put(
            self.parts,
            {
                (Kind.CLUSTER, "", Permission.ADMIN): "u:root",
                (Kind.TRANSACTIONAL_ID_PREFIX, "rival-", Permission.PRODUCE): "u:bob",
                (Kind.TOPIC, "/default:private", Permission.PRODUCE): "u:bob",
                **{(kind, name, permission): who for kind, name, who in every for permission in Permission},
            },
        )
        await secure(self.parts)
        assert (await self.bob.produce(SECRETS))[SECRETS].error == 0
        self.member = (await alone(self.bob.ask, "rival-app")).member_id
        assert (await self.commit(self.bob, "rival-app", SECRETS, member=self.member)) == [0]

    async def intact(self) -> None:
        """Check that nothing of bob's has changed."""
        (topic,) = await self.parts.topics.resolve([SECRETS])
        assert isinstance(topic, Topic)
        assert (topic.topic_id, topic.partition_count, topic.configs) == (self.secret_id, 1, {})
        partition = await self.parts.partitions.leader(topic, 0)
        assert (partition.log_start, partition.high_watermark) == (0, 1)
        (group,) = (await self.bob.ask(ApiKey.DESCRIBE_GROUPS, groups=["rival-app"])).groups
        assert [each.member_id for each in group.members] == [self.member]
        assert await self.committed(self.bob, "rival-app", SECRETS) == [(0, 1)]
        listed = await self.root.metadata(None)
        assert {each.name for each in listed.topics} == {"/acme:orders", SECRETS, "private"}

    # --- what clients ask, and the codes that they get

    async def produce(self, user: User, *topics: str, **more: Any) -> list[int]:
        results = await user.produce(*topics, **more)
        return [results[each].error for each in topics]

    async def list_offsets(self, user: User, topic: str, timestamp: int = -1) -> list[tuple[int, int]]:
        part = {"partition_index": 0, "timestamp": timestamp}
        answer = await user.ask(ApiKey.LIST_OFFSETS, 6, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
        return [(each.error_code, each.offset) for each in answer.topics[0].partitions]

    async def epoch_end(self, user: User, topic: str, **more: Any) -> list[tuple[int, int]]:
        asked = [{"topic": topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}]
        answer = await user.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, topics=asked, **more)
        return [(each.error_code, each.end_offset) for each in answer.topics[0].partitions]

    async def commit(self, user: User, group: str, topic: str, *, member: str = "") -> list[int]:
        part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
        answer = await user.ask(
            ApiKey.OFFSET_COMMIT,
            group_id=group,
            generation_id_or_member_epoch=1 if member else -1,
            member_id=member,
            topics=[{"name": topic, "partitions": [part]}],
        )
        return [each.error_code for each in answer.topics[0].partitions]

    async def committed(self, user: User, group: str, topic: str | None) -> Any:
        topics = None if topic is None else [{"name": topic, "partition_indexes": [0]}]
        answer = await user.ask(ApiKey.OFFSET_FETCH, groups=[{"group_id": group, "topics": topics}])
        (found,) = answer.groups
        if found.error_code:
            return found.error_code
        if topic is None:
            return [each.name for each in found.topics]
        return [(each.error_code, each.committed_offset) for each in found.topics[0].partitions]

    async def create(self, user: User, name: str, **more: Any) -> tuple[int, bytes]:
        topic = {"name": name, "num_partitions": 1, "replication_factor": -1}
        answer = await user.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout=1000, **more)
        return answer.topics[0].error_code, answer.topics[0].topic_id.bytes if answer.topics[0].topic_id else b""

    async def delete(self, user: User, **topic: Any) -> tuple[int, str | None]:
        answer = await user.ask(ApiKey.DELETE_TOPICS, topics=[topic], timeout=1000)
        return answer.responses[0].error_code, answer.responses[0].name

    async def configs(self, user: User, key: ApiKey, kind: int, name: str) -> int:
        described = key is ApiKey.DESCRIBE_CONFIGS
        config: dict[str, Any] = {"name": "retention.ms", "value": "1", "config_operation": 0}
        resource = {"resource_type": kind, "resource_name": name} | ({} if described else {"configs": [config]})
        answer = await user.ask(key, resources=[resource])
        (result,) = answer.results if described else answer.responses
        return int(result.error_code)

    async def metadata(self, user: User, topic: str | bytes, **more: Any) -> tuple[int, str | None, bytes, int]:
        (found,) = (await user.metadata([topic], **more)).topics
        return found.error, found.name, found.topic_id, len(found.partitions)


class Attempt(NamedTuple):
    """An attempt, by its name, and its expected result."""

    name: str
    makes: Callable[[World], Awaitable[Any]]
    gets: Any
    is_audited: bool = True


def batch_with(attributes: int) -> bytearray:
    """A batch of one uncompressed record, whatever its attributes say."""
    now = int(time.time() * 1000)
    batch = bytearray(build_batch([(now, None, b"x", [])]))
    batch[22] |= attributes
    stamp_max_timestamp(batch, now)  # recomputes the checksum
    return batch


GZIP: Final = 1
"""Decompressing such a batch would find it corrupt."""


async def cut_off(world: World) -> bool:
    """The connection ends, since a request with acks=0 has no answer."""
    slot = world.alice.start_produce(SECRETS, acks=0)
    async with asyncio.timeout(20):
        return await slot.future is None


async def goes_on_with_bobs_session(world: World) -> tuple[int, list[int]]:
    begun = await world.bob.fetch(SECRETS, session=(0, 0))
    assert begun.session_id
    stolen = await world.alice.fetch(session=(begun.session_id, 1))
    return stolen.error, codes_of(stolen)


async def goes_on_where_names_are_others(world: World) -> tuple[int, list[int]]:
    """Continue a fetch session, in which `secrets` is a topic of alice's, at a listener where that name is a topic of
    bob's."""
    own = User(world.parts, "alice", default_stream="/acme")
    await world.create(own, BARE)
    begun = await own.fetch(BARE, session=(0, 0))
    assert codes_of(begun) == [0]
    moved = await world.near.fetch(session=(begun.session_id, 1), offset=0)
    assert await world.delete(own, name=BARE) == (0, BARE)
    return moved.error, codes_of(moved)


async def rolls_by_bare_name(world: World) -> int:
    try:
        await world.parts.admin.call("roll", {"topic": BARE}, world.near.connection)
    except KafkaError as error:
        return error.code
    return 0


async def ends_bobs_session(world: World) -> int:
    begun = await world.bob.fetch(SECRETS, session=(0, 0))
    await world.alice.fetch(session=(begun.session_id, -1))
    return (await world.bob.fetch(session=(begun.session_id, 1))).error


async def adds_to_an_own_session(world: World) -> list[int]:
    begun = await world.alice.fetch("/acme:orders", session=(0, 0))
    return await world.alice.fetch_codes(SECRETS, session=(begun.session_id, 1))


async def waits_until_it_may_no_longer(world: World) -> list[int]:
    waits = world.alice.start_fetch("/acme:orders", wait_ms=300_000)
    await put(world.parts, {(Kind.STREAM, "/acme", each): "u:bob" for each in Permission})
    return codes_of(wire.decode_response(await waits.body(), 0, 12))


async def waits_in_a_group_until_it_may_no_longer(world: World) -> tuple[int, int]:
    """The answer would reveal all members of the group to its leader."""
    slow = {
        "rebalance_timeout": 1_000,
        "session_timeout": 30_000,
        "protocol_type": "consumer",
        "group_instance_id": None,
    }
    slow |= {"group_id": "acme-app", "protocols": [{"name": "range", "metadata": SUBSCRIPTION}]}
    first = await world.alice.ask(ApiKey.JOIN_GROUP, **slow, member_id="")
    first = await world.alice.ask(ApiKey.JOIN_GROUP, **slow, member_id=first.member_id)
    assert (first.error_code, len(first.members)) == (0, 1)
    other = await world.alice.ask(ApiKey.JOIN_GROUP, **slow, member_id="")
    waits = asyncio.ensure_future(world.alice.ask(ApiKey.JOIN_GROUP, **slow, member_id=other.member_id))
    async with asyncio.timeout(20):
        while await state_of(world, "acme-app") != "PreparingRebalance":  # noqa: ASYNC110
            await asyncio.sleep(0)
    await put(world.parts, {(Kind.STREAM, "/acme", each): "u:bob" for each in Permission})
    answer = await waits
    return answer.error_code, len(answer.members)


async def state_of(world: World, group: str) -> str:
    (found,) = (await world.root.ask(ApiKey.DESCRIBE_GROUPS, groups=[group])).groups
    return str(found.group_state)


async def spelt(world: World, *names: str) -> dict[str, tuple[int, int]]:
    """The error, and the number of partitions in the answer."""
    found = (await world.alice.metadata(list(names), create=True)).topics
    return {str(each.name): (each.error, len(each.partitions)) for each in found}


async def makes_where_it_only_reads(world: World) -> tuple[int, str | None, bytes, int]:
    await put(world.parts, {(Kind.STREAM, "/rival", Permission.CONSUME): "u:alice | u:bob"})
    return await world.metadata(world.alice, "/rival:new", create=True)


async def lists_groups(world: World) -> list[str]:
    return [each.group_id for each in (await world.alice.ask(ApiKey.LIST_GROUPS)).groups]


async def leaves_for_bobs_member(world: World) -> int:
    members = [{"member_id": world.member, "group_instance_id": None}]
    return int((await world.alice.ask(ApiKey.LEAVE_GROUP, group_id="rival-app", members=members)).error_code)


async def describes(world: World, group: str) -> tuple[int, str, int]:
    (found,) = (await world.alice.ask(ApiKey.DESCRIBE_GROUPS, groups=[group])).groups
    return found.error_code, found.group_state, len(found.members)


async def finds(user: User, key_type: int, key: str) -> tuple[int, int]:
    (found,) = (await user.ask(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=[key])).coordinators
    return found.error_code, found.node_id


async def code(answer: Awaitable[Any]) -> int:
    return int((await answer).error_code)


async def joins(world: World, group: str, *, instance: str | None = None) -> int:
    return await code(
        world.alice.ask(
            ApiKey.JOIN_GROUP,
            group_id=group,
            session_timeout=30_000,
            rebalance_timeout=60_000,
            member_id="",
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": SUBSCRIPTION}],
        )
    )


async def first_code(answer: Awaitable[Any], *path: str) -> int:
    level = await answer
    for name in path:
        level = getattr(level, name)[0]
    return int(level.error_code)


def in_group(world: World, **more: Any) -> dict[str, Any]:
    return {"group_id": "rival-app", "member_id": world.member, "generation_id": 1, **more}


ALTER, INCREMENT, DESCRIBE = ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.DESCRIBE_CONFIGS
HIDDEN = b"\0" * 16
RANDOM = uuid.UUID(int=7).bytes
PARTS = [{"partition_index": 0}]
ODD_SPELLINGS: Final = (
    "/rival//secrets",
    "/rival//:secrets",
    "//rival:secrets",
    "/rival:secrets/",
    "/rival/../rival:secrets",
    "/rival:secrets\0",
    " /rival:secrets",
    "/rival:secrets ",
    "/rival::secrets",
    "/rival:\uff53ecrets",
    "/rival:secrets\u200b",
    "/rival:sec\u0072ets\u0301",
    "rival..secrets..",
    "..rival..secrets",
    "",
)

ATTEMPTS = [
    # Produce
    Attempt("writes to a topic of another tenant", lambda w: w.produce(w.alice, SECRETS), [TOPIC_29]),
    Attempt("writes to it by its alias", lambda w: w.produce(w.alice, ALIAS), [TOPIC_29]),
    Attempt("writes to it without having proved anything", lambda w: w.produce(w.guest, SECRETS), [TOPIC_29]),
    Attempt("writes to a topic of the default stream, by its bare name", lambda w: w.produce(w.alice, "private"), [29]),
    Attempt("writes to it by the full name", lambda w: w.produce(w.alice, "/default:private"), [29]),
    Attempt("writes to a topic that is not there, to hear so", lambda w: w.produce(w.alice, "/rival:none"), [29]),
    Attempt(
        "hides a topic of another tenant among its own",
        lambda w: w.produce(w.alice, SECRETS, "/acme:orders"),
        [TOPIC_29, 0],
    ),
    Attempt("writes with acks=0, so that nobody answers", cut_off, True),
    Attempt(
        "writes with the transactional id of another tenant",
        lambda w: w.produce(w.alice, "/acme:orders", transactional_id="rival-1"),
        [ID_53],
    ),
    Attempt(
        "writes records of a transaction without naming one",
        lambda w: w.produce(w.alice, "/acme:orders", batch=batch_with(TRANSACTIONAL_BIT)),
        [ID_53],
        is_audited=False,  # refused because of the batch, whoever sends it
    ),
    Attempt(
        "has the node unpack a batch that it may not write",
        lambda w: w.produce(w.alice, SECRETS, batch=batch_with(GZIP)),
        [TOPIC_29],
    ),
    Attempt("writes with acks that there are not, to hear more", lambda w: w.produce(w.alice, SECRETS, acks=7), [29]),
    # Fetch
    Attempt("reads a topic of another tenant", lambda w: w.alice.fetch_codes(SECRETS), [TOPIC_29]),
    Attempt("reads it by its alias", lambda w: w.alice.fetch_codes(ALIAS), [TOPIC_29]),
    Attempt("reads it without having proved anything", lambda w: w.guest.fetch_codes(SECRETS), [TOPIC_29]),
    Attempt("fetches by topic id a topic of another tenant", lambda w: w.alice.fetch_codes(w.secret_id), [NO_ID]),
    Attempt("fetches by an id that nothing has", lambda w: w.alice.fetch_codes(RANDOM), [NO_ID], is_audited=False),
    Attempt("reads a topic that is not there, to hear so", lambda w: w.alice.fetch_codes("/rival:none"), [TOPIC_29]),
    Attempt(
        "reads as a replica, which sees what is not committed",
        lambda w: w.alice.fetch_codes("/acme:orders", replica_id=2, version=11),
        [TOPIC_29],
    ),
    Attempt(
        "reads as a replica, by the tag of newer versions",
        lambda w: w.alice.fetch_codes(w.secret_id, replica_id=2),
        [TOPIC_29],
    ),
    Attempt(
        "reads as a replica, being an administrator",
        lambda w: w.root.fetch_codes(SECRETS, replica_id=2, version=12),
        [TOPIC_29],
    ),
    Attempt(
        "continues the fetch session of another user",
        goes_on_with_bobs_session,
        (Code.FETCH_SESSION_ID_NOT_FOUND, []),
        is_audited=False,  # like a session that does not exist
    ),
    Attempt("ends the fetch session of another user", ends_bobs_session, 0, is_audited=False),
    Attempt("adds a topic of another tenant to an own session", adds_to_an_own_session, [TOPIC_29]),
    Attempt("waits for records that it may no longer read by then", waits_until_it_may_no_longer, [TOPIC_29]),
    Attempt(
        "waits in a group until it may no longer be a member",
        waits_in_a_group_until_it_may_no_longer,
        (GROUP_30, 0),
    ),
    # offsets
    Attempt("asks for the end of a topic", lambda w: w.list_offsets(w.alice, SECRETS), [(TOPIC_29, -1)]),
    Attempt("asks for its end by its alias", lambda w: w.list_offsets(w.alice, ALIAS), [(TOPIC_29, -1)]),
    Attempt("has a topic searched by time", lambda w: w.list_offsets(w.alice, SECRETS, 1), [(TOPIC_29, -1)]),
    Attempt("asks for the end of one that is not there", lambda w: w.list_offsets(w.alice, "/rival:x"), [(29, -1)]),
    Attempt("asks for the end of an epoch", lambda w: w.epoch_end(w.alice, SECRETS), [(TOPIC_29, -1)]),
    Attempt(
        "asks for the end of an epoch as a replica",
        lambda w: w.epoch_end(w.alice, SECRETS, replica_id=2),
        [(TOPIC_29, -1)],
    ),
    # Metadata
    Attempt("looks a topic up", lambda w: w.metadata(w.alice, SECRETS), (TOPIC_29, SECRETS, HIDDEN, 0)),
    Attempt("looks it up by its alias", lambda w: w.metadata(w.alice, ALIAS), (TOPIC_29, ALIAS, HIDDEN, 0)),
    Attempt(
        "looks it up by other letters",
        lambda w: spelt(w, "/rival:Secrets", "/Rival:secrets", "Rival..secrets", "/default:rival..secrets"),
        dict.fromkeys(("/rival:Secrets", "/Rival:secrets", "Rival..secrets"), (29, 0))
        | {"/default:rival..secrets": (17, 0)},
    ),
    Attempt(
        "looks it up by spellings that no topic has",
        lambda w: spelt(w, *ODD_SPELLINGS),
        dict.fromkeys(ODD_SPELLINGS, (17, 0)),
        is_audited=False,  # the requests name nothing
    ),
    Attempt(
        "looks up one that is not there",
        lambda w: w.metadata(w.alice, "/rival:none"),
        (TOPIC_29, "/rival:none", HIDDEN, 0),
    ),
    Attempt("looks a topic up by its id", lambda w: id_looked_up(w, w.secret_id), (NO_ID, None, 0)),
    Attempt("looks up an id that nothing has", lambda w: id_looked_up(w, RANDOM), (NO_ID, None, 0), is_audited=False),
    Attempt(
        "lists all topics",
        lambda w: names_listed(w.alice),
        ["/acme:orders"],
        is_audited=False,  # a list leaves topics out silently
    ),
    Attempt("lists all topics without having proved anything", lambda w: names_listed(w.guest), [], is_audited=False),
    Attempt(
        "makes a topic by asking for it",
        lambda w: w.metadata(w.alice, "/rival:new", create=True),
        (TOPIC_29, "/rival:new", HIDDEN, 0),
    ),
    Attempt(
        "makes a topic by asking for it where it may only read",
        makes_where_it_only_reads,
        (TOPIC_29, "/rival:new", HIDDEN, 0),
    ),
    # at a listener whose default stream is another tenant's
    Attempt("writes to it by its bare name", lambda w: w.produce(w.near, BARE), [TOPIC_29]),
    Attempt("reads it by its bare name", lambda w: w.near.fetch_codes(BARE), [TOPIC_29]),
    Attempt("asks for its end by its bare name", lambda w: w.list_offsets(w.near, BARE), [(TOPIC_29, -1)]),
    Attempt("looks it up by its bare name", lambda w: w.metadata(w.near, BARE), (TOPIC_29, BARE, HIDDEN, 0)),
    Attempt(
        "makes a topic by asking for its bare name",
        lambda w: w.metadata(w.near, "new", create=True),
        (TOPIC_29, "new", HIDDEN, 0),
    ),
    Attempt("makes one by a bare name", lambda w: w.create(w.near, "new"), (29, b"")),
    Attempt("deletes it by its bare name", lambda w: w.delete(w.near, name=BARE), (TOPIC_29, BARE)),
    Attempt("reads its configs by its bare name", lambda w: w.configs(w.near, DESCRIBE, 2, BARE), TOPIC_29),
    Attempt("alters its configs by its bare name", lambda w: w.configs(w.near, INCREMENT, 2, BARE), TOPIC_29),
    Attempt("commits for it by its bare name", lambda w: w.commit(w.near, "mine", BARE), [29]),
    Attempt("asks for what was committed, by its bare name", lambda w: w.committed(w.near, "mine", BARE), [(29, -1)]),
    Attempt(
        "continues a fetch session where its bare names mean others' topics",
        goes_on_where_names_are_others,
        (Code.FETCH_SESSION_ID_NOT_FOUND, []),
        is_audited=False,  # like a session that does not exist
    ),
    Attempt("rolls it by its bare name, by the admin API", rolls_by_bare_name, TOPIC_29),
    # groups
    Attempt("finds the coordinator of a group of another tenant", lambda w: finds(w.alice, 0, "rival-app"), (30, -1)),
    Attempt("joins the group of another tenant", lambda w: joins(w, "rival-app"), GROUP_30),
    Attempt("joins it as an instance that keeps its place", lambda w: joins(w, "rival-app", instance="i"), GROUP_30),
    Attempt("makes a group by a name of another tenant", lambda w: joins(w, "rival-new"), GROUP_30),
    Attempt(
        "fetches the assignment of a member of another tenant",
        lambda w: code(
            w.alice.ask(
                ApiKey.SYNC_GROUP, **in_group(w, protocol_type="consumer", protocol_name="range", assignments=[])
            )
        ),
        GROUP_30,
    ),
    Attempt(
        "keeps a member of another tenant alive",
        lambda w: code(w.alice.ask(ApiKey.HEARTBEAT, **in_group(w))),
        GROUP_30,
    ),
    Attempt("has a member of another tenant leave", leaves_for_bobs_member, GROUP_30),
    Attempt("commits for the group of another tenant", lambda w: w.commit(w.alice, "rival-app", "/acme:orders"), [30]),
    Attempt("commits in an own group for a topic of another", lambda w: w.commit(w.alice, "mine", SECRETS), [29]),
    Attempt("commits for a topic that is not there", lambda w: w.commit(w.alice, "mine", "/rival:none"), [29]),
    Attempt("reads what another group has committed", lambda w: w.committed(w.alice, "rival-app", SECRETS), GROUP_30),
    Attempt("reads all that another group has committed", lambda w: w.committed(w.alice, "rival-app", None), GROUP_30),
    Attempt(
        "reads through an own group what was committed for a topic of another",
        lambda w: w.committed(w.alice, "mine", SECRETS),
        [(TOPIC_29, -1)],
    ),
    Attempt(
        "deletes what another group has committed",
        lambda w: code(
            w.alice.ask(
                ApiKey.OFFSET_DELETE, group_id="rival-app", topics=[{"name": "/acme:orders", "partitions": PARTS}]
            )
        ),
        GROUP_30,
    ),
    Attempt(
        "deletes the group of another tenant",
        lambda w: first_code(w.alice.ask(ApiKey.DELETE_GROUPS, groups_names=["rival-app"]), "results"),
        GROUP_30,
    ),
    Attempt("describes the group of another tenant", lambda w: describes(w, "rival-app"), (GROUP_30, "", 0)),
    Attempt("describes a group that is not there", lambda w: describes(w, "rival-none"), (GROUP_30, "", 0)),
    Attempt("lists all groups", lists_groups, [], is_audited=False),
    # producers and transactions
    Attempt(
        "gets a producer id, having nothing to write to",
        lambda w: code(w.guest.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None)),
        CLUSTER_31,
    ),
    Attempt(
        "begins with the transactional id of another tenant",
        lambda w: code(w.alice.ask(ApiKey.INIT_PRODUCER_ID, transactional_id="rival-1")),
        ID_53,
        is_audited=False,  # refused to everybody
    ),
    Attempt("finds the coordinator of a transactional id", lambda w: finds(w.alice, 1, "rival-1"), (ID_53, -1)),
    Attempt(
        "describes a transaction of another tenant",
        lambda w: first_code(
            w.alice.ask(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["rival-1"]), "transaction_states"
        ),
        ID_53,
    ),
    Attempt(
        "lists who produces to a topic",
        lambda w: first_code(
            w.alice.ask(ApiKey.DESCRIBE_PRODUCERS, topics=[{"name": SECRETS, "partition_indexes": [0]}]),
            "topics",
            "partitions",
        ),
        TOPIC_29,
    ),
    # topics
    Attempt("makes a topic in the stream of another tenant", lambda w: w.create(w.alice, "/rival:new"), (29, b"")),
    Attempt("makes one by an alias", lambda w: w.create(w.alice, "rival..new"), (29, b"")),
    Attempt("tries whether one could be made", lambda w: w.create(w.alice, "/rival:n", validate_only=True), (29, b"")),
    Attempt("makes one that is there, to hear so", lambda w: w.create(w.alice, SECRETS), (29, b"")),
    Attempt("makes one in a stream that is not there", lambda w: w.create(w.alice, "/none:new"), (29, b"")),
    Attempt("deletes a topic of another tenant", lambda w: w.delete(w.alice, name=SECRETS), (TOPIC_29, SECRETS)),
    Attempt("deletes it by its alias", lambda w: w.delete(w.alice, name=ALIAS), (TOPIC_29, ALIAS)),
    Attempt(
        "deletes it by its id",
        lambda w: w.delete(w.alice, name=None, topic_id=uuid.UUID(bytes=w.secret_id)),
        (NO_ID, None),
    ),
    Attempt(
        "deletes an id that nothing has",
        lambda w: w.delete(w.alice, name=None, topic_id=uuid.UUID(bytes=RANDOM)),
        (NO_ID, None),
        is_audited=False,
    ),
    Attempt(
        "gives a topic of another tenant more partitions",
        lambda w: first_code(
            w.alice.ask(ApiKey.CREATE_PARTITIONS, topics=[{"name": SECRETS, "count": 5}], timeout=1000), "results"
        ),
        TOPIC_29,
    ),
    Attempt(
        "deletes records of another tenant",
        lambda w: first_code(
            w.alice.ask(
                ApiKey.DELETE_RECORDS,
                topics=[{"name": SECRETS, "partitions": [{"partition_index": 0, "offset": 1}]}],
                timeout=1000,
            ),
            "topics",
            "partitions",
        ),
        TOPIC_29,
    ),
    # configs
    Attempt("reads configs of a topic", lambda w: w.configs(w.alice, DESCRIBE, 2, SECRETS), TOPIC_29),
    Attempt("reads configs of one that is not there", lambda w: w.configs(w.alice, DESCRIBE, 2, "/rival:x"), TOPIC_29),
    Attempt("shortens the retention of a topic", lambda w: w.configs(w.alice, INCREMENT, 2, SECRETS), TOPIC_29),
    Attempt("replaces the configs of a topic", lambda w: w.configs(w.alice, ALTER, 2, ALIAS), TOPIC_29),
    Attempt("reads the configs of a node", lambda w: w.configs(w.alice, DESCRIBE, 4, "1"), CLUSTER_31),
    Attempt("alters the configs of a node", lambda w: w.configs(w.alice, INCREMENT, 4, "1"), CLUSTER_31),
    Attempt("alters the log levels of a node", lambda w: w.configs(w.alice, INCREMENT, 8, "1"), CLUSTER_31),
    Attempt("reads the configs of a group", lambda w: w.configs(w.alice, DESCRIBE, 32, "rival-app"), GROUP_30),
    Attempt("alters the configs of a group", lambda w: w.configs(w.alice, INCREMENT, 32, "rival-app"), GROUP_30),
    # the cluster
    Attempt(
        "reads from the disks which topics there are",
        lambda w: code(w.alice.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None)),
        CLUSTER_31,
    ),
    Attempt(
        "moves a partition elsewhere",
        lambda w: code(
            w.alice.ask(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                timeout=1000,
                topics=[{"name": SECRETS, "partitions": [{"partition_index": 0, "replicas": [9]}]}],
            )
        ),
        CLUSTER_31,
    ),
    Attempt(
        "elects another leader, uncleanly",
        lambda w: code(
            w.alice.ask(
                ApiKey.ELECT_LEADERS,
                election_type=1,
                topic_partitions=[{"topic": SECRETS, "partitions": [0]}],
                timeout=1000,
            )
        ),
        CLUSTER_31,
    ),
    Attempt(
        "raises the feature level, which never falls again",
        lambda w: code(
            w.alice.ask(
                ApiKey.UPDATE_FEATURES,
                timeout=1000,
                feature_updates=[{"feature": "headrace.version", "max_version_level": 2, "upgrade_type": 1}],
                validate_only=False,
            )
        ),
        CLUSTER_31,
    ),
]


async def names_listed(user: User) -> list[str | None]:
    return [each.name for each in (await user.metadata(None)).topics]


async def id_looked_up(world: World, topic_id: bytes) -> tuple[int, str | None, int]:
    error, name, told, partitions = await world.metadata(world.alice, topic_id)
    assert told == topic_id, "as it was asked"
    return error, name, partitions


@pytest.fixture
async def world(broker: NodeParts) -> AsyncIterator[World]:
    given = World(broker)
    await given.begin()
    return given


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_somebody_who_may_not(world: World, attempt: Attempt) -> None:
    world.audit.events.clear()
    assert await attempt.makes(world) == attempt.gets
    assert bool(world.audit.events) == attempt.is_audited
    for told in world.audit.events:
        assert told["user"] in ("alice", "ANONYMOUS", "root")
        assert told["allowed"] is False
    await world.intact()


def test_each_attempt_has_a_name_of_its_own() -> None:
    names = [attempt.name for attempt in ATTEMPTS]
    assert len(set(names)) == len(names) >= 60


async def test_whose_topics_they_are_may_do_all_of_it(world: World) -> None:
    """Bob's successful requests show that alice's are refused because of the user."""
    bob, name = world.bob, "/rival:more"
    assert await world.produce(bob, ALIAS) == [0]
    assert await bob.fetch_codes(world.secret_id) == [0]
    assert (await world.list_offsets(bob, SECRETS)) == [(0, 2)]
    assert (await world.metadata(bob, name, create=True))[0] == 0
    assert sorted(map(str, await names_listed(bob))) == [name, SECRETS, "private"]
    assert (await world.create(bob, "/rival:other"))[0] == 0
    assert await world.delete(bob, name="rival..other") == (0, "rival..other")
    assert await world.configs(bob, INCREMENT, 2, SECRETS) == 0
    assert await world.configs(bob, DESCRIBE, 2, SECRETS) == 0
    assert await world.committed(bob, "rival-app", None) == [SECRETS]
    assert (await bob.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None)).error_code == 0
    assert await finds(bob, 0, "rival-app") == (0, world.parts.node.node_id)
    assert not isinstance((await world.parts.topics.resolve([name]))[0], KafkaError)
