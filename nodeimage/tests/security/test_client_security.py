"""Client properties of a link's credentials: what is accepted, what is refused, and that no secret is shown."""

from pathlib import Path

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.properties import parse_properties
from headrace.security.client_security import (
    MAX_PEM,
    Security,
    in_lines,
    librdkafka_properties,
    of_security,
    security_of,
)
from kit.certificates import Certificates


def test_no_properties_are_plaintext() -> None:
    assert security_of({}) == Security()
    assert security_of({}).protocol == "PLAINTEXT"
    assert security_of({}).context() is None


def test_librdkafkas_names_are_taken() -> None:
    security = security_of(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "alice",
            "sasl.password": "s3cret",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert (security.protocol, security.mechanism, security.username) == ("SASL_SSL", "SCRAM-SHA-512", "alice")
    assert security.password == "s3cret"
    assert not security.check_host


@pytest.mark.parametrize(
    "jaas",
    [
        (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="alice" password="a \\"quoted\\" \\\\ secret";'
        ),
        (
            "org.apache.kafka.common.security.scram.ScramLoginModule required\n"
            "  username = 'alice'\n  password='a \"quoted\" \\\\ secret' ;"
        ),
    ],
)
def test_user_and_password_are_read_from_javas_login_line(jaas: str) -> None:
    security = security_of(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas}
    )
    assert (security.username, security.password) == ("alice", 'a "quoted" \\ secret')


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is one of"),
        ({"sasl.user": "alice"}, "sasl.user is not a security property"),
        ({"sasl.username": "alice"}, "sasl.username cannot be used with security.protocol PLAINTEXT"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is one of"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism is one of"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "PLAIN needs sasl.username"),
        ({"security.protocol": "SSL", "sasl.mechanism": "PLAIN"}, "sasl.mechanism cannot be used with"),
        ({"ssl.ca.pem": "x"}, "ssl.ca.pem, ssl.truststore.certificates cannot be used with"),
        ({"security.protocol": "SSL", "ssl.ca.pem": "a", "ssl.ca.location": "b"}, "give one of them"),
        ({"security.protocol": "SSL", "ssl.ca.pem": "a", "ssl.truststore.certificates": "b"}, "given twice"),
        ({"security.protocol": "SSL", "ssl.certificate.pem": "a"}, "needs ssl.key.pem"),
        ({"security.protocol": "SSL", "ssl.key.pem": "a"}, "a key needs its certificate"),
        ({"security.protocol": "SSL", "ssl.truststore.type": "JKS"}, "only be PEM here: `keytool -list -rfc"),
        ({"security.protocol": "SSL", "ssl.keystore.type": "PKCS12"}, "only be PEM here: `keytool -importkeystore"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "a", "ssl.certificate.location": "b"}, "one of them"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "dns"}, "is https, or empty"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "x"}, "is read for"),
    ],
)
def test_properties_that_make_no_sense_are_refused_with_their_names(properties: dict[str, str], why: str) -> None:
    with pytest.raises(KafkaError, match=why) as refused:
        security_of(properties)
    assert refused.value.code is Code.INVALID_CONFIG


def test_a_certificate_that_is_none_is_refused_without_its_text() -> None:
    security = security_of({"security.protocol": "SSL", "ssl.certificate.pem": "s3cret", "ssl.key.pem": "s3cret"})
    with pytest.raises(KafkaError, match=r"ssl\.certificate\.pem and ssl\.key\.pem cannot be used") as refused:
        security.context()
    assert "s3cret" not in str(refused.value)
    with pytest.raises(KafkaError, match=r"ssl\.ca\.pem cannot be used"):
        security_of({"security.protocol": "SSL", "ssl.ca.pem": "no certificate"}).context()
    with pytest.raises(KafkaError, match=r"ssl\.ca\.location cannot be used: No such file"):
        security_of({"security.protocol": "SSL", "ssl.ca.location": "/nowhere"}).context()


@pytest.mark.parametrize("between", ["\n", " ", " \\\n  ", "\\n", "\\r\\n"])
def test_pem_may_stand_in_one_line_of_a_file_of_properties(certificates: Certificates, between: str) -> None:
    def line(name: str) -> str:
        return between.join(certificates.text(name).strip().split("\n"))

    text = f"ssl.ca.pem={line('ca.pem')}{between}{line('other-ca.pem')}\n"
    text += f"ssl.keystore.certificate.chain={line('client.pem')}\nssl.keystore.key={line('client.key')}\n"
    properties = {"security.protocol": "SSL"}
    if between == "\n":  # the form in an admin call
        properties |= {"ssl.ca.pem": certificates.text("ca.pem") + certificates.text("other-ca.pem")}
    else:
        properties |= parse_properties(text)
    context = security_of(properties).context()
    assert context is not None
    assert context.cert_store_stats()["x509"] == 2


def test_pem_that_has_headers_or_is_none_stays_as_it_is() -> None:
    encrypted = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END RSA PRIVATE KEY-----\n"
    assert in_lines(encrypted) == encrypted
    assert in_lines("s3cret") == "s3cret"
    assert in_lines("-----BEGIN A-----AA-----END B-----") == "-----BEGIN A-----AA-----END B-----"


def test_pem_takes_time_in_proportion_to_its_length() -> None:
    hostile = "-----BEGIN A-----" * (MAX_PEM // 20)
    assert in_lines(hostile) == hostile


def test_no_secret_is_in_the_repr() -> None:
    security = Security(password="s3cret", key_pem="s3cret", key_password="s3cret", certificate_pem="s3cret")
    assert "s3cret" not in repr(security)


JKS = bytes.fromhex("feedfeed00000002")
PKCS12 = bytes.fromhex("30820a2b02010330")


@pytest.mark.parametrize("head", [JKS, PKCS12], ids=["JKS", "PKCS12"])
def test_a_store_of_javas_is_refused_with_how_to_convert_it(tmp_path: Path, head: bytes) -> None:
    store = tmp_path / "store"
    store.write_bytes(head + bytes(100))
    trust = security_of({"security.protocol": "SSL", "ssl.truststore.location": str(store)})
    with pytest.raises(KafkaError, match=f"is not PEM but a Java key store: `keytool -list -rfc -keystore {store}"):
        trust.context()
    own = security_of({"security.protocol": "SSL", "ssl.keystore.location": str(store)})
    with pytest.raises(KafkaError, match=f"is not PEM but .* -srckeystore {store} .* and `openssl pkcs12"):
        own.context()


def test_one_file_serves_clients_of_both_families() -> None:
    both = {
        "bootstrap.servers": "h:1",
        "acks": "all",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "s3cret",
        "sasl.jaas.config": 'a.ScramLoginModule required username="alice" password="s3cret";',
        "ssl.ca.location": "/ca.crt",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.crt",
    }
    security = security_of(of_security(both))
    assert (security.username, security.ca_file, security.protocol) == ("alice", "/ca.crt", "SASL_SSL")
    assert librdkafka_properties(security) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "s3cret",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.ca.location": "/ca.crt",
    }


def test_librdkafka_is_told_of_a_key_in_the_certificates_own_file() -> None:
    told = librdkafka_properties(security_of({"security.protocol": "SSL", "ssl.keystore.location": "/own.pem"}))
    assert (told["ssl.certificate.location"], told["ssl.key.location"]) == ("/own.pem", "/own.pem")
    assert librdkafka_properties(Security()) == {"security.protocol": "PLAINTEXT"}
