"""Java clients over TLS, with PEM as they take it."""

from pathlib import Path
from typing import Any

import pytest

from kit.java_clients import JavaError
from kit.own_ports import HOST
from kit.tls_listeners import TlsListeners

pytestmark = pytest.mark.headrace_only


def config(listeners: TlsListeners, tmp_path: Path, own: str) -> dict[str, str]:
    """Properties of a client with the certificate `own`."""
    path = listeners.certificates.path
    found = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": path("ca.pem"),
    }
    if own:
        both = tmp_path / "client.pem"
        both.write_text(listeners.certificates.text(f"{own}.key") + listeners.certificates.text(f"{own}.pem"))
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
    return found


@pytest.mark.parametrize("own", ["", "client"], ids=["server's certificate alone", "client's certificate too"])
def test_records_come_back_over_tls(
    java: Any, unique: str, secured: Any, tls_listeners: TlsListeners, tmp_path: Path, own: str
) -> None:
    told = {
        "bootstrap": f"{HOST}:{tls_listeners.mutual if own else tls_listeners.secure}",
        "config": config(tls_listeners, tmp_path, own),
    }
    java.call("create_topic", topic=unique, partitions=1, **told)
    java.call("produce", topic=unique, records=[{"value": str(i)} for i in range(50)], **told)
    read = java.call("read", topic=unique, expect=50, **told)
    assert [each["value"] for each in read] == [str(i) for i in range(50)]


@pytest.mark.parametrize("own", ["", "intruder"], ids=["without a certificate", "of another authority"])
def test_a_client_that_proves_nothing_is_told_at_once(
    java: Any, unique: str, secured: Any, tls_listeners: TlsListeners, tmp_path: Path, own: str
) -> None:
    told = {"bootstrap": f"{HOST}:{tls_listeners.mutual}", "config": config(tls_listeners, tmp_path, own)}
    with pytest.raises(JavaError) as refused:
        java.call("create_topic", topic=unique, partitions=1, **told)
    assert refused.value.name == "SslAuthenticationException"
