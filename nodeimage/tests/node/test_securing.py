"""Turning security on: in which order, repeatedly, and when it has to wait."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.base.levels import Level
from headrace.catalog.access import CLUSTER, AccessItem, SecureCluster, SetAccess
from headrace.catalog.catalog import Catalog
from headrace.catalog.feature_level import RaiseLevel
from headrace.catalog.users import AlterCredentials
from headrace.node import Node, securing
from headrace.node.bootstrap_admin import BootstrapAdmin
from headrace.node.securing import NoAdministrator
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.store import features
from headrace.store.compare_and_set import change
from headrace.store.record_types import FEATURES_KEY, FeaturesRecord
from headrace.store.sqlite import SqliteStore
from kit.parts import node, options
from kit.patience import PATIENCE

__all__ = ["node"]

ADMIN = BootstrapAdmin("admin", "a password of some length")


@pytest.fixture
def executor() -> Any:
    with ThreadPoolExecutor(1) as made:
        yield made


async def state(catalog: Catalog) -> tuple[bool, list[str], list[str]]:
    """Whether the cluster is secure, its administrator expressions, and its users."""
    return await catalog.query(
        lambda reader: (
            reader.access.is_secured(),
            [row.expression for row in reader.access.all() if row.kind == CLUSTER],
            [user.name for user in reader.users.page()],
        )
    )


async def credential(catalog: Catalog, user: str, mechanism: str) -> ScramCredential | None:
    row = await catalog.query(lambda reader: reader.users.credential(user, mechanism))
    return row and ScramCredential(row.salt, row.stored_key, row.server_key, row.iterations)


async def test_the_administrator_is_made_with_both_mechanisms(node: Node, executor: Any) -> None:
    catalog = node.catalog
    await securing.ensure_admin(catalog, ADMIN, executor=executor, now=Millis(1))
    assert await state(catalog) == (False, ["u:admin"], ["admin"])
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        found = await credential(catalog, "admin", mechanism)
        assert found is not None
        assert found.fits_password(ADMIN.password)
    await securing.secure(catalog)
    assert await state(catalog) == (True, ["u:admin"], ["admin"])


async def test_a_user_and_an_administrator_that_are_there_stay(node: Node, executor: Any) -> None:
    catalog = node.catalog
    item = AccessItem(kind=CLUSTER, object="", permission="admin", expression="u:root")
    await catalog.submit(SetAccess(items=[item], now=Millis(1)))
    await securing.ensure_admin(catalog, ADMIN, executor=executor, now=Millis(1))
    before = await credential(catalog, "admin", "SCRAM-SHA-256")
    other = BootstrapAdmin("admin", "another password, of the same user")
    await securing.ensure_admin(catalog, other, executor=executor, now=Millis(2))
    assert await credential(catalog, "admin", "SCRAM-SHA-256") == before
    assert await state(catalog) == (False, ["u:root"], ["admin"])


async def test_an_administrator_who_is_made_meanwhile_stays(
    node: Node, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node has the same options, and an administrator has already given the administration to a group."""
    catalog, submit = node.catalog, node.catalog.submit

    async def later(command: Any, **how: Any) -> Any:
        if isinstance(command, SetAccess):
            item = AccessItem(kind=CLUSTER, object="", permission="admin", expression="g:admins")
            await submit(SetAccess(items=[item], now=Millis(1)))
        return await submit(command, **how)

    monkeypatch.setattr(catalog, "submit", later)
    await securing.ensure_admin(catalog, ADMIN, executor=executor, now=Millis(2))
    assert (await state(catalog))[1] == ["g:admins"]


async def test_a_cluster_without_an_administrator_is_not_closed(node: Node) -> None:
    with pytest.raises(NoAdministrator, match="--bootstrap-admin FILE"):
        await securing.secure(node.catalog)
    item = AccessItem(kind=CLUSTER, object="", permission="admin", expression="")
    await node.catalog.submit(SetAccess(items=[item], now=Millis(1)))
    with pytest.raises(NoAdministrator):
        await securing.secure(node.catalog)
    assert (await state(node.catalog))[0] is False


async def test_after_a_crash_between_any_two_commands_the_next_start_goes_on(
    node: Node, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, submit, seen = node.catalog, node.catalog.submit, []

    async def crashes(command: Any, **how: Any) -> Any:
        outcome = await submit(command, **how)
        if isinstance(command, RaiseLevel):  # submitted by the node itself
            return outcome
        seen.append(type(command))
        raise KafkaError(Code.REQUEST_TIMED_OUT, "the node ended here")

    async def start() -> None:
        await securing.ensure_admin(catalog, ADMIN, executor=executor, now=Millis(1))
        await securing.secure(catalog)

    monkeypatch.setattr(catalog, "submit", crashes)
    for _ in range(3):
        secured, admins, _ = await state(catalog)
        assert not secured or admins
        with pytest.raises(KafkaError, match="ended here"):
            await start()
    assert seen == [AlterCredentials, SetAccess, SecureCluster]
    await start()
    assert await state(catalog) == (True, ["u:admin"], ["admin"])


async def test_a_leader_that_has_not_heard_of_the_level_is_asked_again(
    node: Node, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, refused = node.catalog.submit, []

    async def later(command: Any) -> Any:
        if len(refused) < 2:
            refused.append(command)
            raise KafkaError(Code.UNSUPPORTED_VERSION, "belongs to feature level 2")
        return await submit(command)

    monkeypatch.setattr(securing, "LOOK_S", 0.001)
    monkeypatch.setattr(node.catalog, "submit", later)
    await securing.ensure_admin(node.catalog, ADMIN, executor=executor, now=Millis(1))
    assert len(refused) == 2
    assert await state(node.catalog) == (False, ["u:admin"], ["admin"])


async def test_the_level_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(securing, "LOOK_S", 0.001)
    level = Level.FENCED
    waiting = asyncio.ensure_future(securing.until_level(lambda asked: asked <= level))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    level = Level.SECURED
    async with asyncio.timeout(10 * PATIENCE):
        await waiting


@pytest.fixture
async def secure_node(tmp_path: Path) -> AsyncIterator[Node]:
    file = tmp_path / "admin.toml"
    file.write_text(f'user = "admin"\npassword = "{ADMIN.password}"\n')
    made = Node(replace(options(tmp_path), secure=True, bootstrap_admin=file))
    await made.start()
    yield made
    await made.stop()


async def test_a_node_is_secure_before_it_serves(secure_node: Node) -> None:
    assert await state(secure_node.catalog) == (True, ["u:admin"], ["admin"])
    assert secure_node.parts.authorizer.is_on


async def test_a_node_of_a_lower_level_serves_nobody_until_the_level_is_raised(tmp_path: Path) -> None:
    file = tmp_path / "admin.toml"
    file.write_text(f'user = "admin"\npassword = "{ADMIN.password}"\n')
    told = replace(options(tmp_path), secure=True, bootstrap_admin=file)
    assert isinstance(told.store, Path)
    store = SqliteStore(told.store)
    change(store, FEATURES_KEY, FeaturesRecord, lambda present: FeaturesRecord(level=Level.FENCED, epoch=1))
    made = Node(told)
    starting = asyncio.ensure_future(made.start())
    try:
        async with asyncio.timeout(30 * PATIENCE):
            while "feature level 2, which --secure" not in made._why_not_ready():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not made._acceptors
            features.ask_for(store, Level.SECURED)
            await starting
        assert await state(made.catalog) == (True, ["u:admin"], ["admin"])
    finally:
        starting.cancel()
        await made.stop()
        store.close()
