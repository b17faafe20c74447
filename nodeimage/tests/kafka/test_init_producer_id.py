"""Producer ids: taken from blocks that are fetched ahead, each given out once."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.base.runtime import Runtime
from headrace.kafka.init_producer_id import BLOCK, InitProducerIdApi, ProducerIds
from headrace.store.protocol import StoreUnavailable
from kit.access import authorization


class Blocks:
    """The cluster store's blocks, which are unavailable while the store is."""

    def __init__(self) -> None:
        self.taken = 0
        self.away = False

    def take(self, size: int) -> range:
        if self.away:
            raise StoreUnavailable("away")
        self.taken += 1
        return range(self.taken * size, (self.taken + 1) * size)


@pytest.fixture
def blocks() -> Blocks:
    return Blocks()


@pytest.fixture
async def ids(blocks: Blocks) -> AsyncIterator[ProducerIds]:
    clock: Any = None
    with ThreadPoolExecutor(1) as executor:
        runtime = Runtime(executor=executor, clock=clock)
        yield ProducerIds(runtime=runtime, block=blocks.take)
        await runtime.end_tasks()
        runtime.close()


async def test_each_id_is_given_once_and_a_block_costs_one_call(ids: ProducerIds, blocks: Blocks) -> None:
    found = await asyncio.gather(*(ids.next() for _ in range(BLOCK // 4)))
    assert len(set(found)) == BLOCK // 4
    assert blocks.taken == 1


async def test_the_next_block_is_fetched_before_the_last_one_is_used_up(ids: ProducerIds, blocks: Blocks) -> None:
    for _ in range(BLOCK // 2):
        await ids.next()
    async with asyncio.timeout(60):
        while blocks.taken < 2:  # noqa: ASYNC110  # of a thread
            await asyncio.sleep(0)


async def test_while_the_store_is_away_the_last_block_lasts(ids: ProducerIds, blocks: Blocks) -> None:
    await ids.next()
    blocks.away = True
    for _ in range(BLOCK - 1):
        await ids.next()
    with pytest.raises(StoreUnavailable):
        await ids.next()
    blocks.away = False
    assert await ids.next() == 2 * BLOCK


def request(**fields: Any) -> Any:
    given = {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}
    return SimpleNamespace(**{**given, **fields})


async def test_a_new_producer_begins_in_epoch_0_and_a_known_one_in_the_next(ids: ProducerIds) -> None:
    api, session = InitProducerIdApi(producer_ids=ids, authorization=authorization(on=False)), None
    caller: Any = session
    assert await api.init_producer_id(request(), caller) == {
        "error_code": 0,
        "producer_id": BLOCK,
        "producer_epoch": 0,
    }
    known = await api.init_producer_id(request(producer_id=77, producer_epoch=4), caller)
    assert (known["producer_id"], known["producer_epoch"]) == (77, 5)
    last = await api.init_producer_id(request(producer_id=77, producer_epoch=0x7FFE), caller)
    assert (last["producer_id"], last["producer_epoch"]) == (BLOCK + 1, 0), "its epochs are used up"


async def test_who_wants_transactions_is_refused_and_who_gets_no_id_asks_again(
    ids: ProducerIds, blocks: Blocks
) -> None:
    api = InitProducerIdApi(producer_ids=ids, authorization=authorization(on=False))
    caller: Any = None
    refused = await api.init_producer_id(request(transactional_id="t"), caller)
    assert refused["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    blocks.away = True
    later = await api.init_producer_id(request(), caller)
    assert (later["error_code"], later["producer_id"]) == (Code.COORDINATOR_LOAD_IN_PROGRESS, -1)
