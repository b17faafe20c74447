"""Large responses are sent step by step, complete, in order, and as fast as the transport below accepts them."""

import asyncio
from collections.abc import Iterable

import pytest

from headrace.base.paced_transport import STEP, Buffer, PacedTransport


class Below(asyncio.Transport):
    """A transport that records what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[bytes] = []
        self.calls: list[str] = []

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.steps.append(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return 7

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


class Paced:
    def __init__(self) -> None:
        self.below = Below()
        self.told: list[str] = []
        self.transport = PacedTransport(
            self.below, hold=lambda: self.told.append("hold"), drained=lambda: self.told.append("drained")
        )


@pytest.fixture
async def paced() -> Paced:
    return Paced()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


LARGE = bytes(range(256)) * (STEP // 64)  # four steps


async def test_what_is_small_goes_straight_through(paced: Paced) -> None:
    paced.transport.write(b"a")
    paced.transport.writelines([b"b", memoryview(b"c")])
    assert paced.below.steps == [b"a", b"bc"]
    assert paced.told == []


async def test_what_is_large_goes_out_in_steps_and_what_comes_later_behind_it(paced: Paced) -> None:
    paced.transport.writelines([b"head", LARGE])
    paced.transport.write(b"tail")
    assert len(paced.below.steps) == 1
    assert paced.told == ["hold"]
    await turns()
    assert b"".join(paced.below.steps) == b"head" + LARGE + b"tail"
    assert [len(each) for each in paced.below.steps] == [STEP] * 4 + [8]
    assert paced.told == ["hold", "drained"]


async def test_nothing_goes_out_while_the_transport_below_is_full(paced: Paced) -> None:
    paced.transport.write(LARGE)
    paced.transport.pause()
    await turns()
    assert len(paced.below.steps) == 1
    assert paced.transport.resume()
    await turns()
    assert b"".join(paced.below.steps) == LARGE
    assert not paced.transport.resume()


async def test_a_last_step_that_fills_the_transport_below_drains_with_it(paced: Paced) -> None:
    paced.transport.write(LARGE[: STEP + 1])
    below = paced.below.writelines

    def fill(pieces: Iterable[Buffer]) -> None:
        below(pieces)
        paced.transport.pause()

    paced.below.writelines = fill  # type: ignore[method-assign]
    await turns()
    assert len(paced.below.steps) == 2
    assert paced.told == ["hold"]
    assert not paced.transport.resume(), "now it is the protocol that goes on"


async def test_it_closes_behind_what_waits_and_takes_no_more(paced: Paced) -> None:
    paced.transport.write(LARGE)
    paced.transport.close()
    paced.transport.write(b"late")
    assert paced.below.calls == []
    await turns()
    assert b"".join(paced.below.steps) == LARGE
    assert paced.below.calls == ["close"]
    assert paced.told == ["hold"]


async def test_what_waits_is_gone_with_the_connection(paced: Paced) -> None:
    paced.transport.write(LARGE)
    paced.transport.abort()
    await turns()
    assert len(paced.below.steps) == 1
    assert paced.below.calls == ["abort"]


async def test_what_waits_is_counted_with_what_the_transport_below_has(paced: Paced) -> None:
    assert paced.transport.get_write_buffer_size() == 7
    paced.transport.write(LARGE)
    assert paced.transport.get_write_buffer_size() == len(LARGE) - STEP + 7
    await turns()
    assert paced.transport.get_write_buffer_size() == 7
