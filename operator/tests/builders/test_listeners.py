"""The nodes' files of listeners: closed unless somebody says otherwise in so many words."""

import tomllib
from typing import Any

import msgspec

from headrace_operator.builders.listeners import allows_anonymous, file_name, files, port_of, ports
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
