"""SASL at a node's listeners: passwords are hashed in another thread, and a node has the listeners of its file."""

import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.node import Node
from headrace.node.sasl_logins import NICE, SaslLogins
from headrace.security.listener_config import ListenersRefused
from headrace.security.tls_server import TlsRefused
from kit.own_ports import own_port
from kit.parts import node, options

__all__ = ["node"]

OAUTH = """
[listener.oauth]
jwks_url = "https://127.0.0.1:1/keys"
issuer = "https://issuer.example"
audience = "headrace"
"""


def listener(name: str, where: str, mechanisms: str = '["PLAIN"]') -> str:
    return f'[[listener]]\nname = "{name}"\n{where}\nprotocol = "SASL_PLAINTEXT"\nmechanisms = {mechanisms}\n'


@pytest.fixture
async def logins(node: Node) -> AsyncIterator[SaslLogins]:
    parts = node.parts
    made = SaslLogins(
        runtime=parts.runtime, catalog=node.catalog, secret="secret", handler=parts.dispatcher, audit=parts.logins
    )
    yield made
    made.close()


async def test_passwords_are_hashed_in_a_thread_that_gives_way(logins: SaslLogins) -> None:
    def is_nicer() -> bool:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) >= NICE

    assert await logins._hashed(is_nicer)


async def started(folder: Path, text: str, **more: Any) -> Node:
    file = folder / "listeners.toml"
    file.write_text(text)
    made = Node(replace(options(folder), listeners_file=file, **more))
    try:
        await made.start()
    except BaseException:
        await made.stop()
        raise
    return made


async def test_the_main_listener_is_that_of_the_port_and_there_is_no_other(tmp_path: Path) -> None:
    port, other = own_port(), own_port()
    made = await started(tmp_path, listener("secure", "main = true") + listener("more", f"port = {other}"), port=port)
    try:
        assert made.parts.node.port == port
        assert [(each["name"], each["port"]) for each in made._listeners.shown()] == [("secure", port), ("more", other)]
        assert len(made._acceptors) == 2
        record = made.view.nodes[made.parts.node.node_id]
        assert record.address("secure") == ("127.0.0.1", port)
        assert record.address("more") == ("127.0.0.1", other)
    finally:
        await made.stop()


async def test_a_listener_for_tokens_starts_while_its_issuer_is_away(tmp_path: Path) -> None:
    made = await started(tmp_path, listener("secure", f"port = {own_port()}", '["OAUTHBEARER"]') + OAUTH)
    await made.stop()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (listener("secure", "port = 1", '["OAUTHBEARER"]'), "listener secure: oauth is missing"),
        (listener("secure", "port = 1", "[]"), "listener secure: mechanisms is empty"),
        (listener("secure", "port = 1", '["OAUTHBEARER"]') + OAUTH + 'jwks_ca = "none.pem"', "none.pem cannot be read"),
    ],
)
async def test_a_node_does_not_start_with_what_would_let_in_others(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises((ListenersRefused, TlsRefused), match=says) as refused:
        await started(tmp_path, text)
    assert "\n" not in str(refused.value)


async def test_an_open_listener_beyond_loopback_needs_a_word(tmp_path: Path) -> None:
    with pytest.raises(ListenersRefused, match=r"the listener of --port lets anybody in who reaches 0\.0\.0\.0"):
        await started(tmp_path, listener("more", f"port = {own_port()}"), bind="0.0.0.0")
