"""The Secret with the operator's credentials at a cluster's nodes. Pure.

    user, password     of the user headrace-operator, which nodes make the cluster's administrator when they start
    next-password      the password to which the cluster is about to be changed; present only during the change
    admin.toml         the first two, as nodes read them (headrace.node.bootstrap_admin)
    client.properties  the same for `headrace` in a pod

Anybody who may read it administers the cluster. It outlives the resource, as do the data, which hold its password.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace_operator.builders.authorities import encoded
from headrace_operator.builders.listeners import DEFAULT_MECHANISM, SERVER
from headrace_operator.builders.names import OPERATOR_USER, Manifest
from headrace_operator.builders.secured_pods import ADMIN_FILE, PROPERTIES_FILE

PASSWORD_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Proofs:
    """The operator's credentials in the Secret."""

    password: str = field(repr=False)
    next_password: str = field(default="", repr=False)
    """"" if no change of the password is under way."""


def made() -> Proofs:
    """Return the credentials for a new cluster."""
    return Proofs(generated())


def generated() -> str:
    """Return a random password."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def read(values: Mapping[str, str]) -> Proofs | None:
    """Return the credentials from a Secret's decoded data; None if it has none."""
    if not values.get("password"):
        return None
    return Proofs(values["password"], values.get("next-password", ""))


def properties(proofs: Proofs, ca: str) -> dict[str, str]:
    """Return the operator's client properties, for headrace.security.client_security. `ca`: PEM."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": DEFAULT_MECHANISM,
        "sasl.username": OPERATOR_USER,
        "sasl.password": proofs.password,
        "ssl.ca.pem": ca,
    }


def secret(proofs: Proofs, *, metadata: Manifest) -> Manifest:
    """Return the Secret."""
    told = {name: value for name, value in properties(proofs, "").items() if name != "ssl.ca.pem"}
    told["ssl.ca.location"] = f"{SERVER}/ca.crt"
    values = {
        "user": OPERATOR_USER,
        "password": proofs.password,
        ADMIN_FILE: f"user = {json.dumps(OPERATOR_USER)}\npassword = {json.dumps(proofs.password)}\n",
        PROPERTIES_FILE: "".join(f"{name}={value}\n" for name, value in told.items()),
    }
    if proofs.next_password:
        values["next-password"] = proofs.next_password
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": encoded(values)}
