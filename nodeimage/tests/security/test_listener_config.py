"""The file of listeners: how it is parsed, and what is refused, by name and with advice."""

from pathlib import Path

import pytest

from headrace.security.listener_config import ListenerConfig, ListenerProtocol, ListenersRefused, parse
from headrace.security.listener_sasl import SaslConfig
from headrace.security.tls_server import ClientAuth, TlsFiles

FOLDER = Path("/etc/headrace")
SSL = """
[[listener]]
name = "secure"
port = 9093
protocol = "SSL"
certificate = "tls.crt"
key = "/keys/tls.key"
"""
SASL = """
[[listener]]
name = "sasl"
port = 9094
protocol = "SASL_SSL"
mechanisms = ["SCRAM-SHA-512"]
certificate = "tls.crt"
key = "tls.key"
"""


def read(text: str, *taken: str) -> tuple[ListenerConfig, ...]:
    return parse(text, folder=FOLDER, taken=taken)


def refusal(text: str, *taken: str) -> str:
    with pytest.raises(ListenersRefused) as refused:
        read(text, *taken)
    return str(refused.value)


def test_listeners_are_read_with_paths_relative_to_the_file() -> None:
    plain, secure, mutual = read(
        '[[listener]]\nname = "plain"\nport = 9095\nprotocol = "PLAINTEXT"\n'
        + SSL
        + SSL.replace("secure", "mutual").replace("9093", "9094")
        + 'client_ca = "ca.crt"\nclient_auth = "required"\nprincipal_mapping_rules = "RULE:^CN=(.*?)$/$1/U"\n'
    )
    assert (plain.name, plain.port, plain.protocol, plain.tls) == ("plain", 9095, ListenerProtocol.PLAINTEXT, None)
    assert secure.tls == TlsFiles(FOLDER / "tls.crt", Path("/keys/tls.key"))
    assert secure.protocol is ListenerProtocol.SSL
    assert secure.mapping.user("CN=alice") == "CN=alice"
    assert mutual.tls == TlsFiles(FOLDER / "tls.crt", Path("/keys/tls.key"), FOLDER / "ca.crt", ClientAuth.REQUIRED)
    assert mutual.mapping.user("CN=alice") == "ALICE"


def test_a_default_stream_is_said_or_not() -> None:
    said, unsaid = read(SASL + 'default_stream = "/plant/sensors"\n' + SSL)
    assert (said.default_stream, unsaid.default_stream) == ("/plant/sensors", None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SSL + "default_stream = 3", "listener secure: default_stream is 3; it must be text"),
        ("listener", "it is not TOML"),
        ("", "it contains no listener"),
        ("listener = 3", "it contains no listener"),
        ("listener = []", "it contains no listener"),
        ("listener = [3]", "it contains no listener"),
        ("[listener]\nname = 'a'", "it contains no listener"),
        ("[[listeners]]", "'listeners' is not known"),
        ("[[listener]]\nport = 1", "listener 1 of the file: name is missing"),
        ('[[listener]]\nname = "a=b"', "listener 1 of the file: name is 'a=b'"),
        ('[[listener]]\nname = ""', "listener 1 of the file: name is ''"),
        (SSL + "colour = 1", "listener secure: 'colour' is not known; known are name, port,"),
        (SSL.replace('protocol = "SSL"', ""), "listener secure: protocol is missing"),
        (SSL.replace("port = 9093", ""), "listener secure: port is missing"),
        (SSL.replace("9093", "0"), "listener secure: port is 0; it must be a number from 1 to 65535"),
        (SSL.replace("9093", "65536"), "listener secure: port is 65536"),
        (SSL.replace("9093", "true"), "listener secure: port is True"),
        (SSL.replace("9093", '"9093"'), "listener secure: port is '9093'"),
        (
            SSL.replace('"SSL"', '"ssl"'),
            "listener secure: protocol is 'ssl'; it must be one of PLAINTEXT, SSL, SASL_PLAIN",
        ),
        (SSL.replace('"SSL"', "1"), "listener secure: protocol is 1; it must be text"),
        (
            SSL.replace('"SSL"', '"SASL_SSL"'),
            "listener secure: mechanisms is missing; a listener with SASL needs",
        ),
        (SASL.replace('"SASL_SSL"', '"SASL_PLAINTEXT"'), "certificate needs TLS, but the protocol is SASL_PLAINTEXT"),
        (
            SASL.replace('"SASL_SSL"', '"SSL"'),
            'needs SASL, but the protocol is SSL; set protocol = "SASL_SSL"',
        ),
        (SASL + 'principal_mapping_rules = "DEFAULT"', "is set, but with SASL_SSL SASL determines who a client is"),
        (SASL + 'mechanism = "PLAIN"', "'mechanism' is not known"),
        (SSL.replace("port = 9093", "main = 1"), "listener secure: main is 1; it must be true or false"),
        (
            SSL + "main = true",
            "listener secure: port is set together with main = true: the main listener's port is that of --port",
        ),
        (SSL.replace("port = 9093", "main = false"), "listener secure: port is missing"),
        (
            SSL.replace("port = 9093", "main = true") + SASL.replace("port = 9094", "main = true"),
            "listener sasl: main is set, but listener secure is main already; only one can be",
        ),
        (SSL.replace('"SSL"', '"PLAINTEXT"'), "listener secure: certificate needs TLS, but the protocol is PLAINTEXT"),
        (SSL.replace('certificate = "tls.crt"', ""), "listener secure: certificate is missing"),
        (SSL.replace('key = "/keys/tls.key"', ""), "listener secure: key is missing"),
        (SSL.replace('"tls.crt"', '""'), "listener secure: certificate is '', which is not a file name"),
        (SSL.replace('"tls.crt"', '"a\\u0000b"'), "which is not a file name"),
        (SSL.replace('"tls.crt"', "1"), "listener secure: certificate is 1; it must be text"),
        (SSL + 'client_auth = "want"', "client_auth is 'want'; it must be one of none, requested, required"),
        (SSL + 'client_auth = "required"', "listener secure: client_ca is missing; with client_auth required"),
        (SSL + 'client_ca = "ca"', "listener secure: client_ca is set, but no client is asked"),
        (SSL + 'principal_mapping_rules = "DEFAULT"', "principal_mapping_rules is set, but no client is asked"),
        (
            SSL + 'client_ca = "ca"\nclient_auth = "required"\nprincipal_mapping_rules = "RULE:a"',
            "listener secure: principal_mapping_rules: ssl.principal.mapping.rules: at character",
        ),
        (SSL + SSL, "listener secure: another listener has this name"),
        (SSL + SSL.replace("secure", "other"), "listener other: port 9093 is that of listener secure too"),
    ],
)
def test_what_is_refused_says_where_and_what_to_do(text: str, says: str) -> None:
    assert says in refusal(text)


def test_a_name_that_another_listener_of_the_node_has_is_refused() -> None:
    assert "listener secure: another listener has this name" in refusal(SSL, "external", "secure")
    assert len(read(SSL, "external")) == 1


def test_a_listener_with_sasl_may_ask_for_certificates_too_and_one_may_be_main() -> None:
    plain, sasl = read(
        '[[listener]]\nname = "plain"\nport = 1\nprotocol = "SASL_PLAINTEXT"\nmechanisms = "PLAIN"\n'
        + SASL.replace("port = 9094", "main = true")
        + 'client_ca = "ca.crt"\nclient_auth = "required"\n'
    )
    assert (plain.tls, plain.is_main, plain.sasl) == (None, False, SaslConfig(("PLAIN",)))
    assert (sasl.is_main, sasl.sasl) == (True, SaslConfig(("SCRAM-SHA-512",)))
    assert sasl.tls is not None
    assert sasl.tls.client_auth is ClientAuth.REQUIRED


@pytest.mark.parametrize(
    ("text", "anybody"),
    [
        ('[[listener]]\nname = "plain"\nport = 1\nprotocol = "PLAINTEXT"\n', True),
        (SSL, True),
        (SSL + 'client_ca = "ca.crt"\nclient_auth = "requested"\n', True),
        (SSL + 'client_ca = "ca.crt"\nclient_auth = "required"\n', False),
        (SASL, False),
    ],
)
def test_who_gets_in_without_proof_is_known(text: str, anybody: bool) -> None:
    (listener,) = read(text)
    assert listener.lets_anybody_in is anybody
