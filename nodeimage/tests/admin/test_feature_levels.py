"""The cluster's feature level as Kafka's tools and `headrace features` change it, through bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Code
from headrace.base.levels import FEATURE, NEWEST
from headrace.kafka.connection import Connection
from headrace.kafka_client.blocking_client import BrokerConnection
from headrace.node.parts import NodeParts
from headrace.store.records import FEATURES_KEY, FeaturesRecord
from headrace.store.sqlite import SqliteStore
from headrace.wire import generic_codec
from headrace.wire.admin_call import encode_admin_request
from headrace.wire.api_keys import ApiKey

Ask = Callable[..., Awaitable[Any]]
UPGRADE, SAFE, UNSAFE = 1, 2, 3


@pytest.fixture(autouse=True)
def found_at_0(tmp_path: Path) -> None:
    """Put the cluster at level 0 before the node starts; it stays there unless a higher level is requested."""
    store = SqliteStore(tmp_path / "cluster.sqlite")
    store.put(FEATURES_KEY, msgspec.json.encode(FeaturesRecord(wait_s=1e9)), None)
    store.close()


@pytest.fixture
def update(ask: Ask) -> Callable[..., Awaitable[Any]]:
    """Calls UpdateFeatures with (feature, level, upgrade type)."""

    async def updated(*updates: tuple[str, int, int], version: int = 1, **fields: Any) -> Any:
        rows = [{"feature": name, "max_version_level": level, "upgrade_type": type} for name, level, type in updates]
        return await ask(ApiKey.UPDATE_FEATURES, version, {"timeout": 20_000, "feature_updates": rows, **fields})

    return updated


@pytest.fixture
def admin(broker: NodeParts) -> Callable[..., Awaitable[Any]]:
    """Makes one of Headrace's own calls; returns (error, result)."""

    async def called(method: str, **params: Any) -> tuple[int, Any]:
        body = encode_admin_request(method, params)
        answer = msgspec.msgpack.decode(await broker.admin.handle(body, Connection(broker.dispatcher)))
        return answer["error"], answer["result"] if not answer["error"] else answer["message"]

    return called


def api_versions(port: int) -> bytes:
    """The answer to a request of version 4, over a socket."""
    with BrokerConnection("127.0.0.1", port) as connection:
        asked = {"client_software_name": "a", "client_software_version": "1"}
        return bytes(
            connection.call(ApiKey.API_VERSIONS, 4, generic_codec.encode_request(ApiKey.API_VERSIONS, 4, asked))
        )


async def level(admin: Any) -> int:
    _, shown = await admin("features.show")
    return int(shown["level"])


@pytest.mark.parametrize("version", [1, 2])
async def test_an_upgrade_raises_the_level_and_the_epoch(
    update: Any, admin: Any, broker: NodeParts, version: int
) -> None:
    _, before = await admin("features.show")
    assert (before["level"], before["supported_by_all"]) == (0, NEWEST)
    answer = await update((FEATURE, NEWEST, UPGRADE), version=version)
    assert answer.error_code == 0
    if version < 2:
        assert [(each.feature, each.error_code) for each in answer.results] == [(FEATURE, 0)]
    _, after = await admin("features.show")
    assert (after["level"], after["wanted"], after["raising"]) == (NEWEST, None, None)
    assert after["epoch"] > before["epoch"]
    told = generic_codec.decode_response(
        ApiKey.API_VERSIONS, 4, await asyncio.to_thread(api_versions, broker.node.port)
    )
    assert [(each.name, each.max_version_level) for each in told.finalized_features] == [(FEATURE, NEWEST)]
    assert told.finalized_features_epoch == after["epoch"]

    assert (await update((FEATURE, NEWEST, UPGRADE), version=version)).error_code == 0
    assert (await admin("features.show"))[1] == after, "it was so before"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("name", "wanted", "type", "code", "said"),
    [
        (FEATURE, NEWEST + 1, UPGRADE, Code.INVALID_UPDATE_VERSION, "this version supports"),
        (FEATURE, 32767, UPGRADE, Code.INVALID_UPDATE_VERSION, "this version supports"),
        (FEATURE, -1, UPGRADE, Code.INVALID_UPDATE_VERSION, "but an upgrade was requested"),
        (FEATURE, -1, SAFE, Code.INVALID_UPDATE_VERSION, "a safe downgrade is not possible"),
        (FEATURE, -1, UNSAFE, Code.INVALID_UPDATE_VERSION, "would lose records"),
        (FEATURE, NEWEST, SAFE, Code.INVALID_UPDATE_VERSION, "but a downgrade was requested"),
        (FEATURE, NEWEST, 0, Code.INVALID_REQUEST, "upgrade type 0"),
        (FEATURE, NEWEST, 9, Code.INVALID_REQUEST, "upgrade type 9"),
        ("metadata.version", 7, UPGRADE, Code.INVALID_UPDATE_VERSION, "there is no feature 'metadata.version'"),
        ("x" * 30_000, 7, UPGRADE, Code.INVALID_UPDATE_VERSION, "there is no feature"),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    update: Any, admin: Any, version: int, name: str, wanted: int, type: int, code: Code, said: str
) -> None:
    answer = await update((name, wanted, type), version=version)
    if version < 2:
        ((found, message),) = [(each.error_code, each.error_message) for each in answer.results]
    else:
        found, message = answer.error_code, answer.error_message
    assert found == code
    assert said in message
    assert len(message) < 500
    assert await level(admin) == 0


@pytest.mark.parametrize("version", [1, 2])
async def test_of_two_updates_none_is_made_if_one_cannot_be(update: Any, admin: Any, version: int) -> None:
    answer = await update((FEATURE, NEWEST, UPGRADE), ("group.version", 1, UPGRADE), version=version)
    if version < 2:
        assert {each.feature: bool(each.error_code) for each in answer.results}["group.version"]
    else:
        assert answer.error_code == Code.INVALID_UPDATE_VERSION
    assert await level(admin) == 0


async def test_who_only_asks_whether_it_could_be_changes_nothing(update: Any, admin: Any) -> None:
    assert (await update((FEATURE, NEWEST, UPGRADE), validate_only=True)).error_code == 0
    assert await level(admin) == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
async def test_who_does_not_wait_is_answered_at_once(update: Any, admin: Any, timeout_ms: int) -> None:
    assert (await update((FEATURE, NEWEST, UPGRADE), timeout=timeout_ms)).error_code == 0
    _, shown = await admin("features.upgrade")
    assert shown["level"] == NEWEST, "it comes nevertheless"


async def test_a_hold_keeps_it_down_whoever_asks(update: Any, admin: Any) -> None:
    error, shown = await admin("features.hold")
    assert (error, shown["held_at"]) == (0, 0)
    (row,) = (await update((FEATURE, NEWEST, UPGRADE))).results
    assert row.error_code == Code.FEATURE_UPDATE_FAILED
    assert "held at 0" in row.error_message
    assert (await admin("features.upgrade"))[0] == Code.FEATURE_UPDATE_FAILED
    assert (await admin("features.hold", off=True))[1]["held_at"] is None
    assert (await admin("features.upgrade"))[1]["level"] == NEWEST
    error, message = await admin("features.hold", level=0)
    assert error == Code.INVALID_UPDATE_VERSION
    assert "not lowered" in message


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("features.upgrade", {"level": -1}),
        ("features.upgrade", {"level": "1"}),
        ("features.upgrade", {"level": 2**40}),
        ("features.hold", {"level": 1, "off": True}),
        ("features.hold", {"level": -5}),
        ("features.wait", {"wait_s": -1}),
        ("features.wait", {"wait_s": float("inf")}),
        ("features.wait", {}),
    ],
)
async def test_bad_parameters_are_refused(admin: Any, method: str, params: dict[str, Any]) -> None:
    error, message = await admin(method, **params)
    assert error in (Code.INVALID_REQUEST, Code.INVALID_UPDATE_VERSION)
    assert "\n" not in message
    assert await level(admin) == 0


async def test_it_is_raised_by_itself_after_its_wait(admin: Any, broker: NodeParts) -> None:
    assert (await admin("features.wait", wait_s=0))[1]["raised_by_itself_after_s"] == 0
    _, shown = await admin("features.upgrade", wait_s=30)
    assert shown["level"] == NEWEST
