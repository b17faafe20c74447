"""An in-sync set reaches the store, and commits continue, whatever the store answers meanwhile."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.ids import ContainerId, Epoch, NodeId, Position
from headrace.container import in_sync_writer
from headrace.container.in_sync_writer import InSyncWriter, KeptRecords, StoreAndView
from headrace.container.leader import Leader
from headrace.container.leader_state import LET_GO_S, LeaderState, Member
from headrace.store import container_records
from headrace.store.protocol import StoreUnavailable
from headrace.store.records import ContainerRecord
from headrace.store.sqlite import SqliteStore

ID = ContainerId(2)
END = Position(100)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("resourceVersion"),
        StoreUnavailable("away"),
        HeadraceError("refused"),
        OSError("odd"),
        ValueError("odd"),
        None,
    ],
    ids=lambda error: "no record" if error is None else type(error).__name__,
)
@pytest.mark.parametrize("landed", [False, True], ids=["before the put", "after it"])
async def test_a_put_that_fails_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, landed: bool
) -> None:
    """None: the record was missing, and is back before any other reader has noticed."""
    monkeypatch.setattr(in_sync_writer, "RETRY_S", 0.0)
    loop = asyncio.get_running_loop()
    formats = [uuid.uuid4() for _ in range(3)]
    pairs = tuple((NodeId(number), format) for number, format in enumerate(formats, 1))
    record = ContainerRecord(
        ID, "data", NodeId(1), Epoch(1), pairs, (NodeId(1), NodeId(2), NodeId(3)), min_in_sync=2, wanted=3
    )
    store = SqliteStore(tmp_path / "store")
    container_records.put_container(store, record, None)
    me, speaks, silent = (Member(node, str(format)) for node, format in pairs)
    begun = loop.time() - 2 * LET_GO_S
    state = LeaderState(
        me=me,
        epoch=Epoch(1),
        in_sync=[me, speaks, silent],
        replicas=record.replicas,
        start=Position(0),
        min_in_sync=2,
        now=begun,
    )
    state.follows(silent, Position(0), now=begun)
    state.follows(speaks, Position(0), now=loop.time())
    state.end = END
    state.on_disk(me, END)
    state.on_disk(speaks, END, now=loop.time())
    container = SimpleNamespace(id=ID, lost=False, state=state, epoch=Epoch(1), member=me, committed_moved=lambda: None)
    errors = [error]

    async def call(change: Callable[[SqliteStore], Any]) -> Any:
        answer = None if errors and not landed else change(store)
        if errors:
            planted = errors.pop()
            if planted is None:
                return None
            raise planted
        return answer

    kept: list[ContainerRecord] = [record]

    async def remember(record: ContainerRecord) -> None:
        assert state.committed < END, "what is committed by a record would not be known after a crash"
        kept.append(record)

    view = SimpleNamespace(refresh=lambda: None, may=lambda _level: True)
    environment = SimpleNamespace(store=call, view=view)
    folders = SimpleNamespace(known_record=lambda _container: kept[-1], remember=remember, unasked=lambda *_: ())
    carried = InSyncWriter(cast(StoreAndView, environment), cast(KeptRecords, folders))
    carried.look_at(cast(Leader, container), record)
    async with asyncio.timeout(20):
        while state.committed < END:  # noqa: ASYNC110  # a state machine, which tells nobody
            await asyncio.sleep(0.001)
    assert not errors
    found = container_records.get_container(store, ID)
    assert found is not None
    assert [node for node, _ in found.in_sync] == [1, 2]
    assert kept[-1] == found
    assert len(found.changes) == 1
    await carried.close()
    store.close()
