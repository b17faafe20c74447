"""Links in both directions between two secured clusters, over TLS: as which user the source pulls from here."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.reader import Reader
from headrace.catalog.rows import LinkRow
from headrace.kafka_client.errors import SourceRefuses, SourceUnreachable
from headrace.links import reverse_link
from headrace.links.config import unseal
from headrace.links.reverse_link import ReverseLinks
from kit.callers import Callers, Refusal
from kit.certificates import Certificates
from kit.clients import until
from kit.one_node import OneNode
from kit.sasl_node import SaslNode, running

SOUTHERN, NORTHERN = "password of the southern link", "password of the northern link"
"""Passwords of `southern`, the south's user in the north, and of `northern`, the north's user in the south."""


class Cluster:
    """A secured cluster of one node."""

    def __init__(self, node: SaslNode) -> None:
        self._node = node
        self._callers = Callers(node.node.parts)
        self._one = OneNode(node.node)
        self._run = node.run
        self._run(self._callers.secure())

    def call(self, method: str, **params: Any) -> Any:
        """Make an admin call as the cluster's administrator."""
        return self._run(self._callers.call("root", method, **params))

    def access(self, what: str, **expressions: str) -> None:
        self._run(self._callers.access("root", {what: dict(expressions)}))

    def append(self, stream: str, topic: str, value: bytes) -> None:
        self._run(self._one.append(topic, value, stream=stream))

    def has(self, stream: str, topic: str, *values: bytes) -> bool:
        if self._run(self._one.row(topic, stream)) is None:
            return False
        return bool(self._run(self._one.values(topic, stream=stream)) == list(values))

    def links_of(self, stream: str) -> list[LinkRow]:
        def look(reader: Reader) -> list[LinkRow]:
            return reader.links.all(stream)

        return list(self._run(self._node.node.catalog.query(look)))

    def credentials(self, stream: str) -> dict[str, str]:
        """The credentials of its only link."""
        (link,) = self.links_of(stream)
        return unseal(link.config.credentials, self._node.node.links.secret)

    def user(self, name: str, password: str) -> None:
        self._node.set_password(name, password)

    def bootstrap(self, listener: str = "tls") -> list[str]:
        return [self._node.bootstrap(listener)]

    @property
    def open_port(self) -> list[str]:
        return [self._one.bootstrap]


def login(user: str, password: str, certificates: Certificates) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.pem": " ".join(certificates.text("ca.pem").split()),  # on one line, as in a properties file
    }


@dataclass
class Pair:
    """Two clusters, and a stream that both have; links are created in the south."""

    north: Cluster
    south: Cluster
    certificates: Certificates
    stream: str

    def fields(self, **params: Any) -> dict[str, Any]:
        """The parameters of a link in both directions."""
        forward = {
            "name": self.stream[1:],
            "source": self.north.bootstrap(),
            "source_stream": self.stream,
            "stream": self.stream,
            "direction": "both",
            "bootstrap": self.south.bootstrap(),
            "credentials": login("southern", SOUTHERN, self.certificates),
        }
        return {**forward, **params}

    def create(self, **params: Any) -> Any:
        return self.south.call("link.create", **self.fields(**params))

    def alter(self, **params: Any) -> Any:
        return self.south.call("link.alter", name=self.stream[1:], **params)

    def reverse(self, password: str = NORTHERN) -> dict[str, str]:
        return login("northern", password, self.certificates)

    def flows(self, number: int) -> None:
        """Check that a record of each cluster reaches the other."""
        here, there = f"of-south-{number}", f"of-north-{number}"
        self.south.append(self.stream, here, b"s")
        self.north.append(self.stream, there, b"n")
        until(lambda: self.north.has(self.stream, here, b"s"), within=60)
        until(lambda: self.south.has(self.stream, there, b"n"), within=60)

    def none_made(self) -> bool:
        return self.north.links_of(self.stream) == self.south.links_of(self.stream) == []


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[tuple[Cluster, Cluster]]:
    def folder(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    with running(folder("north"), certificates) as northern, running(folder("south"), certificates) as southern:
        north, south = Cluster(northern), Cluster(southern)
        north.user("southern", SOUTHERN)
        south.user("northern", NORTHERN)
        yield north, south


@pytest.fixture
def pair(clusters: tuple[Cluster, Cluster], certificates: Certificates) -> Iterator[Pair]:
    made = Pair(*clusters, certificates, f"/s{uuid.uuid4().hex[:8]}")
    for cluster in clusters:
        cluster.call("stream.create", path=made.stream)
    made.north.access(made.stream, copy="u:southern", admin="u:southern")
    made.south.access(made.stream, copy="u:northern")
    yield made
    for cluster in clusters:
        for link in cluster.links_of(made.stream):
            cluster.call("link.delete", name=link.name)


def test_the_source_pulls_by_the_credentials_that_are_given_and_nobody_is_shown_them(pair: Pair) -> None:
    shown = pair.create(reverse_credentials=pair.reverse())
    pair.flows(1)
    theirs = pair.north.call("link.show", name=pair.stream[1:])
    assert (theirs["source"], theirs["direction"]) == (pair.south.bootstrap(), "pull")
    assert theirs["credentials"] == sorted(pair.reverse())
    assert pair.north.credentials(pair.stream) == pair.reverse()
    ours = pair.south.call("link.show", name=pair.stream[1:])
    assert not any(NORTHERN in str(each) or SOUTHERN in str(each) for each in (shown, theirs, ours))
    again = pair.create(reverse_credentials=pair.reverse(), if_not_exists=True)
    assert again["name"] == shown["name"]


def test_without_them_a_secured_cluster_makes_no_link_and_says_what_to_give(pair: Pair) -> None:
    with pytest.raises(Refusal, match=r"credentials of a user with `copy` on /s.*--reverse-credentials") as refused:
        pair.create()
    assert refused.value.code is Code.INVALID_REQUEST
    assert pair.none_made()
    pair.create(direction="pull", bootstrap=[])
    with pytest.raises(Refusal, match="--reverse-credentials"):
        pair.alter(direction="both", bootstrap=pair.south.bootstrap())
    with pytest.raises(Refusal, match="go with direction both"):
        pair.alter(reverse_credentials=pair.reverse())
    assert pair.north.links_of(pair.stream) == []
    pair.alter(direction="both", bootstrap=pair.south.bootstrap(), reverse_credentials=pair.reverse())
    pair.flows(1)


def test_a_user_who_may_not_copy_makes_no_link(pair: Pair) -> None:
    for more, says in (
        ({"reverse_credentials": pair.reverse("a wrong password")}, "authentication failed"),
        ({"reverse_credentials": {}, "bootstrap": pair.south.open_port}, "ANONYMOUS lacks copy"),
        (
            {"reverse_credentials": {"sasl.pasword": "x"}},
            "credentials of the reverse link: sasl.pasword is not a security property",
        ),
    ):
        with pytest.raises(Refusal, match=says) as refused:
            pair.create(**more)
        assert "a wrong password" not in str(refused.value)
    pair.south.access(pair.stream, copy="")
    with pytest.raises(Refusal, match=f"User:northern lacks copy on stream {pair.stream}"):
        pair.create(reverse_credentials=pair.reverse())
    assert pair.none_made()


def test_files_of_the_sources_nodes_are_for_its_administrators(pair: Pair) -> None:
    named = {**pair.reverse(), "ssl.ca.location": pair.certificates.path("ca.pem")}
    del named["ssl.ca.pem"]
    with pytest.raises(Refusal, match=r"ssl\.ca\.location: only administrators of the cluster may") as refused:
        pair.create(reverse_credentials=named)
    assert refused.value.is_forbidden
    assert pair.none_made()


def test_they_change_as_those_of_the_link_itself_do(pair: Pair) -> None:
    pair.create(reverse_credentials=pair.reverse())
    pair.flows(1)
    with pytest.raises(Refusal, match="no link was made or changed"):
        pair.alter(reverse_credentials=pair.reverse("not yet the password"))
    assert pair.north.credentials(pair.stream) == pair.reverse()
    pair.south.user("northern", "not yet the password")
    try:
        pair.alter(reverse_credentials=pair.reverse("not yet the password"))
        assert pair.north.credentials(pair.stream) == pair.reverse("not yet the password")
        pair.flows(2)
    finally:
        pair.south.user("northern", NORTHERN)
    with pytest.raises(Refusal, match=f"pull from here by {pair.south.bootstrap('plain')[0]}: give it"):
        pair.alter(bootstrap=pair.south.bootstrap("plain"))
    clear = {name: value for name, value in pair.reverse().items() if name != "ssl.ca.pem"}
    clear["security.protocol"] = "SASL_PLAINTEXT"
    pair.alter(bootstrap=pair.south.bootstrap("plain"), reverse_credentials=clear)
    (theirs,) = pair.north.links_of(pair.stream)
    assert theirs.config.source == pair.south.bootstrap("plain")
    pair.flows(3)


def test_where_security_is_off_none_are_needed() -> None:
    config = LinkConfig(["north:1"], "/s", direction="both", bootstrap=["south:1"])
    open_cluster = ReverseLinks(secret="x", is_secured=lambda: False)
    open_cluster.check("/s", config, None)
    open_cluster.check("/s", config, {"security.protocol": "SSL"})
    secured = ReverseLinks(secret="x", is_secured=lambda: True)
    secured.check("/s", config, {})
    secured.check("/s", config, None, before=config)
    with pytest.raises(KafkaError, match="by south:1: give it"):
        secured.check("/s", config, None)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (SourceRefuses("wrong password"), "no link was made or changed: wrong password"),
        (SourceUnreachable("north:1 did not answer"), "made or changed here.* repeat this.*: north:1 did not answer"),
    ],
)
async def test_a_source_that_cannot_be_asked_for_the_link_is_told_with_what_has_happened_here(
    monkeypatch: pytest.MonkeyPatch, error: HeadraceError, says: str
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(reverse_link, "call_source", fail)
    config = LinkConfig(["north:1"], "/s", direction="both", bootstrap=["south:1"])
    links = ReverseLinks(secret="x", is_secured=lambda: False)
    with pytest.raises(KafkaError, match=says) as made:
        await links.make("l", "/s", config, None)
    assert made.value.code is error.code
    with pytest.raises(KafkaError, match=says):
        await links.change("l", config, msgspec.structs.replace(config, topics=["a"]), None)
