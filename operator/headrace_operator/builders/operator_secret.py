"""Whom the operator is to a cluster's nodes: a Secret with a password. Pure.

    user, password     of the user headrace-operator, whom nodes make the cluster's administrator at their start
    next-password      one that is about to be told to the cluster; there for a moment alone
    admin.toml         the first two, as nodes read them (headrace.node.bootstrap_admin)
    client.properties  the same for `headrace` in a pod

Who may read it administers the cluster. It outlives the resource, as the data do, which know its password.
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
    """What is in it."""

    password: str = field(repr=False)
    next_password: str = field(default="", repr=False)
    """"": none is under way."""


def made() -> Proofs:
    """Of a new cluster."""
    return Proofs(generated())


def generated() -> str:
    """A password."""
    return secrets.token_urlsafe(PASSWORD_BYTES)


def read(values: Mapping[str, str]) -> Proofs | None:
    """What a Secret's decoded data say; None: they have none."""
    if not values.get("password"):
        return None
    return Proofs(values["password"], values.get("next-password", ""))


def properties(proofs: Proofs, ca: str) -> dict[str, str]:
    """The operator's own, for headrace.security.client_security. `ca`: PEM."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": DEFAULT_MECHANISM,
        "sasl.username": OPERATOR_USER,
        "sasl.password": proofs.password,
        "ssl.ca.pem": ca,
    }


def secret(proofs: Proofs, *, metadata: Manifest) -> Manifest:
    """The Secret."""
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
