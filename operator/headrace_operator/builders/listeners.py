"""A cluster's listeners, as its nodes read them (headrace.security.listener_config). Pure.

There are the one inside (`internal`, at the nodes' own port), a second one inside for clients that move there
(`secure`), the one outside (`external`), more of them by names and ports of their own (`additional`), and the
operator's. Where security is enabled each is SASL_SSL, unless the resource says otherwise in so many words. Where it is
not, nodes have no file: they listen as they ever did.
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
"""Where pods have the Secret with what they show clients."""
CLIENTS_CA: Final = "clients-ca.crt"
DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"
OWN_SUBJECTS: Final = "RULE:^CN=([^,+]+)$/$1/"
"""The subjects of StreamUsers' certificates, to users. Others are refused."""
GIVEN_SUBJECTS: Final = f"RULE:^CN=(?!{OPERATOR_USER}$)([^,+]+)$/$1/"
"""The same of authorities that are somebody else's, which make nobody the operator."""
OPERATOR: Final = "operator"
EXTERNAL: Final = "external"
OUTSIDE: Final = "-external"
"""How the names of the Services end that are for clients outside."""


@dataclass(frozen=True, slots=True)
class Port:
    """One listener of every node."""

    name: str
    first: int
    """Its port at shard 0."""
    asked: Listener

    @property
    def protocol(self) -> str:
        """As Kafka calls it."""
        return self.asked.protocol or "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether it speaks TLS."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self.protocol.startswith("SASL_")

    @property
    def client_auth(self) -> str:
        """Whether clients show certificates: with SSL they have to, unless somebody says otherwise."""
        return self.asked.client_auth or ("required" if self.protocol == "SSL" else "none")

    @property
    def mechanisms(self) -> list[str]:
        """Of SASL; none without it."""
        return (self.asked.mechanisms or [DEFAULT_MECHANISM]) if self.has_sasl else []

    @property
    def lets_anybody_in(self) -> bool:
        """Whether clients come in that prove nothing."""
        return not self.has_sasl and (not self.has_tls or self.client_auth != "required")

    @property
    def client_ca_entry(self) -> str:
        """The entry of NAME-server with the authorities of its clients; "": none is asked for a certificate."""
        if not self.has_tls or self.client_auth == "none":
            return ""
        return CLIENTS_CA if self.asked.client_ca is None else f"clients-ca-{self.name}.crt"

    @property
    def takes_own_certificates(self) -> bool:
        """Whether clients may show those of the cluster's own authority, if they are asked for one."""
        return self.asked.client_ca is None or self.asked.client_ca.include_cluster_ca

    @property
    def jwks_ca(self) -> Authorities | None:
        """Whom it trusts to be the issuer of tokens; None: the authorities of its image."""
        return None if self.asked.oauth is None or not self.has_sasl else self.asked.oauth.jwks_ca

    @property
    def jwks_ca_entry(self) -> str:
        """The entry of NAME-server with these."""
        return f"jwks-ca-{self.name}.crt"

    @property
    def outside(self) -> Outside | None:
        """How clients outside reach it; None: they do not."""
        match self.asked:
            case External():
                return self.asked.outside
            case Additional():
                return self.asked.external
        return None

    def outside_service(self, pod: str) -> str:
        """The name of a pod's Service for clients outside. By the port: a listener's name has no room in it."""
        return f"{pod}{OUTSIDE}" if self.name == EXTERNAL else f"{pod}-{self.first}{OUTSIDE}"

    @property
    def given_secret(self) -> str | None:
        """The Secret with its certificate, where that is not the operator's own."""
        return None if self.asked.certificate is None else self.asked.certificate.secret_ref.name


def ports(spec: ClusterSpec) -> list[Port]:
    """The clients' listeners, and the operator's at last."""
    found = [Port("internal", CLIENT_PORT, spec.listeners.internal)]
    if spec.listeners.secure is not None:
        found.append(Port("secure", SECURE_PORT, spec.listeners.secure))
    if spec.listeners.external is not None:
        found.append(Port(EXTERNAL, EXTERNAL_PORT, spec.listeners.external))
    found += [Port(each.name, each.port, each) for each in spec.listeners.additional]
    return [*found, Port(OPERATOR, OPERATOR_PORT, Listener(protocol="SASL_SSL", mechanisms=[DEFAULT_MECHANISM]))]


def exposed(spec: ClusterSpec) -> list[Port]:
    """Those that clients outside reach."""
    return [port for port in ports(spec) if port.outside is not None]


def port_of(spec: ClusterSpec, name: str) -> Port | None:
    """A listener by its name."""
    return next((port for port in ports(spec) if port.name == name), None)


def fault(spec: ClusterSpec) -> str:
    """What is wrong with the first listener that nodes would not start with, and that no schema finds; "": nothing."""
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
    """Those that a container declares; Kubernetes itself looks at their form."""
    declared = container.get("ports")
    known = [each for each in declared if isinstance(each, Mapping)] if isinstance(declared, list) else []
    numbers = [each.get("containerPort") for each in known if each.get("protocol", "TCP") == "TCP"]
    return [number for number in numbers if isinstance(number, int)]


def allows_anonymous(spec: ClusterSpec) -> bool:
    """Whether some listener lets anybody in, as somebody has said in so many words."""
    return any(port.lets_anybody_in for port in ports(spec))


def file_name(shard: int) -> str:
    """Of one storage node's file."""
    return f"shard-{shard}.toml"


def files(spec: ClusterSpec) -> dict[str, str]:
    """The files, one a storage node in a pod."""
    return {file_name(shard): "\n".join(_tables(spec, shard)) for shard in range(spec.shards)}


def _tables(spec: ClusterSpec, shard: int) -> Iterator[str]:
    for port in ports(spec):
        if port.name == "internal" and not port.has_tls and not port.has_sasl and port.asked.default_stream is None:
            continue  # the node's own, of --port
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
    """Where pods have a listener's certificate."""
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
    """JSON's text, numbers and lists are TOML's, but for one character that TOML has escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
