"""The listeners of a node's file: how the file is read, and what is reported when the files it names change."""

import asyncio
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import HeadraceError
from headrace.node import client_listeners
from headrace.node.client_listeners import MAX_BYTES, ClientListener, ClientListeners, read
from headrace.node.tls_watch import DAY_S
from headrace.security.certificate_authority import Authority
from kit.certificates import Certificates
from kit.patience import PATIENCE
from kit.tls_listeners import TlsListeners

LOGGED = ("certificate replaced", "TLS needs attention", "TLS is in order again")


@pytest.fixture
def listeners(tmp_path: Path, certificates: Certificates) -> TlsListeners:
    return TlsListeners(tmp_path, certificates)


def told(listener: ClientListener, *, now: float) -> list[str]:
    """What a look now logs."""
    with capture_logs() as logs:
        listener.report(changed=listener.look(), now=now)
    return [each["event"] for each in logs if each["event"] in LOGGED]


def test_nothing_is_read_without_a_file() -> None:
    assert read(None, taken=()) == []


async def test_a_plain_listener_has_nothing_to_look_at(tmp_path: Path) -> None:
    file = tmp_path / "listeners.toml"
    file.write_text('[[listener]]\nname = "more"\nport = 9095\nprotocol = "PLAINTEXT"\n')
    (plain,) = read(file, taken=())
    assert not plain.has_files
    assert plain.handshakes(asyncio.get_running_loop()) is None
    assert plain.identify() is None
    assert told(plain, now=time.time()) == []
    assert plain.shown() == {
        "name": "more",
        "port": 9095,
        "protocol": "PLAINTEXT",
        "certificate_expires_ms": None,
        "failed_handshakes_since_start": 0,
        "problem": "",
        "problem_since_ms": None,
    }


def test_what_cannot_be_served_names_the_file_or_the_listener(listeners: TlsListeners) -> None:
    with pytest.raises(HeadraceError, match=f"--listeners {listeners.file}: listener mutual: another listener has"):
        read(listeners.file, taken=("mutual",))
    listeners.put("stranger", into="server", kinds=(".key",))
    with pytest.raises(HeadraceError, match=r"listener secure: the key in .* does not belong"):
        read(listeners.file, taken=())
    listeners.file.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(HeadraceError, match=f"--listeners {listeners.file}: it has more than"):
        read(listeners.file, taken=())


def test_what_is_wrong_is_logged_once_and_shown_until_it_is_over(listeners: TlsListeners) -> None:
    now = time.time() - 20 * DAY_S  # early enough that the certificate does not expire soon
    secure, _ = read(listeners.file, taken=())
    assert told(secure, now=now) == []
    listeners.put("renewed", into="server", kinds=(".pem",))
    assert told(secure, now=now) == ["TLS needs attention"]
    assert told(secure, now=now + 10) == []
    shown: Any = secure.shown()
    assert "does not belong to the certificate" in shown["problem"]
    assert shown["problem_since_ms"] == int(now * 1000)
    listeners.put("server", kinds=(".pem",))
    assert told(secure, now=now + 20) == ["TLS is in order again"]
    assert secure.shown()["problem"] == ""
    listeners.put("renewed", into="server")
    assert told(secure, now=now + 30) == ["certificate replaced"]


def test_an_expiry_is_told_from_14_days_on(listeners: TlsListeners) -> None:
    secure, _ = read(listeners.file, taken=())
    expires = int(str(secure.shown()["certificate_expires_ms"])) / 1000
    assert told(secure, now=expires - 14 * DAY_S - 1) == []
    for left, said in (
        (14 * DAY_S - 1, "in 13 days"),
        (DAY_S + 1, "in 1 day;"),
        (1, "within a day"),
        (0, "has expired"),
    ):
        assert told(secure, now=expires - left) == ["TLS needs attention"]
        assert said in str(secure.shown()["problem"])
        assert secure.shown()["problem_since_ms"] == int((expires - 14 * DAY_S + 1) * 1000)


async def test_files_are_looked_at_now_and_then(listeners: TlsListeners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_listeners, "LOOK_S", 0.01)
    with ThreadPoolExecutor(1) as executor:
        found = ClientListeners(read(listeners.file, taken=()), executor)
        found.start()
        with capture_logs() as logs:
            listeners.put("renewed", into="server")
            async with asyncio.timeout(10 * PATIENCE):
                while sum(each["event"] == "certificate replaced" for each in logs) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await found.close()
        with capture_logs() as logs:
            listeners.put("server")
            await asyncio.sleep(0.1)
        assert logs == []


def test_authorities_of_a_token_issuer_are_read_again(listeners: TlsListeners, certificates: Certificates) -> None:
    """Also for a listener without TLS of its own."""
    folder = listeners.file.parent
    shutil.copy(certificates.path("ca.pem"), folder / "issuer-ca.crt")
    listeners.file.write_text(
        '[[listener]]\nname = "tokens"\nport = 9095\nprotocol = "SASL_PLAINTEXT"\nmechanisms = ["OAUTHBEARER"]\n'
        '[listener.oauth]\njwks_url = "https://issuer.example/keys"\nissuer = "i"\naudience = "a"\n'
        'jwks_ca = "issuer-ca.crt"\n'
    )
    (tokens,) = read(listeners.file, taken=())
    first = tokens.jwks_context()
    assert first is not None
    assert tokens.has_files
    assert told(tokens, now=time.time()) == []
    (folder / "issuer-ca.crt").write_text("no PEM")
    assert told(tokens, now=time.time()) == ["TLS needs attention"]
    shown: Any = tokens.shown()
    assert "issuer-ca.crt holds no authority" in shown["problem"]
    assert tokens.jwks_context() is first
    other = Authority.create("another", days=10, now=time.time()).pair.certificate
    (folder / "issuer-ca.crt").write_text(other)
    with capture_logs() as logs:
        tokens.report(changed=tokens.look(), now=time.time())
    assert {each["event"] for each in logs} == {
        "authorities of the token issuer replaced",
        "TLS is in order again",
    }
    assert tokens.jwks_context() is not first


PLAIN = '[[listener]]\nname = "more"\nport = 9095\nprotocol = "PLAINTEXT"\n'


def test_bare_names_are_of_the_nodes_default_stream_unless_the_listener_has_its_own(tmp_path: Path) -> None:
    file = tmp_path / "listeners.toml"
    file.write_text(
        PLAIN + PLAIN.replace("more", "own").replace("9095", "9096") + 'default_stream = "/plant/sensors"\n'
    )
    assert [each.default_stream for each in read(file, taken=())] == ["/default", "/plant/sensors"]


@pytest.mark.parametrize("path", ["sensors", "/", "/sensors/", "/sensors:t", "/a b", "", "/" + 300 * "a"])
def test_a_default_stream_is_a_streams_path(tmp_path: Path, path: str) -> None:
    file = tmp_path / "listeners.toml"
    file.write_text(PLAIN + f'default_stream = "{path}"\n')
    with pytest.raises(
        HeadraceError, match=r"listener more: default_stream is '.*: a stream's path .*; write it"
    ) as no:
        read(file, taken=())
    assert str(no.value).startswith(f"--listeners {file}: ")
    assert "\n" not in str(no.value)
