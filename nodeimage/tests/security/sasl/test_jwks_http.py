"""Key sets by HTTP: from the configured address only, bounded, over verified TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from headrace.base.errors import KafkaError
from headrace.security.sasl import jwks_http
from headrace.security.sasl.jwks import MAX_JWKS_BYTES, JwksUnavailable
from headrace.security.sasl.jwks_http import fetch_jwks
from kit.certificates import Certificates

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A server whose answers the test decides."""

    def __init__(self) -> None:
        self.answer: Answer = self.keys
        self.requests: list[web.Request] = []
        self.port = 0
        self._runners: list[web.ServerRunner] = []

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        runner = web.ServerRunner(web.Server(self._handle))
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys"

    async def keys(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"keys":[]}')

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.BaseRequest)
        self.requests.append(request)  # type: ignore[arg-type]
        return await self.answer(request)  # type: ignore[arg-type]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    started = Server()
    await started.start()
    yield started
    await started.stop()


def redirect(target: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/moved":
            return web.Response(body=b'{"keys":[7]}')
        return web.Response(status=307, headers={"Location": target})

    return answer


async def test_a_key_set_is_fetched(server: Server) -> None:
    assert await fetch_jwks(server.url) == b'{"keys":[]}'


async def test_a_redirect_on_the_same_host_is_followed(server: Server) -> None:
    server.answer = redirect("/moved")
    assert await fetch_jwks(server.url) == b'{"keys":[7]}'


@pytest.mark.parametrize(
    "target",
    [
        "http://localhost:{port}/moved",
        "http://169.254.169.254/latest",
        "//evil.example/keys",
        "https://127.0.0.1:{port}/moved",
        "http://x@127.0.0.1:{port}/moved",
        "file:///etc/passwd",
    ],
)
async def test_a_redirect_to_another_host_is_refused(server: Server, target: str) -> None:
    server.answer = redirect(target.format(port=server.port))
    with pytest.raises(JwksUnavailable, match="another host"):
        await fetch_jwks(server.url)
    assert len(server.requests) == 1


async def test_redirects_without_end_are_refused(server: Server) -> None:
    server.answer = redirect("/keys")
    with pytest.raises(JwksUnavailable, match="redirects"):
        await fetch_jwks(server.url)
    assert len(server.requests) == 4


async def test_other_answers_are_refused(server: Server) -> None:
    async def missing(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=404, body=b'{"keys":[]}')

    server.answer = missing
    with pytest.raises(JwksUnavailable, match="status 404"):
        await fetch_jwks(server.url)


async def test_a_document_that_never_ends_is_cut(server: Server) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 100 * MAX_JWKS_BYTES:
            await response.write(b" " * 65536)
            sent += 65536
        return response

    server.answer = endless
    with pytest.raises(JwksUnavailable, match="longer than"):
        await fetch_jwks(server.url)
    assert sent < 100 * MAX_JWKS_BYTES


async def test_a_compressed_document_is_refused_and_not_decompressed(server: Server) -> None:
    async def compressed(_request: web.Request) -> web.StreamResponse:
        response = web.Response(body=b'{"keys":[]}' + b" " * 100_000)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    server.answer = compressed
    with pytest.raises(JwksUnavailable, match="a compressed document"):
        await fetch_jwks(server.url)


async def test_a_server_that_does_not_answer_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = asyncio.Event()

    async def silent(_request: web.Request) -> web.StreamResponse:
        await is_over.wait()
        return web.Response()

    server.answer = silent
    monkeypatch.setattr(jwks_http, "LIMIT_S", 0.2)
    with pytest.raises(JwksUnavailable, match="no answer within"):
        await fetch_jwks(server.url)
    is_over.set()


async def test_nobody_who_listens_is_told_as_such(server: Server) -> None:
    await server.stop()
    with pytest.raises(JwksUnavailable, match="no answer: ClientConnectorError"):
        await fetch_jwks(server.url)


@pytest.mark.parametrize("url", ["http://issuer.example/keys", "file:///etc/passwd", "ftp://127.0.0.1/", ""])
async def test_an_address_that_may_not_be_configured_is_not_asked(url: str) -> None:
    with pytest.raises(KafkaError):
        await fetch_jwks(url)


async def test_proxies_of_the_environment_are_not_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    assert await fetch_jwks(server.url) == b'{"keys":[]}'


async def test_tls_is_checked(certificates: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.path("server.pem"), certificates.path("server.key"))
    server = Server()
    await server.start(context)
    try:
        url = f"https://localhost:{server.port}/keys"
        trusting = ssl.create_default_context(cafile=certificates.path("ca.pem"))
        assert await fetch_jwks(url, context=trusting) == b'{"keys":[]}'
        with pytest.raises(JwksUnavailable, match="Certificate"):
            await fetch_jwks(url)
        other = ssl.create_default_context(cafile=certificates.path("other-ca.pem"))
        with pytest.raises(JwksUnavailable, match="Certificate"):
            await fetch_jwks(url, context=other)
    finally:
        await server.stop()
