"""Admin calls on users: create, list, alter, delete; passwords are checked, salted, and never revealed."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.admin import users
from headrace.admin.users import NewPassword, NewUser, check_password
from headrace.base.errors import Code, KafkaError
from headrace.node.parts import NodeParts
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.security.scram_common import HASHES
from kit.access import principal
from kit.callers import PASSWORD, Callers

OTHER = "another secret 2"

Meanwhile = Callable[[str, dict[str, Any]], None]
"""Has another admin call run just before the next user is put."""


@pytest.fixture
def callers(broker: NodeParts) -> Callers:
    return Callers(broker)


async def fits(broker: NodeParts, user: str, password: str) -> list[bool]:
    """Whether a password proves a user, by each mechanism."""
    found = []
    for mechanism in HASHES:
        row = await broker.catalog.query(lambda reader, mechanism=mechanism: reader.users.credential(user, mechanism))
        assert row is not None
        credential = ScramCredential(
            salt=row.salt, stored_key=row.stored_key, server_key=row.server_key, iterations=row.iterations
        )
        found.append(credential.fits_password(password))
    return found


async def test_made_shown_altered_and_deleted(callers: Callers, broker: NodeParts) -> None:
    made = await callers.call("", "user.create", name="alice", password=PASSWORD, groups=["ops", "dev"])
    created = made.pop("created_ms")
    assert made == {
        "user": "alice",
        "groups": ["dev", "ops"],
        "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
        "not_applied": [],
        "warnings": [],
    }
    assert await fits(broker, "alice", PASSWORD) == [True, True]
    altered = await callers.call("", "user.alter", name="alice", groups=["sensors"])
    assert (altered["groups"], altered["created_ms"]) == (["sensors"], created)
    await callers.call("", "user.passwd", name="alice", password=OTHER)
    assert await fits(broker, "alice", OTHER) == [True, True]
    assert await fits(broker, "alice", PASSWORD) == [False, False]
    await callers.call("", "user.delete", name="alice")
    assert await callers.call("", "user.list") == []
    error = await callers.fails("", "user.show", name="alice")
    assert (error.code, "headrace user list" in str(error)) == (Code.RESOURCE_NOT_FOUND, True)


async def test_listed_in_pages(callers: Callers) -> None:
    for name in ("carol", "alice", "bob"):
        await callers.call("", "user.create", name=name)
    first = await callers.call("", "user.list", limit=2)
    rest = await callers.call("", "user.list", limit=2, after=first[-1]["user"])
    assert [each["user"] for each in [*first, *rest]] == ["alice", "bob", "carol"]
    assert first[0]["mechanisms"] == []
    assert (await callers.fails("", "user.list", limit=0)).code == Code.INVALID_REQUEST


async def test_one_that_exists_is_not_made_again_nor_gets_another_password(callers: Callers, broker: NodeParts) -> None:
    await callers.call("", "user.create", name="alice", password=PASSWORD)
    error = await callers.fails("", "user.create", name="alice", password=OTHER)
    assert (error.code, "headrace user passwd" in str(error)) == (Code.DUPLICATE_RESOURCE, True)
    kept = await callers.call("", "user.create", name="alice", password=OTHER, if_not_exists=True)
    assert kept["user"] == "alice"
    assert await fits(broker, "alice", PASSWORD) == [True, True]


async def test_one_that_was_made_half_gets_its_password_by_a_repeat(callers: Callers, broker: NodeParts) -> None:
    await callers.call("", "user.create", name="alice", groups=["ops"])
    await callers.call("", "user.create", name="alice", groups=["ops"], password=PASSWORD)
    assert await fits(broker, "alice", PASSWORD) == [True, True]


@pytest.fixture
def meanwhile(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    original = callers.parts.catalog.submit

    def run(method: str, params: dict[str, Any]) -> None:
        async def submit(command: object, **more: object) -> object:
            if isinstance(command, users.PutUser):
                monkeypatch.setattr(callers.parts.catalog, "submit", original)
                await callers.call("", method, **params)
            return await original(command, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(callers.parts.catalog, "submit", submit)

    return run


@pytest.mark.parametrize("password", [PASSWORD, None], ids=["with a password", "without"])
async def test_one_whom_another_call_makes_meanwhile_is_not_made_again(
    callers: Callers, broker: NodeParts, meanwhile: Meanwhile, password: str | None
) -> None:
    """Both calls succeeded, and the second password replaced the first."""
    meanwhile("user.create", {"name": "alice", "groups": ["ops"], "password": password})
    error = await callers.fails("", "user.create", name="alice", groups=["ops"], password=OTHER)
    assert (error.code, "headrace user passwd" in str(error)) == (Code.DUPLICATE_RESOURCE, True)
    mechanisms = (await callers.call("", "user.show", name="alice"))["mechanisms"]
    assert mechanisms == (list(HASHES) if password else [])
    if password:
        assert await fits(broker, "alice", password) == [True, True]


async def test_one_whom_another_call_makes_meanwhile_is_kept_where_it_may_exist(
    callers: Callers, broker: NodeParts, meanwhile: Meanwhile
) -> None:
    meanwhile("user.create", {"name": "alice", "password": PASSWORD})
    kept = await callers.call("", "user.create", name="alice", password=OTHER, if_not_exists=True)
    assert (kept["user"], kept["mechanisms"]) == ("alice", list(HASHES))
    assert await fits(broker, "alice", PASSWORD) == [True, True]


async def test_one_that_was_made_half_keeps_the_password_that_it_gets_meanwhile(
    callers: Callers, broker: NodeParts, meanwhile: Meanwhile
) -> None:
    await callers.call("", "user.create", name="alice")
    meanwhile("user.passwd", {"name": "alice", "password": PASSWORD})
    error = await callers.fails("", "user.create", name="alice", password=OTHER)
    assert error.code == Code.DUPLICATE_RESOURCE
    assert await fits(broker, "alice", PASSWORD) == [True, True]


@pytest.mark.parametrize("name", ["", "ANONYMOUS", "*", " a", "a\nb", "x" * 250])
async def test_a_name_that_nobody_can_have_is_refused(callers: Callers, name: str) -> None:
    assert (await callers.fails("", "user.create", name=name)).code == Code.INVALID_REQUEST
    if name != "ANONYMOUS":  # a group may have this name
        assert (await callers.fails("", "user.create", name="ok", groups=[name])).code == Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("password", "why"),
    [("short", "5 characters"), ("x" * 257, "257 characters"), ("two\nlines", "control"), ("Alice-the-1st", "name")],
)
async def test_a_password_that_none_can_be_is_refused_without_being_told(
    callers: Callers, password: str, why: str
) -> None:
    error = await callers.fails("", "user.create", name="alice-the-1ST", password=password)
    assert error.code == Code.UNACCEPTABLE_CREDENTIAL
    assert why in str(error)
    assert password not in str(error)
    assert await callers.call("", "user.list") == []


async def test_a_password_of_another_type_is_not_told(callers: Callers) -> None:
    error = await callers.fails("", "user.passwd", name="alice", password=1_234_567_890)
    assert "1234567890" not in str(error)


async def test_a_deleted_user_does_not_come_back_by_a_password_that_is_on_its_way(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await callers.secure()
    await callers.call("root", "user.create", name="bob", password=PASSWORD)
    original = callers.parts.catalog.submit

    async def submit(command: object, **more: object) -> object:
        if type(command).__name__ == "AlterCredentials":
            await original(users.DeleteUser(name="bob"))
        return await original(command, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(callers.parts.catalog, "submit", submit)
    error = await callers.fails("bob", "user.passwd", name="bob", password=OTHER)
    assert error.code == Code.RESOURCE_NOT_FOUND
    assert [each["user"] for each in await callers.call("root", "user.list")] == ["root"]


async def test_who_would_lose_the_cluster_by_groups_is_asked_to_say_so(callers: Callers) -> None:
    await callers.secure()
    await callers.call("root", "user.create", name="ann", password=PASSWORD, groups=["admins"])
    await callers.access("root", {"cluster": {"admin": "u:root | g:admins"}})
    error = await callers.fails("ann", "user.alter", name="ann", groups=[])
    assert (error.code, "force" in str(error)) == (Code.POLICY_VIOLATION, True)
    by_token = principal("ann", "admins")
    await callers.call(by_token, "user.alter", name="ann", groups=["admins", "ops"])
    await callers.call("ann", "user.alter", name="ann", groups=[], force=True)
    await callers.refused("ann", "user.list")
    assert (await callers.fails("root", "user.delete", name="root")).code == Code.POLICY_VIOLATION


def test_passwords_stand_in_no_repr() -> None:
    for params in (NewUser("alice", PASSWORD), NewPassword("alice", PASSWORD)):
        assert PASSWORD not in repr(params)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(NewPassword("a", PASSWORD)), type=NewPassword).name == "a"


def test_the_bounds_of_a_password() -> None:
    check_password("x" * 8, user="alice")
    check_password("é" * 256, user="alice")
    with pytest.raises(KafkaError):
        check_password("x" * 7, user="alice")
