import asyncio
import time

import pytest

from headrace_operator import cache as cache_module
from headrace_operator import engine as engine_module
from headrace_operator.engine import Body, Cache, Engine, Key, News


def body(name: str, version: int = 1) -> dict:
    meta = {"name": name, "namespace": "ns", "resourceVersion": str(version), "generation": version, "uid": name}
    return {"kind": "Topic", "metadata": meta}


KEY = Key("Topic", "ns", "a")


async def until(condition, timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


class Kind:
    def __init__(self) -> None:
        self.seen: list[tuple[Key, Body | None]] = []
        self.failures = 0
        self.delay: float | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.at_once = 0
        self.most = 0

    async def reconcile(self, key: Key, body: Body | None) -> float | None:
        self.seen.append((key, body))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.hold.wait()
        self.at_once -= 1
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no")
        return self.delay


@pytest.fixture
async def running():
    kind = Kind()
    engine = Engine({"Topic": kind.reconcile}, cache=Cache())
    engine.start()
    yield engine, kind
    await engine.close()


async def test_an_event_leads_to_a_reconcile_of_what_is_there_by_then(running) -> None:
    engine, kind = running
    engine.seen(body("a", 1))
    engine.seen(body("a", 2))
    await until(lambda: kind.seen)
    assert kind.seen == [(KEY, body("a", 2))]
    engine.seen(body("a", 2))
    engine.seen(body("a", 2), deleted=True)
    await until(lambda: len(kind.seen) == 2)
    assert kind.seen[1] == (KEY, None)


async def test_a_resource_is_never_reconciled_twice_at_a_time_and_no_change_is_missed(running) -> None:
    engine, kind = running
    kind.hold.clear()
    engine.seen(body("a", 1))
    await until(lambda: kind.seen)
    engine.seen(body("a", 2))
    engine.seen(body("a", 3))
    await asyncio.sleep(0.05)
    assert len(kind.seen) == 1
    kind.hold.set()
    await until(lambda: len(kind.seen) == 2)
    assert kind.seen[1] == (KEY, body("a", 3))
    assert kind.most == 1


async def test_a_reconcile_that_fails_is_tried_again_later_each_time(running, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, kind = running
    monkeypatch.setattr(engine_module, "BACKOFF_S", (0.05, 0.2))
    kind.failures = 3
    begun = time.monotonic()
    engine.seen(body("a"))
    await until(lambda: engine.reconciled == 1)
    assert engine.failed == 3
    assert time.monotonic() - begun >= 0.05 + 0.2 + 0.2


async def test_no_wait_is_longer_than_the_longest_that_is_asked_for() -> None:
    kind = Kind()
    kind.failures = 6
    engine = Engine({"Topic": kind.reconcile}, cache=Cache(), longest_backoff_s=0.02)
    engine.start()
    try:
        engine.seen(body("a"))
        await until(lambda: engine.reconciled == 1)
        assert engine.failed == 6
    finally:
        await engine.close()


async def test_a_reconcile_may_ask_to_be_called_again(running) -> None:
    engine, kind = running
    kind.delay = 0.05
    engine.seen(body("a"))
    await until(lambda: len(kind.seen) >= 3)


async def test_an_engine_that_is_stuck_says_so(running, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, kind = running
    assert engine.stale() == ""
    monkeypatch.setattr(engine_module, "SLOW_S", 0.02)
    kind.hold.clear()
    engine.seen(body("a"))
    await until(lambda: "a has been reconciled" in engine.stale())
    kind.hold.set()
    await until(lambda: engine.stale() == "")


async def test_a_change_of_status_alone_begins_no_reconcile(running) -> None:
    engine, kind = running
    engine.seen(body("a", 1))
    await until(lambda: kind.seen)
    told = body("a", 1) | {"status": {"x": 1}}
    told["metadata"]["resourceVersion"] = "2"
    engine.seen(told)
    await asyncio.sleep(0.05)
    assert len(kind.seen) == 1
    assert engine.cache.get(KEY)["status"] == {"x": 1}


async def test_an_older_state_is_no_news() -> None:
    cache = Cache()
    assert cache.take(body("a", 5)) is News.CHANGED
    assert cache.take(body("a", 4)) is News.NOTHING
    assert cache.take(body("a", 5)) is News.NOTHING
    assert cache.get(KEY) == body("a", 5)


async def test_one_that_failed_waits_however_often_it_is_touched_but_not_for_a_change(running) -> None:
    engine, kind = running
    kind.failures = 2
    engine.seen(body("a"))
    await until(lambda: engine.failed == 1)
    for _ in range(100):
        engine.enqueue(KEY)
        await asyncio.sleep(0)
    assert len(kind.seen) == 1
    engine.seen(body("a", 2))
    await until(lambda: engine.failed == 2)
    assert len(kind.seen) == 2


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_change_during_a_reconcile_that_fails_does_not_wait_for_the_back_off(
    running, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    engine, kind = running
    monkeypatch.setattr(engine_module, "BACKOFF_S", (1000.0,))
    kind.failures = 1
    kind.hold.clear()
    engine.seen(body("a", 1))
    await until(lambda: kind.seen)
    engine.seen(body("a", 2), deleted=deleted)
    kind.hold.set()
    await until(lambda: engine.reconciled == 1)
    assert kind.seen[1] == (KEY, None if deleted else body("a", 2))


async def test_one_that_is_touched_during_a_reconcile_that_fails_waits_nevertheless(
    running, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, kind = running
    monkeypatch.setattr(engine_module, "BACKOFF_S", (1000.0,))
    kind.failures = 1
    kind.hold.clear()
    engine.seen(body("a"))
    await until(lambda: kind.seen)
    engine.enqueue(KEY)
    kind.hold.set()
    await until(lambda: engine.failed == 1)
    engine.seen(body("b"))
    await until(lambda: engine.reconciled == 1)
    assert [key.name for key, _ in kind.seen] == ["a", "b"]


async def test_a_sweep_finds_what_no_event_told_of_and_says_so_when_that_goes_on() -> None:
    kind = Kind()
    there = [body("a", 1), body("b", 1)]

    async def listing(_kind: str):
        for each in there:
            yield each

    engine = Engine({"Topic": kind.reconcile}, cache=Cache(), sweep_s=0.05, listing=listing)
    engine.seen(body("a", 1))
    engine.seen(body("b", 1))
    engine.start()
    await until(lambda: {key.name for key, _ in kind.seen} == {"a", "b"})
    there[:] = [body("a", 2)]
    await until(lambda: (Key("Topic", "ns", "b"), None) in kind.seen and (KEY, body("a", 2)) in kind.seen)
    await until(lambda: engine.missed == 2)
    version = 2
    deadline = time.monotonic() + 5
    while "no watch had reported" not in engine.stale():
        assert time.monotonic() < deadline
        version += 1
        there[:] = [body("a", version)]
        await asyncio.sleep(0.02)
    await until(lambda: engine.stale() == "")
    await engine.close()


async def test_those_that_a_change_concerns_are_looked_at_too() -> None:
    kind = Kind()
    other = Key("Topic", "ns", "b")
    engine = Engine(
        {"Topic": kind.reconcile}, cache=Cache(), referrers=lambda key, _body: [other] if key == KEY else []
    )
    engine.start()
    engine.seen(body("a"))
    await until(lambda: {key for key, _ in kind.seen} == {KEY, other})
    await engine.close()


async def test_there_are_never_more_at_a_time_than_workers() -> None:
    kind = Kind()
    kind.hold.clear()
    engine = Engine({"Topic": kind.reconcile}, cache=Cache())
    engine.start()
    for number in range(50):
        engine.seen(body(f"t{number}"))
    await until(lambda: kind.at_once == engine_module.WORKERS)
    assert engine.queued == 50
    kind.hold.set()
    await until(lambda: engine.reconciled == 50)
    assert kind.most == engine_module.WORKERS
    assert engine.queued == 0
    await engine.close()


async def test_what_only_a_list_told_of_concerns_others_too() -> None:
    """Its event arrives later, and is no news then: so only the list reports it."""
    kind = Kind()
    noted: list[Key] = []

    async def listing(_kind: str):
        yield body("a", 1)

    engine = Engine(
        {"Topic": kind.reconcile},
        cache=Cache(),
        sweep_s=0.05,
        listing=listing,
        referrers=lambda key, _body: noted.append(key) or [],  # type: ignore[func-returns-value]
    )
    await engine.sweep("Topic")
    engine.seen(body("a", 1))
    assert noted == [KEY]
    assert engine.missed == 0


async def test_a_change_that_a_sweep_finds_ends_a_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Kind()
    there = [body("a", 1)]

    async def listing(_kind: str):
        for each in there:
            yield each

    engine = Engine({"Topic": kind.reconcile}, cache=Cache(), sweep_s=0.05, listing=listing)
    monkeypatch.setattr(engine_module, "BACKOFF_S", (3600.0,))
    kind.failures = 1
    engine.start()
    await until(lambda: engine.failed == 1)
    there[:] = [body("a", 2)]
    await until(lambda: engine.reconciled)
    assert kind.seen[-1] == (KEY, body("a", 2))
    await engine.close()


async def test_nothing_is_reconciled_before_everything_has_been_listed() -> None:
    """With a half-filled cache an existing cluster would look deleted."""
    kind, other = Kind(), Kind()
    listed = asyncio.Event()
    cluster = {**body("c"), "kind": "StreamCluster"}

    async def listing(of: str):
        await listed.wait()
        if of == "StreamCluster":
            yield cluster

    engine = Engine({"Topic": kind.reconcile, "StreamCluster": other.reconcile}, cache=Cache(), listing=listing)
    engine.start()
    engine.seen(body("a"))
    await asyncio.sleep(0.05)
    assert not kind.seen
    listed.set()
    await until(lambda: kind.seen and other.seen)
    assert kind.seen == [(KEY, body("a"))]
    assert other.seen == [(Key("StreamCluster", "ns", "c"), cluster)]
    await engine.close()


async def test_kinds_that_cannot_be_listed_hold_the_others_up_for_a_while_only(monkeypatch) -> None:
    kind = Kind()
    monkeypatch.setattr(engine_module, "FIRST_LOOK_S", 0.1)
    monkeypatch.setattr(engine_module, "FIRST_LOOK_AGAIN_S", 0.01)
    tried: list[str] = []

    async def listing(of: str):
        tried.append(of)
        if of == "Namespace":
            raise RuntimeError("forbidden")
        yield body("a")

    engine = Engine({"Topic": kind.reconcile}, cache=Cache(), listing=listing, others=["Namespace"])
    engine.start()
    await until(lambda: kind.seen)
    assert tried.count("Topic") == 1
    assert tried.count("Namespace") > 2
    await engine.close()


async def test_a_namespace_that_may_not_be_looked_at_any_more_stays_as_it_is_known_and_the_others_are_swept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "FIRST_LOOK_S", 0.1)
    monkeypatch.setattr(engine_module, "FIRST_LOOK_AGAIN_S", 0.01)
    kind = Kind()
    there = [body("a", 1), body("b", 1)]

    async def listing(_kind: str):
        for each in there:
            yield each
        raise engine_module.Refused(["far"])

    far = body("f", 1)
    far["metadata"]["namespace"] = "far"
    engine = Engine({"Topic": kind.reconcile}, cache=Cache(), sweep_s=0.05, listing=listing)
    engine.seen(far)
    engine.start()
    await until(lambda: len({key for key, _ in kind.seen}) == 3)
    there[:] = [body("a", 2)]
    await until(lambda: (KEY, body("a", 2)) in kind.seen and (Key("Topic", "ns", "b"), None) in kind.seen)
    swept = engine._swept_at
    await until(lambda: engine._swept_at > swept)
    assert engine.cache.get(Key("Topic", "far", "f")) is not None
    assert [key.name for key, _ in kind.seen].count("f") == 1
    await engine.close()


async def test_a_list_that_was_under_way_brings_nothing_back_that_has_gone() -> None:
    cache = Cache()
    cache.take(body("a", 1))
    cache.take(body("a", 2), deleted=True)
    assert cache.take(body("a", 1)) is News.NOTHING
    assert cache.get(KEY) is None
    cache.take(body("b", 1))
    cache.gone(Key("Topic", "ns", "b"), uid="b")  # an answer that may refer to another state
    assert cache.take(body("b", 1)) is News.CHANGED
    anew = body("a", 3)
    anew["metadata"]["uid"] = "another"
    assert cache.take(anew) is News.CHANGED


async def test_no_more_of_the_gone_are_remembered_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "DEAD", 3)
    cache = Cache()
    for number in range(10):
        cache.take(body(f"t{number}"), deleted=True)
    assert list(cache._deleted) == ["t7", "t8", "t9"]


async def test_what_is_urgent_waits_for_nothing_else() -> None:
    """All other kinds may hang on a cluster that does not answer."""
    others, urgent = Kind(), Kind()
    engine = Engine(
        {"Topic": others.reconcile, "StreamCluster": urgent.reconcile}, cache=Cache(), urgent=["StreamCluster"]
    )
    engine.start()
    try:
        others.hold.clear()
        for number in range(2 * engine_module.WORKERS):
            engine.seen(body(f"t-{number}"))
        await until(lambda: len(others.seen) == engine_module.WORKERS)
        engine.seen({**body("c"), "kind": "StreamCluster"})
        await until(lambda: urgent.seen)
        assert others.most == engine_module.WORKERS
    finally:
        await engine.close()
