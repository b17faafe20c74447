"""SCRAM credentials through Kafka's APIs: who may see and set them, what is refused, and what is stored."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kafka.admin
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.users import AlterCredentials
from headrace.kafka.scram_credentials import MAX_ALTERATIONS
from headrace.partitions import lookups
from headrace.partitions.lookups import submit_within
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.security.scram_common import salted_password
from headrace.wire.api_keys import ApiKey
from kit.secured_node import ROOT, SecuredNode

DESCRIBE, ALTER = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS
SALT = b"saltsaltsalt"
SECRET = "the-password-of-alice"


def upsert(name: str = "alice", mechanism: int = 1, **others: Any) -> dict[str, Any]:
    hash_name = {1: "sha256", 2: "sha512"}.get(mechanism, "sha256")
    salted = salted_password(hash_name, SECRET.encode(), SALT, 4096)
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": 4096,
        "salt": SALT,
        "salted_password": salted,
        **others,
    }


async def alter(
    node: SecuredNode, *upsertions: dict[str, Any], delete: tuple[tuple[str, int], ...] = (), user: str = ROOT
) -> dict[str, tuple[Code, str]]:
    deletions = [{"name": name, "mechanism": mechanism} for name, mechanism in delete]
    answer = await node.ask(user, ALTER, 0, {"deletions": deletions, "upsertions": upsertions})
    return {each.user: (Code(each.error_code), each.error_message or "") for each in answer.results}


async def described(node: SecuredNode, *names: str, user: str = ROOT) -> dict[str, Any]:
    users = [{"name": name} for name in names] if names else None
    answer = await node.ask(user, DESCRIBE, 0, {"users": users})
    assert answer.error_code == 0
    return {
        each.user: [(int(one.mechanism), one.iterations) for one in each.credential_infos]
        if not each.error_code
        else Code(each.error_code)
        for each in answer.results
    }


async def test_a_credential_is_made_replaced_and_deleted_and_the_user_stays(secured: SecuredNode) -> None:
    assert await described(secured) == {}
    assert await described(secured, "alice") == {"alice": Code.RESOURCE_NOT_FOUND}
    assert await alter(secured, upsert(), upsert(mechanism=2, iterations=8192)) == {"alice": (Code.NONE, "")}
    assert await described(secured) == {"alice": [(1, 4096), (2, 8192)]}
    row = await secured.parts.catalog.query(lambda reader: reader.users.credential("alice", "SCRAM-SHA-256"))
    assert row is not None
    assert (row.salt, len(row.stored_key), len(row.server_key)) == (SALT, 32, 32)
    assert upsert()["salted_password"] not in (row.stored_key, row.server_key)
    assert await alter(secured, upsert(iterations=16384), delete=(("alice", 2),)) == {"alice": (Code.NONE, "")}
    assert await described(secured, "alice", "bob") == {"alice": [(1, 16384)], "bob": Code.RESOURCE_NOT_FOUND}
    assert await alter(secured, delete=(("alice", 1),)) == {"alice": (Code.NONE, "")}
    assert await described(secured) == {}
    assert await secured.parts.catalog.query(lambda reader: reader.users.named("alice")) is not None


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        ({"iterations": 4095}, Code.UNACCEPTABLE_CREDENTIAL, "too few iterations (4095); 4096 to 16384"),
        ({"iterations": 16385}, Code.UNACCEPTABLE_CREDENTIAL, "too many iterations (16385)"),
        ({"iterations": -1}, Code.UNACCEPTABLE_CREDENTIAL, "too few"),
        ({"name": ""}, Code.UNACCEPTABLE_CREDENTIAL, "the user name is empty"),
        ({"name": "ANONYMOUS"}, Code.UNACCEPTABLE_CREDENTIAL, "kept for clients that have proved nothing"),
        ({"name": "a\nb"}, Code.UNACCEPTABLE_CREDENTIAL, "unprintable character"),
        ({"name": "a" * 250}, Code.UNACCEPTABLE_CREDENTIAL, "at most 249"),
        ({"mechanism": 0}, Code.UNSUPPORTED_SASL_MECHANISM, "SCRAM-SHA-256 (1) and SCRAM-SHA-512 (2)"),
        ({"mechanism": 3}, Code.UNSUPPORTED_SASL_MECHANISM, "no SCRAM mechanism 3"),
        ({"salt": b""}, Code.UNACCEPTABLE_CREDENTIAL, "a salt has 1 to 1024 bytes"),
        ({"salt": b"s" * 1025}, Code.UNACCEPTABLE_CREDENTIAL, "a salt has 1 to 1024 bytes"),
        ({"salted_password": b"short"}, Code.UNACCEPTABLE_CREDENTIAL, "the length of the mechanism's hash"),
    ],
)
async def test_what_cannot_be_a_credential_is_refused_by_name(
    secured: SecuredNode, wrong: dict[str, Any], code: Code, says: str
) -> None:
    name = wrong.get("name", "alice")
    found = await alter(secured, upsert(**wrong), upsert("bob"))
    assert found[name][0] is code
    assert says in found[name][1]
    assert found["bob"] == (Code.NONE, "")
    assert await described(secured) == {"bob": [(1, 4096)]}


async def test_of_a_user_with_one_refusal_nothing_is_done(secured: SecuredNode) -> None:
    await alter(secured, upsert())
    found = await alter(secured, upsert(mechanism=2), delete=(("alice", 2),))
    assert found["alice"][0] is Code.DUPLICATE_RESOURCE
    found = await alter(secured, upsert(iterations=8000), delete=(("alice", 2), ("bob", 1)))
    assert found == {
        "alice": (Code.RESOURCE_NOT_FOUND, "user 'alice' has no such credential"),
        "bob": (Code.RESOURCE_NOT_FOUND, "user 'bob' has no such credential"),
    }
    assert await described(secured) == {"alice": [(1, 4096)]}
    assert await described(secured, "alice", "alice") == {"alice": Code.DUPLICATE_RESOURCE}


async def test_administrators_alone_see_and_set_them_even_their_own(secured: SecuredNode) -> None:
    await alter(secured, upsert())
    answer = await secured.ask("alice", DESCRIBE, 0, {"users": [{"name": "alice"}]})
    assert (answer.error_code, answer.results) == (Code.CLUSTER_AUTHORIZATION_FAILED, ())
    found = await alter(secured, upsert(), upsert("bob"), user="alice")
    assert {name: code for name, (code, _) in found.items()} == dict.fromkeys(
        ("alice", "bob"), Code.CLUSTER_AUTHORIZATION_FAILED
    )
    assert await described(secured) == {"alice": [(1, 4096)]}


async def test_a_request_has_a_bound(secured: SecuredNode) -> None:
    found = await alter(secured, delete=tuple((f"u{index}", 1) for index in range(MAX_ALTERATIONS + 1)))
    assert {code for code, _ in found.values()} == {Code.INVALID_REQUEST}


async def test_the_audit_hears_of_each_user_and_of_no_secret(secured: SecuredNode) -> None:
    await alter(secured, upsert(), delete=(("bob", 1),))
    await alter(secured, upsert(), user="mallory")
    told = [(each["user"], each["action"], each["name"], each["allowed"]) for each in secured.told]
    assert told == [(ROOT, "users", "alice", True), ("mallory", "admin", "", False)]
    assert SECRET not in str(secured.told)
    assert repr(upsert()["salted_password"]) not in str(secured.told)


class Commands:
    """The commands that alterations submit: calls `before` ahead of each, with its number from 1 on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.before: Callable[[int], Awaitable[None]] | None = None
        monkeypatch.setattr(lookups, "submit_within", self._submit)

    async def _submit(self, catalog: Any, command: Any, *, timeout_ms: int) -> Any:
        self.count += 1
        if self.before is not None:
            await self.before(self.count)
        return await submit_within(catalog, command, timeout_ms=timeout_ms)


async def test_an_alteration_is_told_as_made_if_what_it_deletes_goes_concurrently(
    secured: SecuredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await alter(secured, upsert(mechanism=2), upsert("bob", mechanism=2))
    commands = Commands(monkeypatch)

    async def delete_concurrently(_: int) -> None:
        gone = [("alice", "SCRAM-SHA-512"), ("bob", "SCRAM-SHA-512")]
        await secured.parts.catalog.submit(AlterCredentials(gone, [], Millis(1)))

    commands.before = delete_concurrently
    secured.told.clear()
    found = await alter(secured, upsert(), delete=(("alice", 2), ("bob", 2)))
    assert found == {
        "alice": (Code.NONE, ""),
        "bob": (Code.RESOURCE_NOT_FOUND, "user 'bob' has no such credential"),
    }
    assert [(each["action"], each["name"]) for each in secured.told] == [("users", "alice")]
    assert await described(secured) == {"alice": [(1, 4096)]}


async def test_a_user_is_altered_by_one_command_wholly_or_not_at_all(
    secured: SecuredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("alice", "bob", "carol")
    await alter(secured, *(upsert(name, mechanism=2) for name in names))
    monkeypatch.setattr(lookups, "COMMAND_ITEMS", 3)
    commands = Commands(monkeypatch)

    async def fail_at_the_second(number: int) -> None:
        if number == 2:
            raise KafkaError(Code.REQUEST_TIMED_OUT, "not committed")

    commands.before = fail_at_the_second
    secured.told.clear()
    found = await alter(secured, *map(upsert, names), delete=tuple((name, 2) for name in names))
    late = (Code.REQUEST_TIMED_OUT, "not committed")
    assert found == {"alice": (Code.NONE, ""), "bob": late, "carol": late}
    assert commands.count == 2
    assert [(each["action"], each["name"]) for each in secured.told] == [("users", "alice")]
    assert await described(secured) == {"alice": [(1, 4096)], "bob": [(2, 4096)], "carol": [(2, 4096)]}


async def kept(node: SecuredNode, user: str, mechanism: str) -> ScramCredential:
    """The credentials of a user that the catalog stores."""
    row = await node.parts.catalog.query(lambda reader: reader.users.credential(user, mechanism))
    assert row is not None
    return ScramCredential(row.salt, row.stored_key, row.server_key, row.iterations)


async def test_librdkafkas_admin_client_sets_shows_and_deletes_them(secured: SecuredNode) -> None:
    await secured.access("cluster", "", "admin", f"u:{ROOT} | u:ANONYMOUS")
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{secured.parts.node.port}"})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)

    async def altered(alteration: Any) -> None:
        (future,) = admin.alter_user_scram_credentials([alteration]).values()
        await asyncio.to_thread(future.result, 30)

    await altered(UserScramCredentialUpsertion("alice", info, SECRET.encode()))
    assert (await kept(secured, "alice", "SCRAM-SHA-512")).fits_password(SECRET)
    found = await asyncio.to_thread(admin.describe_user_scram_credentials(["alice"])["alice"].result, 30)
    assert [(each.mechanism, each.iterations) for each in found.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_512, 8192)
    ]
    few = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 1000)
    with pytest.raises(KafkaException, match=r"too few iterations \(1000\)"):
        await altered(UserScramCredentialUpsertion("alice", few, SECRET.encode()))
    await altered(UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_512))
    with pytest.raises(KafkaException, match="user 'alice' has no such credential"):
        await asyncio.to_thread(admin.describe_user_scram_credentials(["alice"])["alice"].result, 30)


async def test_kafka_pythons_admin_client_sets_and_shows_them(secured: SecuredNode) -> None:
    await secured.access("cluster", "", "admin", f"u:{ROOT} | u:ANONYMOUS")

    def used() -> tuple[Any, Any]:
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{secured.parts.node.port}")
        try:
            made = kafka.admin.UserScramCredentialUpsertion(
                "alice", kafka.admin.ScramMechanism.SCRAM_SHA_256, SECRET, iterations=4096
            )
            return admin.alter_user_scram_credentials([made]), admin.describe_user_scram_credentials()
        finally:
            admin.close()

    done, found = await asyncio.to_thread(used)
    assert done == {"alice": None}
    assert [each["iterations"] for each in found["alice"]["credential_infos"]] == [4096]
    assert (await kept(secured, "alice", "SCRAM-SHA-256")).fits_password(SECRET)
