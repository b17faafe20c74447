"""What a follower appends, what it cuts from its own log, and when it starts over."""

import shutil

import pytest
from structlog.testing import capture_logs

from headrace.base.ids import Position
from headrace.container import follower, follower_feed
from headrace.log.container_log import ContainerLog
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.frames import FrameType
from kit.several_replicas import Several, ended, handed_to, led_by_the_others, until


async def test_what_an_old_leader_alone_had_is_cut(three: Several) -> None:
    """Invariant 7: frames that it wrote but never committed are cut, although its log is longer."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"committed")
    await three.nodes[1].stop()
    await three.nodes[2].stop()
    alone = [container.append_command(f"alone {number}".encode()) for number in range(10)]
    await three.replica(0, container_id).cycle.flush()
    await ended(three.nodes[0], alone)
    second = await led_by_the_others(three, container_id)
    await second.append_command(b"after")
    await three.nodes[0].start()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    for number in range(3):
        assert three.payloads(number, container_id) == [b"committed", b"after"]


async def test_what_a_lost_leader_had_committed_behind_a_followers_end_says_nothing_of_the_next_ones_frames(
    three: Several,
) -> None:
    """Invariant 2: after an unclean recovery, other frames may take their place, which only the new leader may have."""
    container_id = await three.create(replicas=3, min_in_sync=3)
    end = await (await three.led(container_id)).append_command(b"on all")
    behind = three.replica(2, container_id)
    await three.same(container_id, [2], end=end)
    behind.learn_committed(Position(end + (1 << 20)))
    await three.nodes[0].stop()  # it stays in the in-sync set, so nothing is committed any more
    await three.change(container_id, handed_to(1, three))  # type: ignore[arg-type]
    second = await until(lambda: three.nodes[1].replicas.led.get(container_id))
    waiting = second.append_command(b"on two")
    await three.same(container_id, [2], end=second.end)
    assert not waiting.done()
    assert behind.committed == end
    waiting.cancel()


async def test_an_old_leader_begins_anew_where_the_others_dropped_what_parts_them(three: Several) -> None:
    """Invariant 7: the others' log begins within frames that only it wrote, at the end of a frame of the same
    length."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"committed")
    await three.nodes[1].stop()
    await three.nodes[2].stop()
    alone = [container.append_command(b"alone".ljust(64 << 10)) for _ in range(40)]
    await until(lambda: container.end > 40 * (64 << 10) or None)
    await three.replica(0, container_id).cycle.flush()
    await ended(three.nodes[0], alone)
    second = await led_by_the_others(three, container_id)
    for _ in range(20):
        await second.append_command(b"others".ljust(64 << 10))
    for number in (1, 2):
        log = three.replica(number, container_id).log
        await until(lambda log=log: log.chunks_to_close(second.committed) or None)  # type: ignore[misc]
        for chunk in log.chunks_to_close(second.committed):
            log.close_chunk(chunk)
        log.trim(log.end)
    assert 0 < second.log.start < 40 * (64 << 10)
    await three.nodes[0].start()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    assert three.replica(0, container_id).log.start == second.log.start
    assert three.payloads(0, container_id) == three.payloads(1, container_id)
    assert {payload.strip() for payload in three.payloads(0, container_id)} == {b"others"}


async def test_a_gap_that_needs_a_larger_chunk_is_no_full_disk(three: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_feed, "KEPT_BYTES", 0)  # it gets what is on the disk
    monkeypatch.setattr(follower, "FULL_RETRY_S", 1000.0)
    container_id = await three.create(replicas=2, min_in_sync=1)
    container = await three.led(container_id)
    await container.append_command(b"first")
    container.log.close_open_chunk()
    for _ in range(40):
        await container.append_command(b"dropped".ljust(64 << 10))
    container.log.close_open_chunk()
    last = await container.append_command(b"last")
    for chunk in container.log.chunks_to_close():
        container.log.close_chunk(chunk)
    for chunk in container.log.closed_chunks()[1:]:
        container.log.drop_chunk(chunk)
    await three.nodes[1].stop()
    shutil.rmtree(three.nodes[1].folder / str(container_id))
    with capture_logs() as logs:
        await three.nodes[1].start()
        await three.same(container_id, [0, 1], end=last)
    assert three.payloads(1, container_id) == [b"first", b"last"]
    assert [each for each in logs if "room" in each["event"]] == []


async def test_a_replica_whose_log_is_not_cut_where_it_must_be_is_fetched_anew(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 7: whatever the result of a cut, frames that it leaves beyond the match point count for nothing."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    await container.append_command(b"committed")
    await three.nodes[1].stop()
    await three.nodes[2].stop()
    alone = [container.append_command(b"alone") for _ in range(3)]
    await three.replica(0, container_id).cycle.flush()
    incarnation = three.replica(0, container_id).incarnation
    await ended(three.nodes[0], alone)
    second = await led_by_the_others(three, container_id)
    monkeypatch.setattr(ContainerLog, "cut", lambda *_: None)
    await three.nodes[0].start()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    assert three.replica(0, container_id).incarnation != incarnation
    assert three.payloads(0, container_id) == three.payloads(1, container_id)


async def test_a_replica_that_cannot_be_cut_for_what_is_damaged_is_fetched_anew(three: Several) -> None:
    """Invariant 14: without the damaged frame its log would end before what the others have."""
    container_id = await three.create(replicas=3, min_in_sync=2)
    container = await three.led(container_id)
    for _ in range(10):
        damaged = await container.append_command(b"committed".ljust(64 << 10))
    await three.nodes[1].stop()
    await three.nodes[2].stop()
    alone = [container.append_command(b"alone".ljust(64 << 10)) for _ in range(10)]  # on into another chunk
    log = three.replica(0, container_id).log
    await until(lambda: log.end > 20 * (64 << 10) or None)
    await three.replica(0, container_id).cycle.flush()
    chunk, _ = log.chunks()
    end = log.end
    incarnation = three.replica(0, container_id).incarnation
    await ended(three.nodes[0], alone)
    with chunk.path.open("r+b") as file:
        file.seek(FILE_HEAD_BYTES + damaged - 10)
        file.write(b"x")
    second = await led_by_the_others(three, container_id)
    await second.append_command(b"after")
    assert second.log.end < end
    await three.nodes[0].start()
    await until(lambda: len(second.state.in_sync) == 3 or None)
    assert three.replica(0, container_id).incarnation != incarnation
    assert three.payloads(0, container_id) == three.payloads(1, container_id)


async def test_a_frame_of_an_unknown_type_ends_a_follower_and_is_not_taken_for_damage(three: Several) -> None:
    """It kept requesting the same frames, and reported that to no one."""
    container_id = await three.create(replicas=3, min_in_sync=1)
    container = await three.led(container_id)
    position = await container.append_command(b"known to both")
    later = int.__new__(FrameType, 99)
    unknown = container.append_control(later, b"of a later version")
    followers = three.nodes[1:]
    await until(lambda: all(node.refused for node in followers) or None)
    for node in followers:
        assert "a frame of type 99 is of a newer version" in node.refused[0]
        replica = node.replicas.replica(container_id)
        assert replica is not None
        assert replica.log.end == position
    unknown.cancel()
