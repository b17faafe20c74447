"""The operator's credentials: for itself, for nodes, and for `headrace` in a pod."""

import tomllib

from headrace.security.client_security import security_of
from headrace_operator.builders.authorities import decoded
from headrace_operator.builders.operator_secret import Proofs, made, properties, read, secret

META = {"name": "c-operator", "namespace": "ns"}


def test_what_is_written_is_read() -> None:
    for proofs in (made(), Proofs('a"b\\c', "next")):
        values = decoded(secret(proofs, metadata=META))
        assert read(values) == proofs
        told = tomllib.loads(values["admin.toml"])
        assert told == {"user": "headrace-operator", "password": proofs.password}
        assert "ssl.ca.location=/etc/headrace/server/ca.crt" in values["client.properties"]


def test_it_is_an_own_user_over_tls() -> None:
    security = security_of(properties(made(), "PEM"))
    assert (security.protocol, security.username, security.check_host) == ("SASL_SSL", "headrace-operator", True)


def test_each_has_its_own_and_shows_it_to_nobody() -> None:
    proofs = made()
    assert proofs != made()
    assert proofs.password not in repr(proofs)
    assert read({}) is None
