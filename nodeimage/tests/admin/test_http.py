import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
import uvloop
from yarl import URL

from headrace.admin import http, http_guard
from headrace.admin.http import HttpPort
from headrace.base.errors import Code, KafkaError


class Answers:
    """A node whose answers the test sets."""

    def __init__(self, token_file: Path) -> None:
        self.token_file = token_file
        self.why_not = "the node waits for the catalog"
        self.handed_over = 0
        self.port = HttpPort(
            ready=lambda: self.why_not,
            safe=lambda: "",
            metrics=self.metrics,
            kafka_metrics=self.metrics,
            hand_over=self.hand_over,
            recover_store=self.recover_store,
            token_file=token_file,
            names=["node-1.example"],
        )
        self.url = ""
        self.scraped: bytes | Exception | None = None

    async def metrics(self) -> bytes | None:
        if isinstance(self.scraped, Exception):
            raise self.scraped
        return self.scraped

    async def hand_over(self) -> None:
        self.handed_over += 1

    async def recover_store(self, apply: bool) -> dict[str, object]:
        if not self.why_not:
            raise KafkaError(Code.POLICY_VIOLATION, "node 3 does not answer")
        return {"done": apply}

    async def ask(
        self, path: str, method: str = "GET", *, headers: Mapping[str, str] | None = None, data: bytes | None = None
    ) -> tuple[int, str]:
        url = URL(self.url + path, encoded=True)
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, headers=headers, data=data) as answer,
        ):
            return answer.status, await answer.text()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Answers]:
    served = Answers(tmp_path / "token")
    served.url = f"http://127.0.0.1:{await served.port.start('127.0.0.1', 0)}"
    yield served
    await served.port.close()


async def test_records_are_put_back_where_that_is_said(node: Answers) -> None:
    assert await node.ask("/recover-store", "POST") == (200, '{"done": false}')
    assert await node.ask("/recover-store?apply=1", "POST") == (200, '{"done": true}')
    node.why_not = ""
    assert await node.ask("/recover-store", "POST") == (409, "node 3 does not answer\n")
    assert (await node.ask("/recover-store"))[0] == 405


async def test_a_node_that_starts_lives_and_says_what_it_waits_for(node: Answers) -> None:
    assert await node.ask("/livez") == (200, "ok\n")
    assert await node.ask("/readyz") == (503, "the node waits for the catalog\n")
    assert await node.ask("/safez") == (200, "ok\n")
    assert (await node.ask("/metrics"))[0] == 503
    node.why_not = ""
    assert await node.ask("/readyz") == (200, "ok\n")


@pytest.mark.parametrize("path", ["/metrics", "/metrics/kafka"])
async def test_a_scrape_gets_metrics_or_hears_that_there_are_none(node: Answers, path: str) -> None:
    assert await node.ask(path) == (503, "the node starts or stops\n")
    node.scraped = b"headrace_ready 1\n"
    assert await node.ask(path) == (200, "headrace_ready 1\n")
    node.scraped = KafkaError(Code.COORDINATOR_NOT_AVAILABLE, "the catalog is closed")
    assert await node.ask(path) == (503, "the catalog is closed\n")
    node.scraped = RuntimeError("cannot schedule new futures after shutdown")
    assert await node.ask(path) == (503, "the node starts or stops\n")


async def test_a_port_for_metrics_alone_has_nothing_that_changes_anything(node: Answers) -> None:
    alone = HttpPort(
        ready=lambda: "",
        safe=lambda: "",
        metrics=node.metrics,
        kafka_metrics=node.metrics,
        hand_over=node.hand_over,
        recover_store=node.recover_store,
        is_read_only=True,
    )
    node.url = f"http://127.0.0.1:{await alone.start('127.0.0.1', 0)}"
    node.scraped = b"headrace_ready 1\n"
    assert await node.ask("/metrics") == (200, "headrace_ready 1\n")
    assert (await node.ask("/hand-over", "POST"))[0] == (await node.ask("/recover-store", "POST"))[0] == 404
    assert node.handed_over == 0
    await alone.close()


async def test_only_a_post_hands_over(node: Answers) -> None:
    assert (await node.ask("/hand-over"))[0] == 405
    assert await node.ask("/hand-over", "POST") == (200, "ok\n")
    assert node.handed_over == 1


async def test_connections_that_say_nothing_keep_no_probe_out(node: Answers) -> None:
    port = int(node.url.rpartition(":")[2])
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
    assert await node.ask("/livez") == (200, "ok\n")
    begun = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
    for _, writer in begun:
        writer.write(b"GET /livez HTTP/1.1\r\nHost: ")  # the rest is never sent
    assert await node.ask("/livez") == (200, "ok\n")
    for _, writer in (*silent, *begun):
        writer.close()


async def test_connections_that_are_kept_alive_make_way_when_they_are_idle(node: Answers) -> None:
    port = int(node.url.rpartition(":")[2])
    kept = []
    for _ in range(80):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"ok\n"), 10)).startswith(b"HTTP/1.1 200")
        kept.append(writer)
    assert await node.ask("/livez") == (200, "ok\n")
    assert len(node.port._connections.admission) <= 32 + 16 + 1
    for writer in kept:
        writer.close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every client come from another machine."""
    for module in (http, http_guard):
        monkeypatch.setattr(module, "is_local", lambda _: False)


@pytest.mark.usefixtures("elsewhere")
async def test_from_elsewhere_a_token_is_needed_for_what_changes_something(node: Answers) -> None:
    asked = {"Authorization": "Bearer open-sesame"}
    assert (await node.ask("/hand-over", "POST", headers=asked))[0] == 403  # the file does not exist
    node.token_file.write_text(" \n")
    assert (await node.ask("/hand-over", "POST", headers=asked))[0] == 403
    assert (await node.ask("/hand-over", "POST", headers={"Authorization": "Bearer "}))[0] == 403
    node.token_file.write_text("open-sesame\n")
    for headers in ({}, {"Authorization": "Bearer open-sesam"}, {"Authorization": "Basic open-sesame"}):
        assert (await node.ask("/hand-over", "POST", headers=headers))[0] == (401 if headers else 403)
    assert node.handed_over == 0
    assert await node.ask("/hand-over", "POST", headers=asked) == (200, "ok\n")
    assert (await node.ask("/recover-store?apply=1", "POST", headers=asked))[0] == 200
    node.token_file.write_text("another")
    assert (await node.ask("/hand-over", "POST", headers=asked))[0] == 401
    node.token_file.write_text("x" * 5_000)
    assert (await node.ask("/hand-over", "POST", headers={"Authorization": f"Bearer {'x' * 5_000}"}))[0] == 403
    assert node.handed_over == 1


@pytest.mark.usefixtures("elsewhere")
async def test_health_is_for_whoever_reaches_the_port(node: Answers) -> None:
    assert await node.ask("/livez", headers={"Host": "10.0.0.7:8080"}) == (200, "ok\n")
    assert (await node.ask("/metrics"))[0] == 503
    assert (await node.ask("/readyz"))[0] == 503


PATHS = (
    "/",
    "/status",
    "//hand-over",
    "/hand-over/",
    "/hand-over;x",
    "/HAND-OVER",
    "/hand%2Dover/x",
    "/livez/hand-over",
    "/livez/../hand-over",
    "/livez/..%2fhand-over",
    "/livez%2f..%2fhand-over",
    "/.//hand-over",
    "/metrics/x",
)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "TRACE"])
async def test_no_path_leads_where_no_route_is(node: Answers, elsewhere: None, method: str) -> None:
    for path in PATHS:
        assert (await node.ask(path, method))[0] in (404, 405), path
    for path in ("/hand-over", "/recover-store", "/hand%2dover", "/hand-over?apply=1"):
        assert (await node.ask(path, method))[0] in (403, 404, 405), path
    assert node.handed_over == 0


async def test_a_page_in_a_browser_changes_nothing(node: Answers) -> None:
    for headers in (
        {"Host": "rebound.example:8080"},
        {"Host": "127.0.0.1.rebound.example"},
        {"Host": ""},
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-origin"},
    ):
        assert (await node.ask("/hand-over", "POST", headers=headers))[0] == 403, headers
    assert (await node.ask("/metrics", headers={"Host": "rebound.example"}))[0] == 403
    assert node.handed_over == 0
    for host in ("localhost:1", "127.0.0.1", "[::1]:8080", "NODE-1.example:8080", "localhost."):
        assert (await node.ask("/hand-over", "POST", headers={"Host": host}))[0] == 200, host


async def test_no_request_has_a_body(node: Answers) -> None:
    for path, method in (("/hand-over", "POST"), ("/livez", "GET")):
        assert (await node.ask(path, method, data=b"x" * 10_000))[0] == 413
    assert node.handed_over == 0
    assert (await node.ask("/hand-over", "POST"))[0] == 200


async def said(port: int, *pieces: bytes, ends: bool = False) -> bytes:
    """All that is answered until the port closes the connection; pieces that cannot be sent any longer are dropped."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        if ends:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


HOST = b"Host: localhost\r\n"
LAST = b"GET /livez HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
LONG = b"headrace_ready 1\n" * 300_000
"""An answer longer than the kernel takes at once."""


async def hostile(node: Answers) -> None:
    """Do what clients do that no library would."""
    port = await node.port.start("127.0.0.1", 0)
    ahead = await said(port, *[LAST.replace(b"close", b"keep-alive")] * 50, LAST)
    assert ahead.count(b"HTTP/1.1 200 OK\r\n") == ahead.count(b"\r\n\r\nok\n") == 51
    assert (await said(port, b"GET /livez HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\nok\n")
    assert (await said(port, b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n", ends=True)).endswith(b"\r\n\r\nok\n")
    assert await said(port, b"GET /livez HTTP/1.1\r\n" + HOST, ends=True) == b""
    assert (await said(port, LAST.replace(b"GET", b"HEAD"))).endswith(b"\r\n\r\n")
    assert (await said(port, b"GET http://rebound.example/livez HTTP/1.1\r\n" + HOST + b"\r\n")).split()[1] == b"403"
    assert (await said(port, LAST.replace(b" /", b" http://localhost/"))).endswith(b"\r\n\r\nok\n")
    for first, rest, status in (
        (b"GET /livez HTTP/1.1\r\nX: ", [b"x" * 4_096] * 500, b"431"),
        (b"GET /livez HTTP/1.1\r\n", [b"Cookie: x\r\n"] * 50_000, b"431"),
        (b"POST /hand-over HTTP/1.1\r\nContent-Length: 99999999\r\n" + HOST + b"\r\n", [b"x" * 65_536] * 50, b"413"),
        (b"POST /hand-over HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n", [b"0\r\n\r\n"], b"413"),
        (b"POST /hand-over HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n" + HOST + b"\r\n", [], b"413"),
        (b"POST /hand-over HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 1\r\n" + HOST + b"\r\n", [b"x"], b"400"),
        (b"POST /nowhere HTTP/1.1\r\nContent-Length: 5\r\n" + HOST + b"\r\n", [b"x" * 5], b"404"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [b"\x00" * 512], b"400"),
    ):
        answer = await said(port, first, *rest)
        assert answer.split()[1:2] == [status], first
        assert answer.count(b"HTTP/1.1 ") == 1, first
    assert node.handed_over == 0

    node.scraped = LONG
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
    writer.write(b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n" + LAST)
    assert (await said(port, LAST)).endswith(b"ok\n"), "who does not read holds nobody up"
    assert [each._writes for each in node.port._connections._idle].count(True) == 1
    told = await asyncio.wait_for(reader.read(), 60)
    assert told.count(LONG) == 1
    assert told.endswith(b"\r\n\r\nok\n")
    writer.close()
    await node.port.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_hostile_clients_get_what_they_may_have(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def check() -> None:
        await hostile(Answers(tmp_path / "token"))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


async def test_a_path_by_the_wrong_method_says_which_there_are(node: Answers) -> None:
    port = int(node.url.rpartition(":")[2])
    assert b"\r\nAllow: GET, HEAD\r\n" in await said(port, LAST.replace(b"GET", b"DELETE"))
    assert b"\r\nAllow: POST\r\n" in await said(port, LAST.replace(b"livez", b"hand-over"))


@pytest.mark.usefixtures("elsewhere")
async def test_who_shows_no_token_is_asked_for_one(node: Answers) -> None:
    node.token_file.write_text("open-sesame")
    asked = (
        b"POST /hand-over HTTP/1.1\r\nAuthorization: Bearer x\r\nAuthorization: Bearer open-sesame\r\n" + HOST + b"\r\n"
    )
    answer = await said(int(node.url.rpartition(":")[2]), asked, asked)
    assert answer.count(b"HTTP/1.1 401 ") == answer.count(b"\r\nWWW-Authenticate: Bearer\r\n") == 1
    assert b"open-sesame" not in answer
    assert node.handed_over == 0
