"""Key sets: when they are fetched, and which keys are valid meanwhile. On the simulator's loop, whose time is
virtual."""

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.sasl.jwks import (
    ASK_S,
    MAX_JWKS_BYTES,
    MAX_RETRY_S,
    REFRESH_S,
    WAIT_S,
    JwksUnavailable,
    KeySet,
    RefreshSchedule,
    keys_of,
)
from kit.tokens import Issuer, ed_jwk
from simulation.loop import SimulatedLoop


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


class Endpoint:
    """Serves a set of keys, or fails; records when it was called."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.key_ids = ["one"]
        self.is_away = False
        self.takes_s = 0.0
        self.asked_s: list[float] = []

    async def fetch(self) -> bytes:
        self.asked_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        if self.is_away:
            raise JwksUnavailable("away")
        return json.dumps({"keys": [ed_jwk(self.issuer.ed25519, key_id) for key_id in self.key_ids]}).encode()


def run(issuer: Issuer, story: Callable[[Endpoint, KeySet], Awaitable[None]]) -> Endpoint:
    """Run a scenario of an endpoint and the node that calls it."""
    endpoint = Endpoint(issuer)

    async def told() -> None:
        keys = KeySet(endpoint.fetch, clock_s=loop.time)
        running = loop.create_task(keys.run())
        try:
            await story(endpoint, keys)
        finally:
            assert not running.done()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    loop = SimulatedLoop(random.Random(1), most_steps=100_000)
    loop.run_until_complete(told())
    return endpoint


def test_keys_are_fetched_at_once_and_then_each_hour(issuer: Issuer) -> None:
    async def story(_endpoint: Endpoint, keys: KeySet) -> None:
        assert [key.key_id for key in await keys.keys("one")] == ["one"]
        await asyncio.sleep(2 * REFRESH_S + 60)
        assert await keys.keys("one")

    assert run(issuer, story).asked_s == pytest.approx([0, REFRESH_S, 2 * REFRESH_S], abs=0.01)


def test_a_key_that_the_issuer_took_away_counts_no_more_after_the_hour(issuer: Issuer) -> None:
    async def story(endpoint: Endpoint, keys: KeySet) -> None:
        assert await keys.keys("one")
        endpoint.key_ids = ["two"]
        await asyncio.sleep(REFRESH_S - 1)
        assert await keys.keys("one")
        await asyncio.sleep(2)
        assert not await keys.keys("one")
        assert await keys.keys("two")

    run(issuer, story)


def test_an_unknown_key_is_asked_for_once_in_ten_seconds(issuer: Issuer) -> None:
    async def story(endpoint: Endpoint, keys: KeySet) -> None:
        assert await keys.keys("one")
        await asyncio.sleep(100)
        endpoint.key_ids = ["one", "two"]
        assert await keys.keys("two")  # waits for the fetch that it caused
        endpoint.key_ids.append("three")
        for _ in range(90):
            assert not await keys.keys("three")
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.1)
        assert await keys.keys("three")

    assert run(issuer, story).asked_s == pytest.approx([0, 100, 100 + ASK_S], abs=0.2)


def test_a_thousand_clients_with_an_unknown_key_wait_for_one_fetch(issuer: Issuer) -> None:
    async def story(endpoint: Endpoint, keys: KeySet) -> None:
        assert await keys.keys("one")
        await asyncio.sleep(100)
        endpoint.takes_s = 2
        endpoint.key_ids = ["two"]
        found = await asyncio.gather(*(keys.keys("two") for _ in range(1000)))
        assert sum(map(bool, found)) == 1000

    assert len(run(issuer, story).asked_s) == 2


def test_a_client_that_goes_away_breaks_no_fetch_off(issuer: Issuer) -> None:
    async def story(endpoint: Endpoint, keys: KeySet) -> None:
        assert await keys.keys("one")
        await asyncio.sleep(100)
        endpoint.takes_s = 2
        endpoint.key_ids = ["two"]
        hasty = asyncio.get_running_loop().create_task(keys.keys("two"))
        await asyncio.sleep(1)
        hasty.cancel()
        await asyncio.sleep(2)
        assert await keys.keys("two")

    assert len(run(issuer, story).asked_s) == 2


def test_old_keys_count_while_the_endpoint_is_away_and_new_ones_when_it_is_back(issuer: Issuer) -> None:
    async def story(endpoint: Endpoint, keys: KeySet) -> None:
        assert await keys.keys("one")
        endpoint.is_away = True
        await asyncio.sleep(10 * REFRESH_S)
        assert await keys.keys("one")
        endpoint.is_away = False
        endpoint.key_ids = ["two"]
        await asyncio.sleep(MAX_RETRY_S + 1)
        assert await keys.keys("two")
        assert not await keys.keys("one")

    run(issuer, story)


def test_an_endpoint_that_is_away_is_asked_with_a_back_off(issuer: Issuer) -> None:
    async def story(endpoint: Endpoint, _keys: KeySet) -> None:
        endpoint.is_away = True
        await asyncio.sleep(60)

    asked_s = run(issuer, story).asked_s
    waits = [round(later - sooner, 2) for sooner, later in itertools.pairwise(asked_s)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10, 10, 10]


def test_nobody_waits_longer_than_five_seconds_for_a_key(issuer: Issuer) -> None:
    async def story(endpoint: Endpoint, keys: KeySet) -> None:
        endpoint.takes_s = 60
        began_s = asyncio.get_running_loop().time()
        assert await keys.keys("one") == ()
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(WAIT_S, abs=0.01)
        await asyncio.sleep(60)
        assert await keys.keys("one")

    run(issuer, story)


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from(["ask", "due"]), st.booleans()), max_size=60))
def test_asks_bring_at_most_one_fetch_in_ten_seconds(steps: list[tuple[float, str, bool]]) -> None:
    """With any order of requests, and of successful and failed fetches, the next fetch is due within the hour, or
    within the longest back-off."""
    now_s = 0.0
    schedule = RefreshSchedule(now_s)
    granted: list[float] = []
    for wait_s, what, is_good in steps:
        now_s += wait_s
        if what == "ask" and schedule.ask(now_s):
            granted.append(now_s)
            assert schedule.due_s <= now_s
        elif what == "due" and schedule.due_s <= now_s:
            (schedule.succeeded if is_good else schedule.failed)(now_s)
            assert now_s < schedule.due_s <= now_s + (REFRESH_S if is_good else MAX_RETRY_S)
    assert all(later - sooner >= ASK_S for sooner, later in itertools.pairwise(granted))


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"[]", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "not a list"),
        (b'{"keys":{}}', "not a list"),
        (b'{"keys":[' + b"{}," * 256 + b"{}]}", "not a list of at most"),
        (b'{"keys":[]}', "no key"),
        (b'{"keys":[{"kty":"oct","kid":"a","k":"c2VjcmV0"}]}', "no key"),
        (b'{"keys":[]}' + b" " * MAX_JWKS_BYTES, "longer than"),
    ],
    ids=lambda value: value[:30],
)
def test_a_document_that_is_no_key_set_is_refused(document: bytes, why: str) -> None:
    with pytest.raises(JwksUnavailable, match=why):
        keys_of(document)


def test_a_set_without_keys_for_signatures_does_not_take_the_old_keys_place(issuer: Issuer) -> None:
    async def story(endpoint: Endpoint, keys: KeySet) -> None:
        assert await keys.keys("one")
        endpoint.key_ids = []
        await asyncio.sleep(2 * REFRESH_S)
        assert await keys.keys("one")

    run(issuer, story)
