"""Rules and groups follow the catalog: in force when the submitter wakes, and never looser than the applied
commands."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import Code
from headrace.base.ids import ContainerId, Epoch, Position
from headrace.base.runtime import Runtime
from headrace.catalog.access import AccessItem, SecureCluster, SetAccess
from headrace.catalog.catalog import Catalog, CatalogFailed
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import Replaced
from headrace.catalog.streams import CreateOwnedStream, CreateStream, DeleteStream
from headrace.catalog.topics import CreateTopics, DeleteTopics, NewTopic
from headrace.catalog.users import AlterCredentials, Credential, DeleteUser, PutUser
from headrace.partitions import catalog_loader
from headrace.partitions.access_control import AccessControl
from headrace.security.access_rules import Kind, Permission
from headrace.security.principals import NOBODY, Mechanism, Principal
from kit.catalog import NOW, MemoryLog, Still
from kit.one_node import until

ALICE = Principal("alice", Mechanism.PLAIN)
BOB = Principal("bob", Mechanism.PLAIN)
TOPIC = b"t" * 16
PRODUCE, ADMIN = Permission.PRODUCE, Permission.ADMIN


class Secured:
    """A catalog with a stream and a topic, with security on, and the access control that follows it."""

    def __init__(self, runtime: Runtime, catalog: Catalog, control: AccessControl) -> None:
        self.runtime = runtime
        self.catalog = catalog
        self.control = control
        self.told = 0
        control.on_change(self._count)

    def _count(self) -> None:
        self.told += 1

    async def set(self, kind: str, name: str, expression: str | None, topic_id: bytes = b"") -> None:
        (done,) = await self.catalog.submit(SetAccess([AccessItem(kind, name, "produce", expression, topic_id)], NOW))
        assert done.code is Code.NONE

    def may(self, principal: Principal, name: str = "/s:t", kind: Kind = Kind.TOPIC) -> bool:
        return self.control.allows(principal, PRODUCE, kind, name)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    catalog = await Catalog.open(tmp_path / "catalog", MemoryLog())
    with ThreadPoolExecutor(1) as executor:
        runtime = Runtime(executor=executor, clock=Still())
        control = AccessControl(runtime=runtime, catalog=catalog)
        assert not control.allows(ALICE, PRODUCE), "closed before it is read"
        catalog.on_applied(control.applied)
        await catalog.submit(CreateStream("/s", StreamPolicy(), NOW))
        await catalog.submit(CreateTopics([NewTopic("/s", "t", TOPIC, 1, {}, [ContainerId(1)], [Epoch(1)])], NOW))
        await control.start()
        assert control.allows(NOBODY, ADMIN), "open while security is off"
        await catalog.submit(SecureCluster(on=True))
        yield Secured(runtime, catalog, control)
        await catalog.close()
        runtime.close()


async def test_a_change_is_in_force_when_its_submitter_wakes(secured: Secured) -> None:
    assert not secured.may(ALICE)
    for kind, name, topic_id in (
        ("cluster", "", b""),
        ("prefix", "/s", b""),
        ("stream", "/s", b""),
        ("topic", "", TOPIC),
    ):
        for expression, expected in (("u:alice", (True, False)), ("", (False, False)), ("!u:alice", (False, True))):
            told = secured.told
            await secured.set(kind, name, expression, topic_id)
            assert (secured.may(ALICE), secured.may(BOB)) == expected
            assert secured.told == told + 1
    await secured.set("topic", "", None, TOPIC)
    assert secured.may(BOB)
    await secured.set("stream", "/s", "u:alice")
    assert secured.may(ALICE)
    await secured.catalog.submit(SecureCluster(on=False))
    assert secured.may(NOBODY)


async def test_groups_are_the_catalogs_and_those_of_the_token(secured: Secured) -> None:
    await secured.set("stream", "/s", "g:ops")
    assert not secured.may(ALICE)
    await secured.catalog.submit(PutUser("alice", ["ops"], NOW, create=True))
    assert secured.may(ALICE)
    await secured.catalog.submit(AlterCredentials([], [Credential("alice", "SCRAM-SHA-256", b"", b"", b"", 4096)], NOW))
    assert secured.may(ALICE), "a credential changes no groups"
    await secured.catalog.submit(PutUser("alice", ["dev"], NOW, create=False))
    assert not secured.may(ALICE)
    assert secured.may(Principal("alice", Mechanism.OAUTHBEARER, frozenset({"ops"})))
    await secured.catalog.submit(DeleteUser("alice"))
    assert secured.control.groups_of(ALICE) == frozenset()
    assert not secured.may(NOBODY)


async def test_what_is_made_again_has_nothing_of_what_was_deleted(secured: Secured) -> None:
    owned = CreateOwnedStream("/mine", StreamPolicy(), [("produce", "u:alice")], NOW)
    await secured.catalog.submit(owned)
    assert secured.may(ALICE, "/mine:t")
    await secured.catalog.submit(DeleteStream("/mine", NOW, force=True))
    assert not secured.may(ALICE, "/mine:t")
    await secured.set("topic", "", "u:alice", TOPIC)
    assert secured.may(ALICE)
    await secured.catalog.submit(DeleteTopics([TOPIC], NOW))
    assert not secured.may(ALICE)


class Slow:
    """Reads of a catalog that end only after `go_on`, with the rows as they were before."""

    def __init__(self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self._query = catalog.query
        self._may_end = asyncio.Event()
        self.has_read = asyncio.Event()
        self.go_on = self._may_end.set
        monkeypatch.setattr(catalog, "query", self._late)

    async def _late(self, fn: Callable[[Any], Any]) -> Any:
        found = await self._query(fn)
        self.has_read.set()
        await self._may_end.wait()
        return found


async def test_another_catalog_is_read_anew_and_closed_meanwhile(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secured.set("stream", "/s", "u:alice")
    slow = Slow(secured.catalog, monkeypatch)
    secured.control.applied([(Replaced(Position(1)), None)])
    assert not secured.may(ALICE)
    await slow.has_read.wait()
    await secured.set("stream", "/s", "u:bob")
    slow.go_on()
    await until(lambda: secured.may(BOB))
    assert not secured.may(ALICE), "what was read before the change is read again"


@pytest.mark.parametrize(
    ("deletion", "deleted"), [(DeleteStream("/s", NOW, force=True), "/s"), (DeleteTopics([TOPIC], NOW), "/s:t")]
)
async def test_what_is_deleted_while_rows_are_read_does_not_come_back_with_them(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, deletion: Any, deleted: str
) -> None:
    await secured.set("stream", "/s", "u:alice")
    await secured.set("topic", "", "u:alice", TOPIC)
    slow = Slow(secured.catalog, monkeypatch)
    secured.control.applied([(Replaced(Position(1)), None)])
    await slow.has_read.wait()
    await secured.catalog.submit(deletion)
    slow.go_on()
    await until(lambda: secured.control.is_current)
    assert deleted not in {name for _, name, _ in secured.control.rules.places()}


async def test_while_rows_are_read_a_single_expression_lets_nobody_in(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expressions that are not read yet may shut out whom the changed one lets in."""
    await secured.set("topic", "", "u:bob", TOPIC)
    slow = Slow(secured.catalog, monkeypatch)
    secured.control.applied([(Replaced(Position(1)), None)])
    await secured.set("stream", "/s", "u:alice")
    assert not secured.may(ALICE)
    slow.go_on()
    await until(lambda: secured.may(ALICE, "/s:u"))
    assert not secured.may(ALICE)


async def test_security_turned_on_while_rows_are_read_lets_nobody_in_by_earlier_expressions(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secured.set("stream", "/s", "u:alice")
    await secured.catalog.submit(SecureCluster(on=False))
    slow = Slow(secured.catalog, monkeypatch)
    secured.control.applied([(Replaced(Position(1)), None)])
    assert secured.may(BOB), "security was off"
    await secured.catalog.submit(SecureCluster(on=True))
    assert not secured.may(ALICE), "the replaced rows may have no such expression"
    slow.go_on()
    await until(lambda: secured.may(ALICE))


async def test_an_expression_that_cannot_be_read_lets_nobody_in(secured: Secured) -> None:
    await secured.set("stream", "/s", "u:alice &")
    assert not secured.may(ALICE)
    assert secured.control.rules.faults
    await secured.set("cluster", "", "p")
    assert secured.may(ALICE, "/other:t")


async def test_an_open_cluster_whose_catalog_cannot_be_read_any_more_lets_nobody_in(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether security is still off is not known: the rows were replaced, and may turn it on."""
    await secured.catalog.submit(SecureCluster(on=False))
    assert secured.may(BOB)
    query = secured.catalog.query

    async def fails(_: Callable[..., Any]) -> Any:
        raise CatalogFailed("it is damaged")

    monkeypatch.setattr(catalog_loader, "READ_AGAIN_S", 0.01)
    monkeypatch.setattr(secured.catalog, "query", fails)
    told = secured.told
    secured.control.applied([(Replaced(Position(1)), None)])
    await until(lambda: not secured.may(BOB))
    assert secured.told > told, "what waits is asked again"
    monkeypatch.setattr(secured.catalog, "query", query)
    await until(lambda: secured.may(BOB))


async def test_an_expression_of_another_version_shuts_all_but_administrators_out_and_is_told(secured: Secured) -> None:
    with capture_logs() as logs:
        await secured.set("cluster", "", "u:alice")
        await secured.catalog.submit(SetAccess([AccessItem("cluster", "", "admin", "u:bob")], NOW))
        assert secured.may(ALICE)
        await secured.set("group-suffix", "-x", "p")
        assert not secured.may(ALICE)
        assert secured.may(BOB)
    (told,) = [each for each in logs if each["log_level"] == "error"]
    assert (told["kind"], told["object"], told["permission"]) == ("group-suffix", "-x", "produce")
    again = AccessControl(runtime=secured.runtime, catalog=secured.catalog)
    with capture_logs() as logs:
        await again.start()
    assert "does not know" in logs[0]["event"]
    assert again.is_current
    assert not again.allows(ALICE, PRODUCE, Kind.TOPIC, "/s:t")
    assert again.allows(BOB, PRODUCE, Kind.TOPIC, "/s:t")
    await secured.set("group-suffix", "-x", None)
    assert secured.may(ALICE)


async def test_a_catalog_that_cannot_be_read_lets_nobody_in_until_it_can(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secured.set("stream", "/s", "u:alice")
    query = secured.catalog.query
    failures = 2

    async def failing(fn: Callable[[Any], Any]) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise CatalogFailed("the disk is away")
        return await query(fn)

    monkeypatch.setattr(catalog_loader, "READ_AGAIN_S", 0.01)
    monkeypatch.setattr(secured.catalog, "query", failing)
    fresh = AccessControl(runtime=secured.runtime, catalog=secured.catalog)
    await fresh.start()
    assert not fresh.allows(ALICE, PRODUCE, Kind.TOPIC, "/s:t")
    told = asyncio.Event()
    fresh.on_change(told.set)
    async with asyncio.timeout(20):
        await told.wait()
    assert fresh.allows(ALICE, PRODUCE, Kind.TOPIC, "/s:t")
