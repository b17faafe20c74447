"""Fetches a key set by HTTP: one bounded request to the configured address, and to no other host.

Imported only if a listener accepts OAUTHBEARER.
"""

import asyncio
import ssl
from typing import Final
from urllib.parse import urljoin, urlsplit

import aiohttp

from headrace.security.sasl.jwks import MAX_JWKS_BYTES, JwksUnavailable
from headrace.security.sasl.oauth_settings import checked_jwks_url

LIMIT_S: Final = 10.0
"""Seconds for the whole request, redirects included."""
MAX_REDIRECTS: Final = 3

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"}


async def fetch_jwks(url: str, *, context: ssl.SSLContext | None = None) -> bytes:
    """The document at `url`. `context`: which authorities TLS trusts, if not the machine's.

    Raises JwksUnavailable, and KafkaError INVALID_CONFIG for an address that is neither https nor loopback.
    """
    checked_jwks_url(url)
    try:
        async with (
            asyncio.timeout(LIMIT_S),
            # No proxy and no netrc of the environment, no cookies, nothing to unpack.
            aiohttp.ClientSession(
                headers=_HEADERS, trust_env=False, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            ) as session,
        ):
            for _ in range(1 + MAX_REDIRECTS):
                async with session.get(url, allow_redirects=False, ssl=context or True) as response:
                    if response.status not in _REDIRECTS:
                        return await _document(response)
                    url = _redirected(url, response.headers.get("Location", ""))
    except TimeoutError:
        raise JwksUnavailable(f"no answer within {LIMIT_S:.0f} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise JwksUnavailable(f"no answer: {type(error).__name__}") from error
    raise JwksUnavailable(f"more than {MAX_REDIRECTS} redirects")


def _redirected(url: str, location: str) -> str:
    """The target of a redirect, which has to be on the same server."""
    target = urljoin(url, location)
    before, after = urlsplit(url), urlsplit(target)
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        raise JwksUnavailable("redirected to another host")
    return target


async def _document(response: aiohttp.ClientResponse) -> bytes:
    if response.status != 200:
        raise JwksUnavailable(f"answered with status {response.status}")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise JwksUnavailable("answered with a compressed document")
    document = bytearray()
    async for part in response.content.iter_chunked(64 << 10):
        document += part
        if len(document) > MAX_JWKS_BYTES:
            raise JwksUnavailable(f"the key set is longer than {MAX_JWKS_BYTES} bytes")
    return bytes(document)
