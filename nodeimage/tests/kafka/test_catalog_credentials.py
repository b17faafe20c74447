"""Credentials from the catalog, of users that exist and of users that do not."""

import asyncio
import sqlite3
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.users import AlterCredentials, Credential
from headrace.kafka import catalog_credentials
from headrace.kafka.catalog_credentials import AT_ONCE, CatalogCredentials
from headrace.node.parts import NodeParts
from headrace.security.sasl.scram_credential import ScramCredential
from kit.loop_time import passed_ms


async def test_a_users_record_is_that_of_the_catalog(broker: NodeParts) -> None:
    made = ScramCredential.made_of("a password", "SCRAM-SHA-512")
    told = Credential("alice", made.mechanism, made.salt, made.stored_key, made.server_key, made.iterations)
    await broker.catalog.submit(AlterCredentials(deletions=[], upserts=[told], now=Millis(1)))
    credentials = CatalogCredentials(catalog=broker.catalog, secret="secret")
    assert await credentials.scram("alice", "SCRAM-SHA-512") == made
    assert await credentials.scram("alice", "SCRAM-SHA-256") is None
    assert await credentials.scram("bob", "SCRAM-SHA-512") is None


def test_the_salt_of_others_comes_from_the_clusters_secret(broker: NodeParts) -> None:
    keys = [CatalogCredentials(catalog=broker.catalog, secret=each).unknown_salt_key for each in ("one", "one", "two")]
    assert keys[0] == keys[1] != keys[2]
    assert b"one" not in keys[0]


class Slow:
    """A catalog whose look-ups wait until they are released."""

    def __init__(self) -> None:
        self.under_way = 0
        self.go = asyncio.Event()

    async def query(self, _look: Any) -> None:
        self.under_way += 1
        await self.go.wait()


async def test_few_look_ups_are_under_way_at_once() -> None:
    catalog: Any = Slow()
    credentials = CatalogCredentials(catalog=catalog, secret="secret")
    waiting = [asyncio.ensure_future(credentials.scram("a", "SCRAM-SHA-256")) for _ in range(3 * AT_ONCE)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert catalog.under_way == AT_ONCE
    catalog.go.set()
    assert await asyncio.gather(*waiting) == [None] * 3 * AT_ONCE


async def test_no_look_up_is_answered_before_its_time(broker: NodeParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_credentials, "MIN_S", 0.1)
    began = asyncio.get_running_loop().time()
    await CatalogCredentials(catalog=broker.catalog, secret="s").scram("nobody", "SCRAM-SHA-256")
    assert passed_ms(began) >= 100


async def test_waiting_for_others_look_ups_does_not_shorten_the_time_of_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog_credentials, "MIN_S", 0.1)
    catalog: Any = Slow()
    credentials = CatalogCredentials(catalog=catalog, secret="s")
    waiting = [asyncio.ensure_future(credentials.scram("a", "SCRAM-SHA-256")) for _ in range(AT_ONCE + 1)]
    await asyncio.sleep(0.15)
    began = asyncio.get_running_loop().time()
    catalog.go.set()
    await waiting[-1]
    assert passed_ms(began) >= 100
    await asyncio.gather(*waiting)


async def test_a_catalog_that_cannot_be_read_is_told_as_that() -> None:
    class Damaged:
        async def query(self, _look: Any) -> None:
            raise sqlite3.DatabaseError("database disk image is malformed")

    damaged: Any = Damaged()
    with pytest.raises(KafkaError) as refused:
        await CatalogCredentials(catalog=damaged, secret="s").scram("alice", "SCRAM-SHA-256")
    assert refused.value.code is Code.BROKER_NOT_AVAILABLE
