"""Batches of a source are appended whole, at their offsets, or refused."""

import pytest

from headrace.links.pull import append
from headrace.links.pull.limits import Limits
from headrace.node.parts import NodeParts
from headrace.wire.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from kit.played_source import PlayedSource
from kit.pulled_records import ID, leader
from kit.pulling import Copies, Pulling, copy, until


async def test_a_corrupt_batch_is_refused_with_all_behind_it_and_tried_again(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    (other,) = source.topic("u", bytes(16))
    await copy(target, "t", [at])
    await copy(target, "u", [other])
    for value in (b"a", b"b", b"c"):
        source.produce(at, value)
    source.produce(other, b"well")
    good = source.partitions[at].batches[1][1]
    bad = bytearray(good)
    bad[-1] ^= 1
    source.partitions[at].batches[1] = (1, bad)
    puller = pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: puller.state.pulls.all.get(at) and puller.state.pulls.all[at].failures >= 3)
    await until(lambda: copies.end(at) == 1)  # nothing after the corrupt batch is appended
    assert "CRC" in puller.state.pulls.all[at].reason
    await until(lambda: copies.end(other) == 1)  # other partitions continue
    source.partitions[at].batches[1] = (1, good)
    await until(lambda: copies.end(at) == 3)
    assert [record.value for record in await copies.records(at)] == [b"a", b"b", b"c"]


async def test_a_batch_that_is_too_long_to_be_replicated_is_refused(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "MAX_BATCH_BYTES", 1_000)
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    source.produce(at, bytes(1_000))
    puller = pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: puller.state.pulls.all.get(at) and puller.state.pulls.all[at].failures >= 2)
    assert "at most 1000 are accepted" in puller.state.pulls.all[at].reason
    await until(lambda: copies.end(at) == 1)


@pytest.mark.parametrize("delta", [-1, 1 << 30])
async def test_offsets_that_cannot_be_are_refused(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies, delta: int
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    base = (1 << 62) if delta > 0 else -5
    source.partitions[at].batches[0][1][:8] = base.to_bytes(8, "big", signed=True)
    puller = pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: puller.state.pulls.all.get(at) and puller.state.pulls.all[at].failures >= 2)
    assert copies.end(at) == 0


async def test_batches_of_committed_transactions_are_copied_and_markers_refused(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a", pid=5, bits=TRANSACTIONAL_BIT)
    source.produce(at, b"b", pid=5, bits=TRANSACTIONAL_BIT | CONTROL_BIT)
    puller = pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: puller.state.pulls.all.get(at) and puller.state.pulls.all[at].failures >= 2)
    await until(lambda: copies.end(at) == 1)
    assert "control batch" in puller.state.pulls.all[at].reason


async def test_an_answer_with_bytes_that_are_no_batch_is_refused(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    source.partitions[at].batches[0] = (0, bytearray(b"\xff" * 100))
    puller = pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: puller.state.pulls.all.get(at) and puller.state.pulls.all[at].failures >= 2)
    assert copies.end(at) == 0
    assert puller.state.fetching.budget.held == 0


async def test_the_producers_state_comes_with_the_batches(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a", b"b", pid=7)
    pull(source)
    await until(lambda: copies.end(at) == 2)
    partition = await leader(target, at)
    assert partition.producers.next_sequence(producer_id=7, epoch=0) == 2


async def test_a_full_disk_here_blocks_with_its_reason_and_goes_on_when_there_is_room(
    target: NodeParts, source: PlayedSource, pull: Pulling, copies: Copies
) -> None:
    (at,) = source.topic("t", ID)
    await copy(target, "t", [at])
    source.produce(at, b"a")
    container = (await leader(target, at)).container
    container.refuses = "the disk is full"
    puller = pull(source, limits=Limits(first_pause_s=0.02))
    await until(lambda: at in puller.state.pulls.all and puller.state.pulls.all[at].failures >= 2)
    assert puller.state.pulls.all[at].reason == "the disk is full"
    assert puller.state.fetching.budget.held == 0
    assert copies.end(at) == 0
    container.refuses = ""
    await until(lambda: copies.end(at) == 1)
