"""Messages when there is no cluster, or none that answers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli import connect
from headrace.cli.connect import ask_each, check_access, connected_to
from headrace.cli.target import Target, plain
from headrace.kafka_client.blocking_client import Access
from headrace.kafka_client.errors import SourceRefuses
from headrace.security.client_security import Security
from kit.certificates import Certificates, certificates
from kit.client_calls import server_context
from kit.fake_kafka import FakeKafka

__all__ = ["certificates"]

Headrace = Callable[..., Any]


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("stream", "list"),
        ("topic", "create", "/a:b"),
        ("produce", "/a:b", "--value", "x"),
        ("consume", "/a:b"),
        ("groups",),
        ("chain", "/a:b"),
        ("scrub",),
        ("bench",),
        ("node", "list"),
        ("node", "add"),
        ("node", "start", "1"),
        ("node", "drain", "1"),
        ("node", "remove", "1"),
        ("balance",),
        ("volume", "list"),
        ("containers",),
        ("recover-unclean", "2"),
    ],
)
def test_without_a_cluster_every_command_says_how_to_start_one(headrace: Headrace, arguments: tuple[str, ...]) -> None:
    assert "`headrace up`" in headrace(*arguments).refused()


def test_a_cluster_that_does_not_answer_is_named(headrace: Headrace) -> None:
    assert "127.0.0.1:1" in headrace("status", "--bootstrap", "127.0.0.1:1").refused()
    assert "HOST:PORT" in headrace("status", "--bootstrap", "host:port").refused()


async def test_what_wants_security_is_told_before_librdkafka_tries_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "AGAIN_S", 0.0)
    ended = []

    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        ended.append(True)
        writer.close()

    async with await asyncio.start_server(end, "127.0.0.1", 0) as server, FakeKafka() as sound:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(SourceRefuses, match="does it require TLS or a user"):
            await asyncio.to_thread(check_access, plain(address))
        assert len(ended) == 2, "once more, as a node that stops ends its connections too"
        await asyncio.to_thread(check_access, plain(f"{address},127.0.0.1:{sound.port}"))
    await asyncio.to_thread(check_access, plain("127.0.0.1:1"))


async def test_what_is_refused_is_told_at_once(certificates: Certificates) -> None:
    untrusting = Target("127.0.0.1:1", Access(Security(tls=True, ca_file=certificates.path("other-ca.pem"))))
    async with FakeKafka(context=server_context(certificates)) as server:
        at = untrusting.at(f"127.0.0.1:{server.port}")
        with pytest.raises(SourceRefuses, match="certificate that is not trusted"):
            await asyncio.to_thread(check_access, at)
        with pytest.raises(SourceRefuses, match="certificate that is not trusted"):
            await asyncio.to_thread(connected_to(at).__enter__)
        assert await asyncio.to_thread(ask_each, untrusting, [at.addresses], "status") == [None]
