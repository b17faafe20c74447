"""A node with SASL listeners, on a separate loop in a thread, and the token issuer that it trusts."""

import asyncio
import base64
import contextlib
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from headrace.base.ids import Millis
from headrace.catalog.users import AlterCredentials, Credential
from headrace.node import Node
from headrace.security.sasl.scram_credential import ScramCredential
from headrace.security.scram_common import HASHES
from kit.certificates import Certificates
from kit.own_ports import HOST, own_port
from kit.parts import options
from kit.patience import PATIENCE
from kit.sasl import PASSWORD
from kit.tokens import AUDIENCE, ISSUER, Issuer

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
SHORT_MS = 2_000
"""Milliseconds that a session lasts at the listener `short`."""


CLIENT = ("a-client", "the secret of a client")
"""Id and secret with which a program requests a token from the issuer."""


class KeyServer:
    """Serves an issuer's key set on loopback, and tokens for alice to `CLIENT` (client_credentials)."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.asked = 0
        self.token_s = 600.0
        """Seconds that the tokens are valid."""
        server = self
        login = f"Basic {base64.b64encode(':'.join(CLIENT).encode()).decode()}"

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked += 1
                document = server.issuer.key_set()
                self.send_response(200)
                self.send_header("Content-Length", str(len(document)))
                self.end_headers()
                self.wfile.write(document)

            def do_POST(self) -> None:
                asked = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                if self.headers["Authorization"] != login or asked["grant_type"] != ["client_credentials"]:
                    self.send_error(401)
                    return
                now = time.time()
                token = server.issuer.token(iat=now - 1, exp=now + server.token_s)
                document = json.dumps({"access_token": token, "token_type": "Bearer"}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(document)))
                self.end_headers()
                self.wfile.write(document)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}/keys"

    @property
    def token_url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}/token"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class SaslNode:
    """Listeners `plain` (SASL_PLAINTEXT), `tls` (SASL_SSL), `short` (SASL_PLAINTEXT, sessions of SHORT_MS), `scram`
    (SASL_PLAINTEXT, only SCRAM-SHA-512), and the node's own port without TLS and SASL.
    """

    def __init__(self, folder: Path, certificates: Certificates, **more: Any) -> None:
        """`more`: further options of the node."""
        self.certificates = certificates
        self.issuer = Issuer()
        self.keys = KeyServer(self.issuer)
        self.ports = {name: own_port() for name in ("plain", "tls", "short", "scram")}
        file = folder / "listeners.toml"
        file.write_text(self._listeners())
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.node: Node = self.run(self._started(replace(options(folder), listeners_file=file, **more)))
        self.set_password("alice", PASSWORD)

    def _listeners(self) -> str:
        def one(name: str, protocol: str, mechanisms: tuple[str, ...], more: str = "") -> str:
            text = f'[[listener]]\nname = "{name}"\nport = {self.ports[name]}\nprotocol = "{protocol}"\n{more}'
            text += f"mechanisms = {list(mechanisms)}\n"
            if "OAUTHBEARER" in mechanisms:
                text += (
                    f'[listener.oauth]\njwks_url = "{self.keys.url}"\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
                )
                text += 'groups_claim = "groups"\n'
            return text

        tls = (
            f'certificate = "{self.certificates.path("server.pem")}"\nkey = "{self.certificates.path("server.key")}"\n'
        )
        return (
            one("plain", "SASL_PLAINTEXT", MECHANISMS)
            + one("tls", "SASL_SSL", MECHANISMS, tls)
            + one("short", "SASL_PLAINTEXT", MECHANISMS, f"max_reauth_ms = {SHORT_MS}\n")
            + one("scram", "SASL_PLAINTEXT", ("SCRAM-SHA-512",))
        )

    @staticmethod
    async def _started(told: Any) -> Node:
        node = Node(told)
        await node.start()
        return node

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine on the node's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60 * PATIENCE)

    def set_password(self, user: str, password: str) -> None:
        """Create the user, or change its password."""
        made = [ScramCredential.made_of(password, mechanism) for mechanism in HASHES]
        upserts = [
            Credential(user, each.mechanism, each.salt, each.stored_key, each.server_key, each.iterations)
            for each in made
        ]
        self.run(self.node.catalog.submit(AlterCredentials(deletions=[], upserts=upserts, now=Millis(1))))

    def token(self, **claims: Any) -> str:
        """A token that is valid now."""
        now = time.time()
        return self.issuer.token(**{"iat": now - 1, "exp": now + 600, **claims})

    def bootstrap(self, listener: str) -> str:
        return f"{HOST}:{self.ports[listener]}"

    def librdkafka(
        self, listener: str, mechanism: str, *, user: str = "alice", password: str = PASSWORD
    ) -> dict[str, Any]:
        """Properties of a client."""
        found: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap(listener),
            "security.protocol": "SASL_SSL" if listener == "tls" else "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
        }
        if listener == "tls":
            found["ssl.ca.location"] = self.certificates.path("ca.pem")
        if mechanism == "OAUTHBEARER":
            found["oauth_cb"] = lambda _: (self.token(sub=user), time.time() + 600)
        else:
            found |= {"sasl.username": user, "sasl.password": password}
        return found

    def principals(self, listener: str) -> list[Any]:
        """The principals of the open connections."""
        return [each.principal for each in list(self.node.parts.connections.open) if each.listener == listener]

    def close(self) -> None:
        self.run(self.node.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.keys.close()


@contextlib.contextmanager
def running(folder: Path, certificates: Certificates, **more: Any) -> Iterator[SaslNode]:
    """A running node, for the duration of the context."""
    node = SaslNode(folder, certificates, **more)
    try:
        yield node
    finally:
        node.close()


def login(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties by which a client of kafka-python or aiokafka logs in."""
    return {
        "bootstrap_servers": told["bootstrap.servers"],
        "security_protocol": told["security.protocol"],
        "sasl_mechanism": told["sasl.mechanism"],
        "sasl_plain_username": told.get("sasl.username"),
        "sasl_plain_password": told.get("sasl.password"),
    }
