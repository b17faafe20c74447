"""Strangers who connect all at once, and send what they may before authentication: what it costs, and whom it keeps
out. Against a node's process."""

import contextlib
import itertools
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.kafka.sasl_gate import MAX_BYTES
from headrace.wire.api_keys import ApiKey
from kit.certificates import Certificates
from kit.own_ports import HOST, own_port
from kit.patience import PATIENCE

PASSWORD = "a password of some length"
STRANGERS = 400
MAX_GROWTH = 64 << 20
HALF = struct.pack(">ih", MAX_BYTES, ApiKey.SASL_AUTHENTICATE) + bytes(MAX_BYTES - 100)
"""The longest message that is read before authentication, but for its end."""


@pytest.fixture
def secure(new_cluster: Callable[..., Any], tmp_path: Path, certificates: Certificates) -> tuple[Any, int]:
    """A node, and its port with SASL over TLS."""
    port = own_port()
    for name in ("server.pem", "server.key"):
        (tmp_path / name).write_text(certificates.text(name))
    (tmp_path / "listeners.toml").write_text(
        f'[[listener]]\nname = "secure"\nport = {port}\nprotocol = "SASL_SSL"\n'
        'mechanisms = ["SCRAM-SHA-512", "PLAIN"]\ncertificate = "server.pem"\nkey = "server.key"\n'
    )
    (tmp_path / "admin.toml").write_text(f'user = "admin"\npassword = "{PASSWORD}"\n')
    (tmp_path / "admin.toml").chmod(0o600)
    listeners, admin = tmp_path / "listeners.toml", tmp_path / "admin.toml"
    return new_cluster(f"--listeners={listeners}", f"--bootstrap-admin={admin}"), port


@contextlib.contextmanager
def strangers(port: int, context: ssl.SSLContext) -> Iterator[None]:
    """Connections from several addresses, each with half a message; as long as they are needed, new ones come."""
    stopping = threading.Event()
    opened: list[ssl.SSLSocket] = []
    numbers = itertools.count()

    def come() -> None:
        while not stopping.is_set():
            with contextlib.suppress(OSError):
                plain = socket.create_connection((HOST, port), 5, (f"127.0.0.{next(numbers) % 8 + 1}", 0))
                opened.append(wrapped := context.wrap_socket(plain, server_hostname="localhost"))
                wrapped.settimeout(5)
                wrapped.sendall(HALF)
                if len(opened) >= STRANGERS:
                    opened.pop(0).close()

    coming = [threading.Thread(target=come) for _ in range(4)]
    for each in coming:
        each.start()
    try:
        yield
    finally:
        stopping.set()
        for each in coming:
            each.join()
        for each in opened:
            each.close()


@pytest.mark.slow
def test_strangers_cost_little_and_others_get_in(secure: tuple[Any, int], certificates: Certificates) -> None:
    cluster, port = secure
    client = {
        "bootstrap.servers": f"{HOST}:{port}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": PASSWORD,
        "ssl.ca.location": certificates.path("ca.pem"),
    }

    def sends() -> None:
        errors: list[str] = []
        producer = Producer(client)
        producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(str(error)) if error else None)
        assert producer.flush(30 * PATIENCE) == 0
        assert errors == []

    sends()
    before = cluster.resident_bytes()
    with strangers(port, ssl.create_default_context(cafile=certificates.path("ca.pem"))):
        most = 0
        for _ in range(8):
            sends()
            most = max(most, cluster.resident_bytes())
    assert most - before < MAX_GROWTH
    assert cluster.log().count("connections ended before authentication") < 10, "once a minute for each reason"
