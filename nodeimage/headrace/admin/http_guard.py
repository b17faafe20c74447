"""Access rules of a node's HTTP port. Pure, except for reading the token's file.

    health, metrics   every client that reaches the port
    all others        clients on this machine's own addresses; remote clients with `Authorization: Bearer TOKEN`, where
                      TOKEN is the present content of the file of `--admin-token-file`. Without a file, or with an
                      empty one, no remote client

A browser on this machine is not an administrator, whatever page it shows. So local requests must name this machine as
their host (a host name that was just pointed here belongs to somebody else: DNS rebinding), and requests that change
something must not come from a page (Origin, Sec-Fetch-Site: pages can send requests to other hosts unasked).
"""

import hashlib
import hmac
from collections.abc import Collection, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from headrace.base.admission import is_local

MAX_TOKEN: Final = 4_096
"""The maximum number of bytes in the token's file."""
_SCHEME: Final = "bearer "
_LOCAL_NAME: Final = "localhost"


class Refusal(NamedTuple):
    """The status and reason of a refused request."""

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
    """Why a request is refused, or None if it is not. `headers`: by lower-case name. `remote`: the client's address.
    `is_open`: every client may send this request. `names`: the node's own hosts and addresses. `token`: allows remote
    clients that show it; b"": there is none."""
    is_from_here = is_local(remote)
    if is_from_here and "host" in headers and not _names_this_machine(headers["host"], names):
        return Refusal(HTTPStatus.FORBIDDEN, "the Host header names neither this machine nor this node")
    if is_open:
        return None
    if headers.get("origin") is not None or headers.get("sec-fetch-site", "none") != "none":
        return Refusal(HTTPStatus.FORBIDDEN, "requests from a page in a browser are refused")
    if is_from_here or (token and _shows(headers.get("authorization", ""), token)):
        return None
    if not token:
        return Refusal(HTTPStatus.FORBIDDEN, "only from the same host, or with a token: see --admin-token-file")
    return Refusal(HTTPStatus.UNAUTHORIZED, "only from the same host, or with the token of --admin-token-file")


def read_token(path: Path | None) -> bytes:
    """[blocking] The file's content without surrounding space; b"" without a file: nobody has a token. Raises OSError,
    ValueError."""
    if path is None:
        return b""
    with path.open("rb") as file:
        content = file.read(MAX_TOKEN + 1)
    if len(content) > MAX_TOKEN:
        raise ValueError(f"it has more than {MAX_TOKEN} bytes")
    return content.strip()


def _shows(authorization: str, token: bytes) -> bool:
    if not authorization.lower().startswith(_SCHEME):
        return False
    shown = authorization[len(_SCHEME) :].strip().encode("utf-8", "surrogateescape")
    # Hashes are compared, so that the time it takes reveals neither the token's content nor its length.
    return hmac.compare_digest(hashlib.sha256(shown).digest(), hashlib.sha256(token).digest())


def _names_this_machine(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this machine or node, so that it cannot be another site's."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    name = name.lower().removesuffix(".")
    return name == _LOCAL_NAME or is_local(name) or (name != "" and name in {each.lower() for each in names})
