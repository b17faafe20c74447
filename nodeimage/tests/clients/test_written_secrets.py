"""No secret of a login in anything that a node or the command line has written: passwords, tokens, salted keys."""

import base64
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.security.scram_common import HASHES
from kit.certificates import Certificates
from kit.sasl_node import MECHANISMS, SaslNode, running

ROOT, ROOTS = "root", "first-administrators-own-4711"
ALICE, WRONG, NEW = "correct-horse-battery-staple-4711", "a-guess-at-alices-password-815", "changed-by-herself-1234567"
CARLAS, SOURCES = "from-a-password-file-76543", "of-the-user-at-the-source-31337"


class Said:
    """What clients and commands were told."""

    def __init__(self, node: SaslNode, folder: Path) -> None:
        self.node = node
        self.texts: list[str] = []
        self._folder = folder

    def login(self, mechanism: str, password: str = "", token: str = "") -> bool:
        """Whether alice may log in."""
        told: dict[str, Any] = self.node.librdkafka("tls", mechanism, password=password)
        told["error_cb"] = lambda error: self.texts.append(repr(error))
        if token:
            told["oauth_cb"] = lambda _: (token, time.time() + 600)
        try:
            self.texts.append(repr(AdminClient(told).list_topics(timeout=60 if password != WRONG else 2)))
        except KafkaException as error:
            self.texts.append(repr(error))
            return False
        return True

    def file(self, name: str, content: str) -> str:
        path = self._folder / name
        path.write_text(content)
        path.chmod(0o600)
        return str(path)

    def headrace(self, *words: str, user: str = ROOT, password: str = ROOTS) -> int:
        """A command by somebody who is proven by his password; its end."""
        ca = self.node.certificates.path("ca.pem")
        properties = f"bootstrap.servers={self.node.bootstrap('tls')}\nsecurity.protocol=SASL_SSL\n"
        properties += f"sasl.mechanism=SCRAM-SHA-512\nsasl.username={user}\nsasl.password={password}\n"
        config = self.file(f"{user}.properties", f"{properties}ssl.ca.location={ca}\n")
        command = [sys.executable, "-m", "headrace.cli.main", "--config", config, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        self.texts += [done.stdout, done.stderr]
        return done.returncode


def forms(secret: bytes) -> list[bytes]:
    """What a secret may look like where it was written."""
    return [secret, secret.hex().encode(), base64.b64encode(secret), repr(secret).encode()[2:-1]]


def found(secrets: Iterable[bytes], content: bytes) -> list[bytes]:
    return [each for each in secrets if any(form in content for form in forms(each))]


def salted_keys(node: SaslNode) -> list[bytes]:
    """What the catalog keeps of everybody's passwords."""
    keys = []
    for user in ("alice", ROOT, "carla"):
        for mechanism in HASHES:
            record = node.run(
                node.node.catalog.query(lambda reader, of=(user, mechanism): reader.users.credential(*of))
            )
            keys += [record.stored_key, record.server_key]
    return keys


def test_no_secret_of_a_login_is_in_anything_that_was_written(
    tmp_path: Path, certificates: Certificates, capfd: pytest.CaptureFixture[str]
) -> None:
    given, written = tmp_path / "given", tmp_path / "node"
    given.mkdir()
    written.mkdir()
    first = given / "admin.toml"
    first.write_text(f'user = "{ROOT}"\npassword = "{ROOTS}"\n')
    first.chmod(0o600)
    with running(written, certificates, secure=True, bootstrap_admin=first) as node:
        said = Said(node, given)
        node.node.parts.audit.add_sink(lambda fields: said.texts.append(repr(fields)))
        node.set_password("alice", ALICE)
        good, bad = node.token(sub="alice"), node.token(sub="alice", exp=time.time() - 600)
        for mechanism in MECHANISMS[:3]:
            assert said.login(mechanism, ALICE)
            assert not said.login(mechanism, WRONG)
        assert said.login("OAUTHBEARER", token=good)
        assert not said.login("OAUTHBEARER", WRONG, token=bad)
        assert said.headrace("user", "create", "carla", "--password-file", said.file("carla", CARLAS)) == 0
        assert said.headrace("topic", "list", user="carla", password=WRONG) != 0
        new = said.file("new", NEW)
        assert said.headrace("user", "passwd", "alice", "--password-file", new, user="alice", password=ALICE) == 0
        assert not said.login("SCRAM-SHA-512", WRONG)
        assert said.login("SCRAM-SHA-512", NEW)
        source = said.file(
            "source.properties",
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=link\n"
            f"sasl.password={SOURCES}\nssl.ca.location={certificates.path('ca.pem')}\n",
        )
        link = ("link", "create", "--source", f"{node.bootstrap('tls')}/far", "--target", "/near", "--name", "far")
        assert said.headrace(*link, "--credentials", source) != 0
        assert "'link' is refused" in said.texts[-1]
        assert said.headrace("status", "--output", "json") == 0
        keys = salted_keys(node)
    captured = capfd.readouterr()
    told = ("\n".join(said.texts) + captured.out + captured.err).encode()
    assert b"login" in told, "the audit tells of what failed"
    secrets = [each.encode() for each in (ROOTS, ALICE, WRONG, NEW, CARLAS, SOURCES)]
    secrets += [part.encode() for token in (good, bad) for part in token.split(".")[1:]]
    assert found([*secrets, *keys], told) == []
    files = [path for path in written.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        assert found(secrets, path.read_bytes()) == [], path
