"""A cluster's listeners, as its nodes read them (headrace.security.listener_config). Pure.

A cluster has `internal` for clients inside Kubernetes, at the nodes' main port; optionally `secure`, a second one
inside to which clients migrate; optionally `external` for clients outside; any number of `additional` ones with their
own names and ports; and the operator's. With security each is SASL_SSL, unless the resource explicitly says otherwise.
Without security nodes have no listener file and use their default listeners.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.base.errors import KafkaError
from headrace.security import principal_mapping
from headrace.security.principal_mapping import MappingFault
from headrace.security.sasl.oauth_settings import checked_jwks_url
from headrace_operator.builders.names import CLIENT_PORT, EXTERNAL_PORT, OPERATOR_PORT, OPERATOR_USER, SECURE_PORT
from headrace_operator.specs import Additional, Authorities, ClusterSpec, External, Listener, OAuth, Outside

SERVER: Final = "/etc/headrace/server"
"""Where pods mount the Secret with the certificate that nodes show clients."""
CLIENTS_CA: Final = "clients-ca.crt"
DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"
OWN_SUBJECTS: Final = "RULE:^CN=([^,+]+)$/$1/"
"""Maps the subjects of StreamUsers' certificates to users. Other subjects are refused."""
GIVEN_SUBJECTS: Final = f"RULE:^CN=(?!{OPERATOR_USER}$)([^,+]+)$/$1/"
"""Maps the subjects of certificates of user-provided authorities to users, except to the operator's user."""
OPERATOR: Final = "operator"
EXTERNAL: Final = "external"
OUTSIDE: Final = "-external"
"""Suffix of the names of Services for clients outside."""


@dataclass(frozen=True, slots=True)
class Port:
    """One listener of every node."""

    name: str
    first: int
    """The listener's port on shard 0."""
    asked: Listener

    @property
    def protocol(self) -> str:
        """The security protocol, by Kafka's name."""
        return self.asked.protocol or "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether the listener uses TLS."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def client_auth(self) -> str:
        """Whether clients show certificates: with SSL they must, unless the resource says otherwise."""
        return self.asked.client_auth or ("required" if self.protocol == "SSL" else "none")

    @property
    def mechanisms(self) -> list[str]:
        """The SASL mechanisms; empty without SASL."""
        return (self.asked.mechanisms or [DEFAULT_MECHANISM]) if self.has_sasl else []

    @property
    def lets_anybody_in(self) -> bool:
        """Whether clients may connect without authentication."""
        return not self.has_sasl and (not self.has_tls or self.client_auth != "required")

    @property
    def client_ca_entry(self) -> str:
        """The entry of the Secret NAME-server with the authorities of clients' certificates; "" if clients are asked
        for none.
        """
        if not self.has_tls or self.client_auth == "none":
            return ""
        return CLIENTS_CA if self.asked.client_ca is None else f"clients-ca-{self.name}.crt"

    @property
    def takes_own_certificates(self) -> bool:
        """Whether certificates of the cluster's own authority are accepted, if clients are asked for one."""
        return self.asked.client_ca is None or self.asked.client_ca.include_cluster_ca

    @property
    def jwks_ca(self) -> Authorities | None:
        """The authorities that certify the server of the token issuer's keys; None for those of the image."""
        return None if self.asked.oauth is None or not self.has_sasl else self.asked.oauth.jwks_ca

    @property
    def jwks_ca_entry(self) -> str:
        """The entry of the Secret NAME-server with the authorities for the server of the issuer's keys."""
        return f"jwks-ca-{self.name}.crt"

    @property
    def outside(self) -> Outside | None:
        """How clients outside reach the listener; None if they do not."""
        match self.asked:
            case External():
                return self.asked.outside
            case Additional():
                return self.asked.external
        return None

    def outside_service(self, pod: str) -> str:
        """Return the name of a pod's Service for clients outside, by the listener's port, as the listener's name may be
        too long.
        """
        return f"{pod}{OUTSIDE}" if self.name == EXTERNAL else f"{pod}-{self.first}{OUTSIDE}"

    @property
    def given_secret(self) -> str | None:
        """The name of the Secret with the listener's certificate if the user provides it; None if the operator issues
        it.
        """
        return None if self.asked.certificate is None else self.asked.certificate.secret_ref.name


def ports(spec: ClusterSpec) -> list[Port]:
    """Return the clients' listeners, and the operator's as the last one."""
    found = [Port("internal", CLIENT_PORT, spec.listeners.internal)]
    if spec.listeners.secure is not None:
        found.append(Port("secure", SECURE_PORT, spec.listeners.secure))
    if spec.listeners.external is not None:
        found.append(Port(EXTERNAL, EXTERNAL_PORT, spec.listeners.external))
    found += [Port(each.name, each.port, each) for each in spec.listeners.additional]
    return [*found, Port(OPERATOR, OPERATOR_PORT, Listener(protocol="SASL_SSL", mechanisms=[DEFAULT_MECHANISM]))]


def exposed(spec: ClusterSpec) -> list[Port]:
    """Return the listeners that clients outside reach."""
    return [port for port in ports(spec) if port.outside is not None]


def port_of(spec: ClusterSpec, name: str) -> Port | None:
    """Return a listener by its name; None if there is none."""
    return next((port for port in ports(spec) if port.name == name), None)


def fault(spec: ClusterSpec) -> str:
    """Return what is wrong with the first listener that would keep nodes from starting and that no schema rejects; ""
    if nothing is.
    """
    for port in ports(spec):
        where = f"listener {port.name}"
        try:
            if port.asked.principal_mapping_rules is not None:
                principal_mapping.parse(port.asked.principal_mapping_rules)
            if port.asked.oauth is not None:
                checked_jwks_url(port.asked.oauth.jwks_url)
        except MappingFault as error:
            return f"{where}: principalMappingRules cannot be read: {error}"
        except KafkaError as error:
            return f"{where}: oauth.jwksUrl: {error}"
        for container in spec.pod.sidecars:
            for number in _tcp_ports(container):
                if port.first <= number < port.first + spec.shards:
                    return f"{where}: port {number} is that of pod.sidecars, container {container.get('name')}"
    return ""


def _tcp_ports(container: Mapping[str, Any]) -> list[int]:
    """Return the TCP ports that a container declares; Kubernetes itself validates their form."""
    declared = container.get("ports")
    known = [each for each in declared if isinstance(each, Mapping)] if isinstance(declared, list) else []
    numbers = [each.get("containerPort") for each in known if each.get("protocol", "TCP") == "TCP"]
    return [number for number in numbers if isinstance(number, int)]


def allows_anonymous(spec: ClusterSpec) -> bool:
    """Return whether some listener explicitly allows clients without authentication."""
    return any(port.lets_anybody_in for port in ports(spec))


def file_name(shard: int) -> str:
    """Return the name of one storage node's listener file."""
    return f"shard-{shard}.toml"


def files(spec: ClusterSpec) -> dict[str, str]:
    """Return the listener files, one for each storage node in a pod."""
    return {file_name(shard): "\n".join(_tables(spec, shard)) for shard in range(spec.shards)}


def _tables(spec: ClusterSpec, shard: int) -> Iterator[str]:
    for port in ports(spec):
        if port.name == "internal" and not port.has_tls and not port.has_sasl and port.asked.default_stream is None:
            continue  # the node's default listener, from --port
        yield "[[listener]]"
        place = {"main": True} if port.name == "internal" else {"port": port.first + shard}
        for key, value in {"name": port.name, **place, **_keys(port)}.items():
            yield f"{key} = {_toml(value)}"
        if port.asked.oauth is not None:
            yield "[listener.oauth]"
            for key, value in _oauth(port.asked.oauth, port).items():
                yield f"{key} = {_toml(value)}"
        yield ""


def certificate_folder(port: Port) -> str:
    """Return where pods mount a listener's certificate."""
    return SERVER if port.given_secret is None else f"{SERVER}-{port.name}"


def _keys(port: Port) -> Mapping[str, Any]:
    found: dict[str, Any] = {"protocol": port.protocol}
    if port.asked.default_stream is not None:
        found["default_stream"] = port.asked.default_stream
    if port.has_sasl:
        found["mechanisms"] = port.mechanisms
        if port.asked.max_reauth_seconds:
            found["max_reauth_ms"] = port.asked.max_reauth_seconds * 1000
    if not port.has_tls:
        return found
    folder = certificate_folder(port)
    found |= {"certificate": f"{folder}/tls.crt", "key": f"{folder}/tls.key"}
    if port.client_auth != "none":
        found |= {"client_ca": f"{SERVER}/{port.client_ca_entry}", "client_auth": port.client_auth}
        if not port.has_sasl:
            subjects = OWN_SUBJECTS if port.asked.client_ca is None else GIVEN_SUBJECTS
            found["principal_mapping_rules"] = port.asked.principal_mapping_rules or subjects
    return found


def _oauth(asked: OAuth, port: Port) -> Mapping[str, Any]:
    found: dict[str, Any] = {"jwks_url": asked.jwks_url, "issuer": asked.issuer, "audience": asked.audience}
    more = {
        "user_claim": asked.user_claim,
        "scope_claim": asked.scope_claim,
        "required_scopes": asked.required_scopes,
        "groups_claim": asked.groups_claim,
        "jwks_ca": None if asked.jwks_ca is None else f"{SERVER}/{port.jwks_ca_entry}",
    }
    return found | {key: value for key, value in more.items() if value}


def _toml(value: object) -> str:
    """Return `value` in TOML: JSON's text, numbers and lists are valid TOML, except for U+007F, which TOML escapes."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
