"""The catalogs of several nodes: each applies its own replica's log, and submits through the node that leads."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.base.ids import Position
from headrace.catalog.catalog import Catalog, CatalogFailed
from headrace.catalog.chains import SetLogStart
from headrace.catalog.commands import encode
from headrace.catalog.reader import Reader
from headrace.catalog.streams import DeleteStream
from headrace.catalog.topics import DeleteTopics
from headrace.tables import command_apply, submission
from kit.catalog import NOW, MemoryLog, paths, stream, topics, until


class Nodes:
    """Nodes with a replica each. The first one leads; the others learn of its commits when `spread` is called, or at
    once if `prompt`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs: list[MemoryLog] = []
        self.catalogs: list[Catalog] = []
        self.leader: int | None = 0
        self.prompt = True
        self.routed = 0
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        self.after_answer: Exception | None = None

    async def add(self) -> Catalog:
        log = MemoryLog(leads=not self.logs)
        log.on_committed(self._committed)
        self.logs.append(log)
        folder = self.folder / str(len(self.logs))
        self.catalogs.append(await Catalog.open(folder, log, route=self.route))
        return self.catalogs[-1]

    async def route(self, payload: bytes) -> Position:
        self.routed += 1
        if self.leader is None:
            raise KafkaError(Code.LEADER_NOT_AVAILABLE, "nobody leads")
        position = await self.catalogs[self.leader].append(payload)
        if self.before_answer is not None:
            await self.before_answer()
        if self.after_answer is not None:
            error, self.after_answer = self.after_answer, None
            raise error
        return position

    def spread(self) -> None:
        if self.leader is not None:
            for log in self.logs:
                if log is not self.logs[self.leader]:
                    log.follow(self.logs[self.leader])

    def elect(self, index: int) -> None:
        """Let another node lead and commit everything in its replica."""
        self.leader = index
        log = self.logs[index]
        log.leads, log.held = True, False
        log.commit()
        self.spread()

    async def close(self) -> None:
        for catalog in self.catalogs:
            await catalog.close()

    def _committed(self) -> None:
        if self.prompt and self.leader is not None and self.logs[self.leader].committed:
            self.spread()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    nodes = Nodes(tmp_path)
    for _ in range(3):
        await nodes.add()
    yield nodes
    await nodes.close()


async def test_every_node_applies_what_any_node_submitted(nodes: Nodes) -> None:
    heard: list[list[str]] = [[], [], []]
    for index, catalog in enumerate(nodes.catalogs):
        catalog.on_applied(lambda batch, index=index: heard[index].extend(command.path for command, _ in batch))  # type: ignore[misc]
    await nodes.catalogs[0].submit(stream("/a"))
    await nodes.catalogs[1].submit(stream("/b"))
    assert await paths(nodes.catalogs[1]) == ["/a", "/b"], "a submitter sees its own command"
    for catalog in nodes.catalogs:
        await catalog.wait_applied(nodes.logs[0].end)
        assert await paths(catalog) == ["/a", "/b"]
    assert heard == [["/a", "/b"]] * 3


async def test_an_outcome_reaches_a_submitter_that_learns_its_position_first(nodes: Nodes) -> None:
    nodes.prompt = False
    submitting = asyncio.create_task(nodes.catalogs[1].submit(stream("/a")))
    await until(lambda: nodes.logs[0].committed > 0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not submitting.done(), "its node has not applied it"
    nodes.spread()
    assert (await submitting).changed


async def test_an_outcome_waits_for_a_submitter_that_learns_its_position_later(nodes: Nodes) -> None:
    may_answer = asyncio.Event()

    async def hold() -> None:
        await may_answer.wait()

    nodes.before_answer = hold
    submitting = asyncio.create_task(nodes.catalogs[1].submit(stream("/a")))
    await until(lambda: nodes.catalogs[1].applied > 0)
    nodes.before_answer = None
    for index in range(50):
        await nodes.catalogs[0].submit(stream(f"/b{index}"))
    await nodes.catalogs[1].wait_applied(nodes.logs[0].end)
    may_answer.set()
    assert (await submitting).stream.number == 1


async def test_of_equal_commands_from_two_nodes_each_gets_its_own_outcome(nodes: Nodes) -> None:
    outcomes = await asyncio.gather(*(catalog.submit(stream("/same")) for catalog in nodes.catalogs))
    assert sorted(outcome.changed for outcome in outcomes) == [False, False, True]


async def test_listeners_get_the_very_command_that_was_submitted_here(nodes: Nodes) -> None:
    heard: list[Any] = []
    nodes.catalogs[0].on_applied(lambda batch: heard.extend(command for command, _ in batch))
    command = SetLogStart([])
    await nodes.catalogs[0].submit(command)
    assert heard[0] is command


async def test_a_command_that_the_leader_lost_is_submitted_to_the_next(nodes: Nodes) -> None:
    await nodes.catalogs[0].submit(stream("/s"))
    nodes.logs[0].held = True
    submitting = asyncio.create_task(nodes.catalogs[0].submit(stream("/lost")))
    await until(lambda: len(nodes.logs[0].frames) == 2)
    nodes.logs[0].step_down()
    nodes.elect(1)  # a node that has nothing of the command
    assert (await submitting).changed
    for catalog in nodes.catalogs:
        await catalog.wait_applied(nodes.logs[1].end)
        assert await paths(catalog) == ["/lost", "/s"]


async def survive_and_repeat(nodes: Nodes, command: Any) -> Any:
    """The old leader does not know that the command is in the next one's log, so it is submitted once more."""
    nodes.logs[0].held = True
    written = len(nodes.logs[0].frames)
    submitting = asyncio.create_task(nodes.catalogs[0].submit(command))
    await until(lambda: len(nodes.logs[0].frames) == written + 1)
    nodes.logs[1].follow(nodes.logs[0])
    nodes.logs[0].step_down()
    nodes.elect(1)
    outcome = await submitting
    payloads = [payload for _, payload in nodes.logs[1].frames]
    assert payloads.count(encode(command)) == 2
    return outcome


async def test_a_repeated_creation_of_topics_is_a_success_with_the_same_rows(nodes: Nodes) -> None:
    await nodes.catalogs[0].submit(stream("/s"))
    outcomes = await survive_and_repeat(nodes, topics(3))
    assert [each.code for each in outcomes] == [Code.NONE] * 3
    assert await nodes.catalogs[2].query(lambda reader: reader.streams.totals()) == (1, 3, 3)


async def test_a_repeated_deletion_is_a_success_with_what_the_first_copy_removed(nodes: Nodes) -> None:
    await nodes.catalogs[0].submit(stream("/s"))
    made = await nodes.catalogs[0].submit(topics(2))
    rows = [each.topic for each in made]
    outcomes = await survive_and_repeat(nodes, DeleteTopics([row.topic_id for row in rows if row], NOW))
    assert [(each.code, each.topic) for each in outcomes] == [(Code.NONE, row) for row in rows]


async def test_a_repeated_creation_of_a_stream_says_that_it_was_made(nodes: Nodes) -> None:
    assert (await survive_and_repeat(nodes, stream("/s"))).changed


async def test_an_answer_that_is_lost_on_the_way_is_asked_for_again(nodes: Nodes) -> None:
    nodes.after_answer = ConnectionResetError("gone")
    assert (await nodes.catalogs[1].submit(stream("/a"))).changed
    assert nodes.routed == 2
    assert await paths(nodes.catalogs[1]) == ["/a"]


async def test_here_means_never_by_way_of_another_node(nodes: Nodes) -> None:
    assert (await nodes.catalogs[0].submit(stream("/a"), here=True)).changed
    with pytest.raises(KafkaError) as caught:
        await nodes.catalogs[1].submit(stream("/b"), here=True)
    assert caught.value.code is Code.NOT_COORDINATOR
    nodes.logs[0].held = True
    submitting = asyncio.create_task(nodes.catalogs[0].submit(stream("/c"), here=True))
    await until(lambda: len(nodes.logs[0].frames) == 2)
    nodes.logs[0].step_down()
    nodes.elect(1)
    with pytest.raises(KafkaError) as lost:
        await submitting
    assert lost.value.code is Code.NOT_COORDINATOR
    assert nodes.routed == 0


async def test_here_means_without_a_repeat_even_where_the_node_leads_again_at_once(nodes: Nodes) -> None:
    nodes.logs[0].held = True
    submitting = asyncio.create_task(nodes.catalogs[0].submit(stream("/a"), here=True))
    await until(lambda: len(nodes.logs[0].frames) == 1)
    nodes.logs[0].step_down()
    nodes.elect(0)
    with pytest.raises(KafkaError) as caught:
        await submitting
    assert caught.value.code is Code.NOT_COORDINATOR
    assert len(nodes.logs[0].frames) == 1


async def test_while_nobody_leads_submitters_wait_and_do_not_spin(nodes: Nodes) -> None:
    nodes.logs[0].step_down()
    nodes.leader = None
    submitting = asyncio.create_task(nodes.catalogs[1].submit(stream("/a")))
    done, _ = await asyncio.wait([submitting], timeout=0.5)
    assert not done
    assert 2 <= nodes.routed <= 8
    nodes.elect(2)
    assert (await submitting).changed


async def test_a_node_that_comes_to_lead_while_it_submits_appends_itself(nodes: Nodes) -> None:
    nodes.logs[0].step_down()
    nodes.leader = None
    submitting = asyncio.create_task(nodes.catalogs[1].submit(stream("/a")))
    await until(lambda: nodes.routed > 0)
    nodes.elect(1)
    routed = nodes.routed
    assert (await submitting).changed
    assert nodes.routed == routed


@pytest.mark.parametrize("hangs", [False, True])
async def test_after_the_limit_a_submitter_hears_what_happened(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(submission, "LIMIT_S", 0.2)
    nodes.logs[0].held = hangs
    if not hangs:
        nodes.logs[0].step_down()
        nodes.leader = None
    with pytest.raises(KafkaError, match=r"not committed.*may still happen.*0\.2 s") as caught:
        await nodes.catalogs[1].submit(stream("/a"))
    assert caught.value.code is Code.REQUEST_TIMED_OUT
    assert ("nobody leads" in str(caught.value)) is not hangs


async def test_a_leader_that_cannot_commit_says_so_after_the_limit(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "LIMIT_S", 0.1)
    nodes.logs[0].held = True
    with pytest.raises(KafkaError, match="not committed") as caught:
        await nodes.catalogs[0].submit(stream("/a"))
    assert caught.value.code is Code.REQUEST_TIMED_OUT
    nodes.logs[0].commit()
    await nodes.catalogs[0].wait_applied(nodes.logs[0].end)
    assert await paths(nodes.catalogs[0]) == ["/a"], "it may still happen"


async def test_a_replica_that_lags_says_after_the_limit_that_the_command_is_committed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "LIMIT_S", 0.1)
    nodes.prompt = False
    with pytest.raises(KafkaError, match=r"is committed at .*has not applied it") as caught:
        await nodes.catalogs[1].submit(stream("/a"))
    assert caught.value.code is Code.REQUEST_TIMED_OUT


async def test_what_another_attempt_cannot_help_is_raised_at_once(tmp_path: Path) -> None:
    refusals: list[Exception] = [KafkaError(Code.KAFKA_STORAGE_ERROR, "no room there"), StorageFull("none here")]
    tried = 0

    async def route(payload: bytes) -> Position:
        nonlocal tried
        tried += 1
        raise refusals[tried - 1]

    catalog = await Catalog.open(tmp_path, MemoryLog(leads=False), route=route)
    for refusal in refusals:
        with pytest.raises(type(refusal), match="no"):
            await catalog.submit(stream("/a"))
    assert tried == 2
    await catalog.close()


async def test_a_refusal_at_the_other_node_is_raised_as_it_was_decided(nodes: Nodes) -> None:
    outcomes = await nodes.catalogs[1].submit(topics(1, path="/none"))
    assert outcomes[0].code is Code.INVALID_TOPIC_EXCEPTION
    with pytest.raises(KafkaError, match="no stream"):
        await nodes.catalogs[1].submit(DeleteStream("/none", NOW))
    assert nodes.routed == 2


async def test_only_the_leader_takes_commands_of_others_and_only_those_it_can_read(nodes: Nodes) -> None:
    with pytest.raises(KafkaError) as follower:
        await nodes.catalogs[1].append(encode(stream("/a")))
    assert follower.value.code is Code.NOT_CONTROLLER
    with pytest.raises(KafkaError, match="unknown to this version") as unknown:
        await nodes.catalogs[0].append(b"\x81\xa4type\xa4Else")
    assert unknown.value.code is Code.UNSUPPORTED_VERSION
    assert nodes.logs[0].frames == []


async def test_commands_that_are_not_in_memory_are_read_from_the_disk(nodes: Nodes) -> None:
    nodes.prompt = False
    for index in range(3000):
        nodes.logs[0].write(encode(stream(f"/s{index:04}")))
    nodes.logs[0].commit()
    late = nodes.logs[1]
    late.in_memory_from = nodes.logs[0].end
    nodes.spread()
    await nodes.catalogs[1].wait_applied(late.end)
    assert len(await paths(nodes.catalogs[1])) == 3000
    assert 3 <= late.disk_reads <= 4
    await nodes.catalogs[0].submit(stream("/t"))
    nodes.spread()
    await nodes.catalogs[1].wait_applied(late.end)
    assert late.disk_reads <= 4


async def test_a_log_that_cannot_be_read_for_a_moment_is_read_again(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_apply, "_READ_RETRY_S", 0.01)
    nodes.logs[1].in_memory_from = Position(1)
    nodes.logs[1].broken_reads = 3
    assert (await nodes.catalogs[1].submit(stream("/a"))).changed
    assert nodes.logs[1].disk_reads == 4


async def test_a_log_that_stays_unreadable_fails_the_catalog(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_apply, "_READ_RETRY_S", 0.001)
    nodes.logs[1].in_memory_from = Position(1)
    nodes.logs[1].broken_reads = 1000
    with pytest.raises(CatalogFailed, match="file is closed"):
        await nodes.catalogs[1].submit(stream("/a"))
    assert nodes.catalogs[1].failed.done()


async def test_a_log_that_begins_behind_the_tables_fails_the_catalog_where_nobody_brings_a_snapshot(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_apply, "_READ_RETRY_S", 0.001)
    nodes.logs[1].in_memory_from = nodes.logs[1].trimmed = Position(1)
    submitted = asyncio.ensure_future(nodes.catalogs[1].submit(stream("/a")))
    await until(lambda: nodes.logs[1].disk_reads > command_apply._READ_RETRIES)
    assert not nodes.catalogs[1].failed.done(), "it may come yet"
    monkeypatch.setattr(command_apply, "_TRIMMED_S", 0.2)
    with pytest.raises(CatalogFailed, match="trimmed"):
        await submitted
    assert nodes.catalogs[1].failed.done()


async def test_a_start_applies_only_what_is_committed_and_the_rest_once_it_is(tmp_path: Path) -> None:
    log = MemoryLog(leads=False)
    log.write(encode(stream("/a")))
    log.commit()
    log.write(encode(stream("/b")))
    catalog = await Catalog.open(tmp_path, log)
    assert await paths(catalog) == ["/a"]
    assert catalog.applied == log.committed
    log.commit()
    await catalog.wait_applied(log.end)
    assert await paths(catalog) == ["/a", "/b"]
    await catalog.close()
    assert Catalog.applied_in(tmp_path) == log.end


async def test_tables_ahead_of_a_log_that_another_node_leads_wait_for_it(tmp_path: Path) -> None:
    log = MemoryLog(leads=False)
    frames = [log.write(encode(stream(path))) for path in ("/a", "/b", "/c")]
    log.commit()
    await (await Catalog.open(tmp_path, log)).close()
    behind = MemoryLog(leads=False)
    behind.write(encode(stream("/a")))
    catalog = await Catalog.open(tmp_path, behind)
    assert catalog.applied == frames[-1]
    log.write(encode(stream("/d")))
    log.commit()
    behind.follow(log)
    await catalog.wait_applied(log.end)
    assert await paths(catalog) == ["/a", "/b", "/c", "/d"]
    await catalog.close()


async def test_tables_ahead_of_a_log_that_this_node_comes_to_lead_go_on_from_its_end(tmp_path: Path) -> None:
    log = MemoryLog(leads=False)
    for path in ("/a", "/b", "/c"):
        log.write(encode(stream(path)))
    log.commit()
    catalog = await Catalog.open(tmp_path, log)
    await catalog.snapshot()
    await catalog.close()
    shorter = MemoryLog(leads=False)
    shorter.write(encode(stream("/a")))
    catalog = await Catalog.open(tmp_path, shorter)
    shorter.leads = True
    shorter.commit()
    outcomes = await asyncio.gather(*(catalog.submit(stream(path)) for path in ("/b", "/d")))
    assert [outcome.changed for outcome in outcomes] == [False, True]
    assert len(shorter.frames) == 3, "none had to be repeated"
    assert await paths(catalog) == ["/a", "/b", "/c", "/d"]
    await catalog.close()
    catalog = await Catalog.open(tmp_path, shorter)
    assert await paths(catalog) == ["/a", "/b", "/c", "/d"]
    await catalog.close()


async def test_who_waits_for_a_position_hears_of_the_close(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path, MemoryLog())
    waiting = asyncio.create_task(catalog.wait_applied(Position(1000)))
    await asyncio.sleep(0)
    await catalog.close()
    with pytest.raises(CatalogFailed):
        await waiting
    with pytest.raises(CatalogFailed):
        await catalog.wait_applied(Position(1000))


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_to_leaders_all_nodes_agree_and_answers_hold(nodes: Nodes, seed: int) -> None:
    """Random fail-overs under load: every object that was answered exists once, on every node, with its own id."""
    chance = random.Random(seed)
    await nodes.catalogs[0].submit(stream("/s"))
    stop = asyncio.Event()

    async def submitter(catalog: Catalog) -> list[bytes]:
        kept: list[bytes] = []
        while not stop.is_set():
            outcomes = await catalog.submit(topics(chance.randint(1, 3)))
            assert [each.code for each in outcomes] == [Code.NONE] * len(outcomes)
            ids = [each.topic.topic_id for each in outcomes if each.topic is not None]
            if chance.random() < 0.3:
                gone = await catalog.submit(DeleteTopics([ids.pop()], NOW))
                assert gone[0].code is Code.NONE
            kept += ids
            await asyncio.sleep(0)
        return kept

    working = [asyncio.create_task(submitter(catalog)) for catalog in nodes.catalogs for _ in range(2)]
    for _ in range(12):
        old = nodes.leader
        assert old is not None
        nodes.logs[old].held = True
        for _ in range(chance.randint(1, 30)):
            await asyncio.sleep(0)
        new = chance.choice([index for index in range(3) if index != old])
        if chance.random() < 0.5:  # uncommitted commands reached the next leader
            nodes.logs[new].follow(nodes.logs[old])
        nodes.logs[old].step_down()
        nodes.leader = None
        for _ in range(chance.randint(0, 10)):
            await asyncio.sleep(0)
        nodes.elect(new)
        await until(lambda: any(log.committed > 0 for log in nodes.logs))
        await asyncio.sleep(0.03)
    stop.set()
    kept = [topic_id for ids in await asyncio.gather(*working) for topic_id in ids]
    assert nodes.leader is not None
    end = nodes.logs[nodes.leader].end
    for catalog in nodes.catalogs:
        await catalog.wait_applied(end)
    states = [await catalog.query(dump) for catalog in nodes.catalogs]
    assert states[0] == states[1] == states[2]
    assert sorted(row[1] for row in states[0]) == sorted(kept)


def dump(reader: Reader) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in reader.topics.of_all_streams(limit=-1)]
