import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from headrace.admin.http import HttpPort, _is_local
from headrace.base.errors import Code, KafkaError


class Answers:
    """A node that answers what it is told to."""

    def __init__(self) -> None:
        self.why_not = "the node waits for the catalog"
        self.handed_over = 0
        self.port = HttpPort(
            ready=lambda: self.why_not,
            safe=lambda: "",
            status=lambda: None,
            hand_over=self.hand_over,
            recover_store=self.recover_store,
        )
        self.url = ""

    async def hand_over(self) -> None:
        self.handed_over += 1

    async def recover_store(self, apply: bool) -> dict[str, object]:
        if not self.why_not:
            raise KafkaError(Code.POLICY_VIOLATION, "node 3 does not answer")
        return {"done": apply}

    async def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.request(method, self.url + path) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def node() -> AsyncIterator[Answers]:
    served = Answers()
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


async def test_only_a_post_hands_over(node: Answers) -> None:
    assert (await node.ask("/hand-over"))[0] == 405
    assert await node.ask("/hand-over", "POST") == (200, "ok\n")
    assert node.handed_over == 1


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("fe80::1%eth0", False),
        (None, False),
    ],
)
def test_only_the_same_host_may_have_it_hand_over(address: str | None, local: bool) -> None:
    assert _is_local(address) == local


async def test_connections_that_say_nothing_keep_no_probe_out(node: Answers) -> None:
    port = int(node.url.rpartition(":")[2])
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
    assert await node.ask("/livez") == (200, "ok\n")
    begun = [await asyncio.open_connection("127.0.0.1", port) for _ in range(80)]
    for _, writer in begun:
        writer.write(b"GET /livez HTTP/1.1\r\nHost: ")  # and never the rest
    assert await node.ask("/livez") == (200, "ok\n")
    for _, writer in (*silent, *begun):
        writer.close()


async def test_connections_that_are_kept_alive_make_way_when_they_are_idle(node: Answers) -> None:
    port = int(node.url.rpartition(":")[2])
    kept = []
    for _ in range(80):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"ok\n"), 10)).startswith(b"HTTP/1.1 200")
        kept.append(writer)
    assert await node.ask("/livez") == (200, "ok\n")
    assert len(node.port._connections.admission) <= 32 + 16 + 1
    for writer in kept:
        writer.close()
