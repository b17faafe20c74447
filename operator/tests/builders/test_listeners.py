"""The nodes' listener files: secure unless the resource explicitly says otherwise."""

import tomllib
from typing import Any

import msgspec
import pytest

from headrace.security import principal_mapping
from headrace.security.principal_mapping import PrincipalRefused
from headrace_operator.builders.listeners import allows_anonymous, fault, file_name, files, port_of, ports
from headrace_operator.specs import ClusterSpec


def spec(listeners: dict[str, Any] | None = None, **more: Any) -> ClusterSpec:
    return msgspec.convert({"security": {"enabled": True}, "listeners": listeners or {}, **more}, ClusterSpec)


def tables(asked: ClusterSpec, shard: int = 0) -> dict[str, dict[str, Any]]:
    found = tomllib.loads(files(asked)[file_name(shard)])["listener"]
    return {each["name"]: each for each in found}


def test_all_listeners_ask_for_a_password_over_tls_where_nothing_is_said() -> None:
    asked = spec({"secure": {}, "external": {"type": "NodePort"}})
    found = tables(asked)
    assert list(found) == ["internal", "secure", "external", "operator"]
    for table in found.values():
        assert table["protocol"] == "SASL_SSL"
        assert table["mechanisms"] == ["SCRAM-SHA-512"]
        assert table["certificate"] == "/etc/headrace/server/tls.crt"
        assert "client_ca" not in table
    assert (found["internal"]["main"], "port" in found["internal"]) == (True, False)
    assert not allows_anonymous(asked)


def test_each_storage_node_of_a_pod_has_its_own_ports() -> None:
    asked = spec({"secure": {}, "external": {"type": "NodePort"}}, shards=2)
    assert [each.get("port") for each in tables(asked, 1).values()] == [None, 9193, 19093, 8093]


def test_an_open_listener_is_the_nodes_own_and_is_allowed_in_so_many_words() -> None:
    asked = spec({"internal": {"protocol": "PLAINTEXT"}})
    assert list(tables(asked)) == ["operator"]
    assert allows_anonymous(asked)
    outside = spec({"external": {"type": "NodePort", "protocol": "PLAINTEXT"}})
    assert tables(outside)["external"] == {"name": "external", "port": 19092, "protocol": "PLAINTEXT"}
    assert allows_anonymous(outside)
    assert allows_anonymous(spec({"internal": {"protocol": "SSL", "clientAuth": "requested"}}))
    assert not allows_anonymous(spec({"internal": {"protocol": "SASL_PLAINTEXT"}}))


def test_certificates_of_clients_prove_the_users_that_they_were_made_for() -> None:
    found = tables(spec({"internal": {"protocol": "SSL"}}))["internal"]
    assert found["client_auth"] == "required"
    assert found["client_ca"] == "/etc/headrace/server/clients-ca.crt"
    assert found["principal_mapping_rules"] == "RULE:^CN=([^,+]+)$/$1/"
    own = tables(spec({"internal": {"protocol": "SSL", "principalMappingRules": "DEFAULT"}}))
    assert own["internal"]["principal_mapping_rules"] == "DEFAULT"
    both = tables(spec({"internal": {"protocol": "SASL_SSL", "clientAuth": "required"}}))["internal"]
    assert (both["client_auth"], "principal_mapping_rules" in both) == ("required", False)


def test_a_certificate_by_reference_is_in_a_folder_of_its_own() -> None:
    asked = spec({"external": {"type": "NodePort", "certificate": {"secretRef": {"name": "c-outside"}}}})
    assert tables(asked)["external"]["key"] == "/etc/headrace/server-external/tls.key"
    port = port_of(asked, "external")
    assert port is not None
    assert port.given_secret == "c-outside"  # a name
    assert port_of(asked, "secure") is None


def test_tokens_are_taken_of_one_issuer() -> None:
    oauth = {"jwksUrl": "https://i/keys", "issuer": 'https://i/"\x7fä', "audience": ["a"], "groupsClaim": "groups"}
    asked = spec({"internal": {"mechanisms": ["OAUTHBEARER"], "oauth": oauth, "maxReauthSeconds": 60}})
    found = tables(asked)["internal"]
    assert found["max_reauth_ms"] == 60_000
    assert found["oauth"] == {
        "jwks_url": "https://i/keys",
        "issuer": 'https://i/"\x7fä',
        "audience": ["a"],
        "groups_claim": "groups",
    }
    assert ports(asked)[0].mechanisms == ["OAUTHBEARER"]


THREE_FORMS = """[[listener]]
name = "internal"
main = true
protocol = "SSL"
certificate = "/etc/headrace/server/tls.crt"
key = "/etc/headrace/server/tls.key"
client_ca = "/etc/headrace/server/clients-ca.crt"
client_auth = "required"
principal_mapping_rules = "RULE:^CN=([^,+]+)$/$1/"

[[listener]]
name = "external"
port = 19092
protocol = "SASL_SSL"
mechanisms = ["SCRAM-SHA-512"]
certificate = "/etc/headrace/server/tls.crt"
key = "/etc/headrace/server/tls.key"

[[listener]]
name = "operator"
port = 8092
protocol = "SASL_SSL"
mechanisms = ["SCRAM-SHA-512"]
certificate = "/etc/headrace/server/tls.crt"
key = "/etc/headrace/server/tls.key"
"""


def test_what_is_stored_already_comes_to_the_same_files() -> None:
    """Otherwise an upgraded operator would recreate all pods."""
    stored = spec({"internal": {"protocol": "SSL"}, "external": {"type": "NodePort"}})
    assert files(stored)["shard-0.toml"] == THREE_FORMS


MORE: dict[str, Any] = {
    "additional": [
        {"name": "machines", "port": 9300, "protocol": "SSL", "clientCa": {"secretRef": {"name": "company"}}},
        {"name": "people", "port": 9310, "defaultStream": "/plant", "certificate": {"secretRef": {"name": "given"}}},
    ]
}


def test_there_are_more_by_names_and_ports_of_their_own() -> None:
    asked = spec(MORE, shards=2)
    assert fault(asked) == ""
    found = tables(asked, 1)
    assert list(found) == ["internal", "machines", "people", "operator"]
    assert (found["machines"]["port"], found["people"]["port"]) == (9301, 9311)
    assert found["people"]["default_stream"] == "/plant"
    assert found["people"]["certificate"] == "/etc/headrace/server-people/tls.crt"
    assert not allows_anonymous(asked)
    port = port_of(asked, "people")
    assert port is not None
    assert (port.first, port.mechanisms) == (9310, ["SCRAM-SHA-512"])


def test_a_stream_of_the_nodes_own_port_is_said_in_a_table() -> None:
    asked = spec({"internal": {"protocol": "PLAINTEXT", "defaultStream": "/plant"}})
    assert tables(asked)["internal"] == {
        "name": "internal",
        "main": True,
        "protocol": "PLAINTEXT",
        "default_stream": "/plant",
    }


def test_authorities_by_reference_have_files_of_their_own_and_make_nobody_the_operator() -> None:
    asked = spec(MORE)
    table = tables(asked)["machines"]
    assert table["client_ca"] == "/etc/headrace/server/clients-ca-machines.crt"
    mapping = principal_mapping.parse(table["principal_mapping_rules"])
    assert mapping.user("CN=press-7") == "press-7"
    assert mapping.user("CN=headrace-operator-2") == "headrace-operator-2"
    for subject in ("CN=headrace-operator", "CN=press-7,O=plant"):
        with pytest.raises(PrincipalRefused):
            mapping.user(subject)
    machines = port_of(asked, "machines")
    assert machines is not None
    assert not machines.takes_own_certificates


def test_the_issuers_server_is_trusted_by_a_file_of_its_own() -> None:
    oauth = {"jwksUrl": "https://i/keys", "issuer": "i", "audience": ["a"], "jwksCa": {"configMapRef": {"name": "cas"}}}
    asked = spec({"internal": {"mechanisms": ["OAUTHBEARER"], "oauth": oauth}})
    assert tables(asked)["internal"]["oauth"]["jwks_ca"] == "/etc/headrace/server/jwks-ca-internal.crt"


@pytest.mark.parametrize(
    ("given", "more", "says"),
    [
        (
            {"protocol": "SSL", "principalMappingRules": "RULE:(/x/"},
            {},
            "listener more: principalMappingRules cannot be",
        ),
        (
            {
                "mechanisms": ["OAUTHBEARER"],
                "oauth": {"jwksUrl": "https://u:p@i/keys", "issuer": "i", "audience": ["a"]},
            },
            {},
            "listener more: oauth.jwksUrl: ",
        ),
        (
            {},
            {"shards": 3, "pod": {"sidecars": [{"name": "proxy", "ports": [{"containerPort": 9302}]}]}},
            "listener more: port 9302 is that of pod.sidecars, container proxy",
        ),
        (
            {},
            {"pod": {"sidecars": [{"name": "proxy", "ports": [{"containerPort": 9300, "protocol": "UDP"}, "odd"]}]}},
            "",
        ),
    ],
)
def test_what_nodes_would_not_start_with_is_told(given: dict[str, Any], more: dict[str, Any], says: str) -> None:
    told = fault(spec({"additional": [{"name": "more", "port": 9300, **given}]}, **more))
    assert told.startswith(says)
    assert bool(told) is bool(says)
    assert "p@i" not in told
