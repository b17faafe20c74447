"""SASL at a node's listeners: what the audit is told, and that a node has what its file says."""

import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.node import Node
from headrace.node.sasl_logins import NICE, SaslLogins
from headrace.security.listener_config import ListenersRefused
from headrace.security.principals import ANONYMOUS
from headrace.security.sasl.exchange import Attempt
from headrace.security.sasl.outcome import Refusal
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
        runtime=parts.runtime, catalog=node.catalog, secret="secret", handler=parts.dispatcher, audit=parts.audit
    )
    yield made
    made.close()


def heard(logins: SaslLogins, attempt: Attempt) -> list[Any]:
    with capture_logs() as logs:
        logins.heard(attempt, "10.0.0.1", "secure")
    return [each for each in logs if each["event"] == "audit"]


async def test_who_failed_has_proved_nothing(logins: SaslLogins) -> None:
    (told,) = heard(logins, Attempt("PLAIN", "alice", Refusal.WRONG_CREDENTIALS, is_renewal=False))
    assert (told["user"], told["kind"], told["name"]) == (ANONYMOUS, "user", "alice")
    assert (told["action"], told["allowed"]) == ("authenticate", False)
    assert (told["address"], told["listener"]) == ("10.0.0.1", "secure")
    assert told["reason"] == "PLAIN: wrong user or password"


async def test_a_renewal_that_failed_was_somebodys(logins: SaslLogins) -> None:
    (told,) = heard(logins, Attempt("PLAIN", "alice", Refusal.PRINCIPAL_CHANGED, is_renewal=True))
    assert told["user"] == "alice"
    assert told["reason"] == "PLAIN again: another principal at re-authentication"


async def test_success_is_told_where_it_is_asked_for_alone(logins: SaslLogins) -> None:
    assert heard(logins, Attempt("PLAIN", "alice", None, is_renewal=False)) == []


async def test_failures_of_one_address_are_told_within_bounds(logins: SaslLogins) -> None:
    told = [
        heard(logins, Attempt(None, f"user-{number}", Refusal.UNSUPPORTED_MECHANISM, False)) for number in range(99)
    ]
    assert 0 < sum(map(len, told)) < 50
    assert told[0][0]["reason"] == "no mechanism: a mechanism that is off or unknown"


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
        (listener("secure", "port = 1", '["OAUTHBEARER"]') + OAUTH + 'jwks_ca = "none.pem"', "none.pem holds no autho"),
    ],
)
async def test_a_node_does_not_start_with_what_would_let_in_others(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises((ListenersRefused, TlsRefused), match=says) as refused:
        await started(tmp_path, text)
    assert "\n" not in str(refused.value)


async def test_an_open_listener_beyond_loopback_needs_a_word(tmp_path: Path) -> None:
    with pytest.raises(ListenersRefused, match=r"the listener of --port lets anybody in who reaches 0\.0\.0\.0"):
        await started(tmp_path, listener("more", f"port = {own_port()}"), bind="0.0.0.0")
