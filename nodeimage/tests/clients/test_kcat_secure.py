"""kcat, Debian's with librdkafka 2.0.2, by TLS and by SASL: each mechanism that it can."""

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kit.certificates import Certificates
from kit.patience import PATIENCE
from kit.sasl_node import SaslNode, running
from kit.tls_listeners import TlsListeners

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="no kcat here; apt-get install kcat")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[SaslNode]:
    with running(tmp_path_factory.mktemp("sasl"), certificates) as made:
        yield made


def kcat(told: Mapping[str, Any], *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """One run with these properties."""
    properties = [part for name, value in told.items() for part in ("-X", f"{name}={value}")]
    return subprocess.run(
        ["kcat", *properties, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=30 * PATIENCE,
        check=False,
    )


def comes_back(told: Mapping[str, Any], topic: str) -> None:
    """What is sent with these properties is read with them."""
    lines = "".join(f"{number}\n" for number in range(20))
    sent = kcat(told, "-P", "-t", topic, text=lines)
    assert sent.returncode == 0, sent.stderr
    read = kcat(told, "-C", "-t", topic, "-e", "-q", "-c", "20")
    assert read.stdout == lines, read.stderr


@pytest.mark.parametrize("listener", ["plain", "tls"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_lines_come_back_by_a_password(node: SaslNode, listener: str, mechanism: str) -> None:
    comes_back(node.librdkafka(listener, mechanism), f"kcat-{uuid.uuid4().hex[:8]}")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused(node: SaslNode, mechanism: str) -> None:
    told = node.librdkafka("tls", mechanism, password="another password")
    refused = kcat(told, "-L", "-m", "2")
    assert refused.returncode != 0
    assert "authentication failed" in refused.stderr.lower()


@pytest.mark.parametrize("own", ["", "client"], ids=["server's certificate alone", "client's certificate too"])
def test_lines_come_back_by_tls(secured: Any, tls_listeners: TlsListeners, own: str) -> None:
    told = tls_listeners.librdkafka(own=own)
    comes_back(told, secured.topic().replace("/default:", "default.."))
    listed = json.loads(kcat(told, "-L", "-J").stdout)
    port = tls_listeners.mutual if own else tls_listeners.secure
    assert [each["name"].rpartition(":")[2] for each in listed["brokers"]] == [str(port)]
