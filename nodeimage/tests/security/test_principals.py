"""Principals of clients."""

import pytest

from headrace.security.principals import (
    NAME_LIMIT,
    NOBODY,
    Mechanism,
    NameRefused,
    Principal,
    check_name,
    check_user_name,
    user_of,
)


@pytest.mark.parametrize("name", ["a", "alice", "CN=a,OU=b", "a b", "Jörg", "😀", "a:b", "x" * NAME_LIMIT, "anonymous"])
def test_names_that_somebody_can_have(name: str) -> None:
    check_user_name(name)
    principal = Principal(name, Mechanism.SCRAM_SHA_256)
    assert str(principal) == "User:" + name
    assert user_of(str(principal)) == name
    assert not principal.is_anonymous


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "the user name '' is empty"),
        ("x" * 250, "has 250 characters, at most 249 are allowed"),
        ("a\nb", r"the user name 'a\\nb' has the unprintable character U\+000A"),
        ("a\0", r"U\+0000"),
        ("\x7f", r"U\+007F"),
        ("a\x85b", r"U\+0085"),
        ("\u202ebob", r"U\+202E"),
        ("a\u2028", r"U\+2028"),
        ("\ud800", r"U\+D800"),
        (" a", "begins or ends with a blank"),
        ("a\u3000", "begins or ends with a blank"),
        ("*", "means everybody in Kafka's ACLs"),
        ("ANONYMOUS", "is kept for clients that have proved nothing"),
    ],
)
def test_names_that_nobody_can_have(name: str, fault: str) -> None:
    with pytest.raises(NameRefused, match=fault):
        check_user_name(name)
    with pytest.raises(NameRefused, match=fault) as caught:
        Principal(name, Mechanism.OAUTHBEARER)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


def test_a_group_is_called_one_in_what_is_said_of_it() -> None:
    with pytest.raises(NameRefused, match="the group name ' ' begins or ends"):
        check_name(" ", kind="group")


def test_only_a_client_that_has_proved_nothing_is_anonymous() -> None:
    assert NOBODY.is_anonymous
    assert str(NOBODY) == "User:ANONYMOUS"
    assert user_of("User:ANONYMOUS") == NOBODY.user
    with pytest.raises(NameRefused):
        Principal("ANONYMOUS", Mechanism.CERTIFICATE)
    with pytest.raises(NameRefused):
        Principal("alice", Mechanism.NONE)


@pytest.mark.parametrize("principal", ["alice", "Group:ops", "user:alice", "User:", "User:*", "", "User: alice"])
def test_what_is_no_user_in_kafkas_words_is_refused(principal: str) -> None:
    with pytest.raises(NameRefused):
        user_of(principal)


def test_a_principal_ends_when_its_proof_does() -> None:
    assert not Principal("alice", Mechanism.PLAIN).has_expired(1e12)
    token = Principal("alice", Mechanism.OAUTHBEARER, frozenset({"ops"}), until=100.0)
    assert not token.has_expired(99.9)
    assert token.has_expired(100.0)


def test_a_principal_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        NOBODY.user = "admin"  # type: ignore[misc]
