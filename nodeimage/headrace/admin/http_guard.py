"""Who may ask what at a node's HTTP port. Pure, but for the file of the token.

    health, metrics   whoever reaches the port
    all others        from this machine's own addresses; from elsewhere with `Authorization: Bearer TOKEN`, where TOKEN
                      is what the file of `--admin-token-file` holds at that moment. Without a file, or with an empty
                      one, nobody from elsewhere

A browser on this machine is no administrator, whatever page it shows: what comes from here has to name this machine as
its host (a name that leads here since a moment ago is somebody else's: DNS rebinding), and what changes something must
not come from a page (Origin, Sec-Fetch-Site: its requests reach other hosts without being asked).
"""

import hashlib
import hmac
from collections.abc import Collection, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from headrace.base.admission import is_local

MOST_TOKEN: Final = 4_096
"""Bytes of the file."""
_SCHEME: Final = "bearer "
_LOCAL_NAME: Final = "localhost"


class Refusal(NamedTuple):
    """What a request gets instead of its answer."""

    status: HTTPStatus
    reason: str


def refusal(
    headers: Mapping[str, str],
    *,
    remote: str,
    is_open: bool,
    names: Collection[str],
    token: bytes,
) -> Refusal | None:
    """Why a request is refused; None: it is not. `headers`: by names in lower case. `remote`: the address that it comes
    from. `is_open`: anybody may ask this. `names`: the node's own hosts and addresses. `token`: what makes up for
    coming from elsewhere; b"": nothing."""
    is_from_here = is_local(remote)
    if is_from_here and "host" in headers and not _names_this_machine(headers["host"], names):
        return Refusal(HTTPStatus.FORBIDDEN, "the Host header names neither this machine nor this node")
    if is_open:
        return None
    if headers.get("origin") is not None or headers.get("sec-fetch-site", "none") != "none":
        return Refusal(HTTPStatus.FORBIDDEN, "not from a page in a browser")
    if is_from_here or (token and _shows(headers.get("authorization", ""), token)):
        return None
    if not token:
        return Refusal(HTTPStatus.FORBIDDEN, "only from the same host, or with a token: see --admin-token-file")
    return Refusal(HTTPStatus.UNAUTHORIZED, "only from the same host, or with the token of --admin-token-file")


def read_token(path: Path | None) -> bytes:
    """[blocking] What a file holds, but for space around it; b"": nobody has a token. Raises OSError, ValueError."""
    if path is None:
        return b""
    with path.open("rb") as file:
        content = file.read(MOST_TOKEN + 1)
    if len(content) > MOST_TOKEN:
        raise ValueError(f"it has more than {MOST_TOKEN} bytes")
    return content.strip()


def _shows(authorization: str, token: bytes) -> bool:
    if not authorization.lower().startswith(_SCHEME):
        return False
    shown = authorization[len(_SCHEME) :].strip().encode("utf-8", "surrogateescape")
    # Hashes: neither the content nor the length of the token is to be heard from how long it takes.
    return hmac.compare_digest(hashlib.sha256(shown).digest(), hashlib.sha256(token).digest())


def _names_this_machine(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is one that no other site can have."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    name = name.lower().removesuffix(".")
    return name == _LOCAL_NAME or is_local(name) or (name != "" and name in {each.lower() for each in names})
