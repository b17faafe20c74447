"""Users and their credentials."""

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.catalog.rows import UserRow
from headrace.catalog.users import AlterCredentials, Credential, DeleteUser, PutUser
from kit.catalog import Tables
from kit.catalog_commands import NOW


def credential(user: str, mechanism: str = "SCRAM-SHA-256", salt: bytes = b"salt") -> Credential:
    return Credential(user, mechanism, salt, b"stored" * 5, b"server" * 5, 4096)


def test_a_user_is_made_altered_and_deleted(tables: Tables) -> None:
    make = PutUser("alice", ["ops", "dev", "ops"], NOW, create=True)
    outcome = tables.apply(make)
    assert outcome == (UserRow("alice", ("dev", "ops"), NOW), True)
    assert tables.apply(make) == (outcome.user, False)
    with pytest.raises(KafkaError) as refused:
        tables.apply(PutUser("alice", ["ops"], NOW, create=True))
    assert refused.value.code is Code.DUPLICATE_RESOURCE
    assert tables.reader.users.named("alice") == outcome.user
    assert tables.apply(PutUser("alice", [], NOW, create=False)).user.groups == ()
    tables.apply(AlterCredentials([], [credential("alice")], NOW))
    assert tables.apply(DeleteUser("alice")) == (UserRow("alice", (), NOW), True)
    assert tables.reader.users.named("alice") is None
    assert tables.reader.users.credential("alice", "SCRAM-SHA-256") is None
    for command in (DeleteUser("alice"), PutUser("alice", [], NOW, create=False)):
        with pytest.raises(KafkaError) as refused:
            tables.apply(command)
        assert refused.value.code is Code.RESOURCE_NOT_FOUND


def test_a_credential_makes_its_user_and_is_replaced_and_deleted_by_mechanism(tables: Tables) -> None:
    tables.apply(PutUser("alice", ["ops"], NOW, create=True))
    items = [credential("alice"), credential("bob"), credential("bob", "SCRAM-SHA-512")]
    assert tables.apply(AlterCredentials([], items, NOW)) == [Code.NONE] * 3
    assert [user.name for user in tables.reader.users.page()] == ["alice", "bob"]
    assert tables.reader.users.named("alice") == UserRow("alice", ("ops",), NOW), "its groups stay"
    assert tables.reader.users.mechanisms() == {
        "alice": {"SCRAM-SHA-256": 4096},
        "bob": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096},
    }
    changed = AlterCredentials([("bob", "SCRAM-SHA-512"), ("bob", "PLAIN")], [credential("bob", salt=b"other")], NOW)
    assert tables.apply(changed) == [Code.NONE, Code.RESOURCE_NOT_FOUND, Code.NONE]
    found = tables.reader.users.credential("bob", "SCRAM-SHA-256")
    assert found is not None
    assert (found.salt, found.stored_key, found.server_key) == (b"other", b"stored" * 5, b"server" * 5)
    assert tables.reader.users.credential("bob", "SCRAM-SHA-512") is None


def test_a_password_of_existing_users_alone_makes_nobody(tables: Tables) -> None:
    tables.apply(PutUser("alice", [], NOW, create=True))
    items = [credential("bob"), credential("alice")]
    done = tables.apply(AlterCredentials([], items, NOW, only_existing=True))
    assert done == [Code.RESOURCE_NOT_FOUND, Code.NONE]
    assert [user.name for user in tables.reader.users.page()] == ["alice"]
    assert tables.reader.users.credential("bob", "SCRAM-SHA-256") is None


def test_no_repr_shows_a_key(tables: Tables) -> None:
    tables.apply(command := AlterCredentials([], [credential("alice")], NOW))
    for shown in (repr(command), repr(tables.reader.users.credential("alice", "SCRAM-SHA-256"))):
        assert "alice" in shown
        assert not any(secret in shown for secret in ("salt=", "stored", "server"))
