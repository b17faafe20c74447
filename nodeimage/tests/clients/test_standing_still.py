"""What clients sent while a node's process stood still: it is heard before anybody is taken for silent."""

import os
import signal
import socket
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.tls_handshakes import HANDSHAKE_S
from headrace.kafka.unproven_connections import LIMIT_S
from headrace.wire.api_keys import ApiKey
from kit.certificates import Certificates
from kit.own_ports import HOST, own_port
from kit.patience import PATIENCE

PASSWORD = "a password of some length"
STANDS_STILL_S = max(LIMIT_S, HANDSHAKE_S) + 2


def request(key: ApiKey, version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", key, version, 1, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def answer(connection: socket.socket) -> bytes:
    """An answer's body."""
    with connection.makefile("rb") as read:
        (size,) = struct.unpack(">i", read.read(4))
        return read.read(size)[4:]


class Handshake:
    """TLS, a flight at a time."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.socket = socket.create_connection((HOST, port), 30 * PATIENCE)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def step(self) -> bool:
        """Send what is to be sent next; whether the handshake is done on this side."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.socket.sendall(self._outgoing.read())
        return True

    def hear(self) -> None:
        """Take what the node says next."""
        self._incoming.write(self.socket.recv(65_536))

    def ask(self, raw: bytes) -> None:
        self._tls.write(raw)
        self.socket.sendall(self._outgoing.read())

    def answered(self) -> bytes:
        while True:
            try:
                return self._tls.read(65_536)
            except ssl.SSLWantReadError:
                heard = self.socket.recv(65_536)
                assert heard, "the node has ended the connection"
                self._incoming.write(heard)


@pytest.mark.slow
def test_a_login_and_a_handshake_in_time_are_not_ended_for_the_nodes_own_silence(
    new_cluster: Callable[..., Any], tmp_path: Path, certificates: Certificates
) -> None:
    port = own_port()
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_text(certificates.text(name))
    listeners, admin = tmp_path / "listeners.toml", tmp_path / "admin.toml"
    listeners.write_text(
        f'[[listener]]\nname = "secure"\nport = {port}\nprotocol = "SASL_SSL"\n'
        'mechanisms = ["PLAIN"]\ncertificate = "server.pem"\nkey = "server.key"\n'
    )
    admin.write_text(f'user = "admin"\npassword = "{PASSWORD}"\n')
    admin.chmod(0o600)
    cluster = new_cluster(f"--listeners={listeners}", f"--bootstrap-admin={admin}")
    context = ssl.create_default_context(cadata=certificates.text("ca.pem"))
    mechanism = struct.pack(">h5s", 5, b"PLAIN")
    credentials = b"\0admin\0" + PASSWORD.encode()
    with (
        socket.create_connection((HOST, port), 30 * PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as logging_in,
    ):
        logging_in.sendall(request(ApiKey.SASL_HANDSHAKE, 1, mechanism))
        assert answer(logging_in)[:2] == b"\0\0"
        shaking = Handshake(port, context)
        assert not shaking.step()
        shaking.hear()

        os.kill(cluster.pid, signal.SIGSTOP)
        try:
            logging_in.sendall(request(ApiKey.SASL_AUTHENTICATE, 0, struct.pack(">i", len(credentials)) + credentials))
            while not shaking.step():
                shaking.hear()
            shaking.ask(request(ApiKey.SASL_HANDSHAKE, 1, mechanism))
            time.sleep(STANDS_STILL_S)  # the fault's length
        finally:
            os.kill(cluster.pid, signal.SIGCONT)

        assert answer(logging_in)[:2] == b"\0\0", "it has authenticated"
        assert shaking.answered()[8:10] == b"\0\0", "its handshake was done in time"
        shaking.socket.close()
