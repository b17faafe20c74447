import asyncio
import contextlib
from pathlib import Path

import pytest

from headrace.admin.http import HttpPort
from headrace.base.errors import HeadraceError
from headrace.node import pod
from headrace.node.options import KubernetesCluster, Options, parse
from kit.own_ports import own_port

POD = {"POD_NAME": "c-1", "POD_NAMESPACE": "ns", "POD_IP": "10.0.0.7", "HOST_NAME": "worker-2"}


def options_of(shard: int, shards: int, *more: str, listeners: Path | None = None, **environment: str) -> Options:
    command = pod.command(
        shard,
        cluster="c",
        shards=shards,
        data=Path("/data"),
        environment=POD | environment,
        more=more,
        listeners=listeners,
    )
    assert command[1:3] == ["-m", "headrace.node"]
    return parse(command[3:])


def test_a_pod_s_node_is_known_by_its_name_and_reached_by_its_address() -> None:
    node = options_of(0, 1, "--chunk-bytes=65536")
    assert node.data == Path("/data/node-0")
    assert node.store == KubernetesCluster("c", "ns", pod.RECORD)
    assert (node.host, node.peer_host, node.bind) == ("c-1.c-nodes.ns.svc", "10.0.0.7", "0.0.0.0")
    assert (node.port, node.peer_port, node.listeners, node.admin_port) == (9092, 7092, {"external": 19092}, 8080)
    assert (node.slot, node.failure_host) == ("c-1/0", "worker-2")
    assert node.settings.chunk_bytes == 65536


def test_a_pod_that_is_not_secure_says_that_anybody_may_come_in() -> None:
    assert options_of(0, 1).allow_anonymous
    secure = options_of(0, 1, "--secure")
    assert (secure.secure, secure.allow_anonymous) == (True, False)
    assert options_of(0, 1, "--secure", "--allow-anonymous").allow_anonymous


def test_shards_have_folders_ports_and_slots_of_their_own() -> None:
    nodes = [options_of(shard, 3) for shard in range(3)]
    assert [each.data.name for each in nodes] == ["node-0", "node-1", "node-2"]
    assert [each.slot for each in nodes] == ["c-1/0", "c-1/1", "c-1/2"]
    ports = [port for each in nodes for port in (each.port, each.peer_port, each.admin_port, *each.listeners.values())]
    assert len({*ports, pod.ADMIN_PORT}) == 13


def test_shards_have_files_of_listeners_of_their_own() -> None:
    node = options_of(1, 2, "--secure", listeners=Path("/etc/headrace/listeners"))
    assert node.listeners_file == Path("/etc/headrace/listeners/shard-1.toml")
    assert node.listeners == {}
    assert (node.secure, node.allow_anonymous) == (True, False)


def test_a_pod_without_a_host_s_name_fails_alone_and_may_have_an_address_of_either_kind() -> None:
    assert options_of(0, 1, HOST_NAME="").failure_host == "c-1"
    assert options_of(0, 1, POD_IP="fd00::7").bind == "::"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--kubernetes=c"], "NAMESPACE/CLUSTER"),
        (["--kubernetes=ns/c"], "--cluster-record"),
        (["--store=s", "--listener=external"], "NAME=PORT"),
        (["--store=s", "--listener=a=1", "--listener=a=2"], "twice"),
        (["--store=s", "--kubernetes=ns/c"], "not allowed with"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--data=d", *arguments])
    assert why in capsys.readouterr().err


def test_a_pod_that_is_not_told_what_it_is_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in POD:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit):
        pod.main(["--cluster=c"])
    assert "POD_NAME, POD_NAMESPACE, POD_IP is not set" in capsys.readouterr().err


class Shard:
    """One shard's HTTP port."""

    def __init__(self, number: int) -> None:
        self.why_not = ""
        self.handed_over = False
        self.port = HttpPort(
            ready=lambda: self.why_not,
            safe=lambda: self.why_not,
            metrics=self.metrics,
            kafka_metrics=self.metrics,
            hand_over=self.hand_over,
            recover_store=self.recover_store,
        )
        self.number = number

    async def recover_store(self, apply: bool) -> dict[str, object]:
        if self.why_not:
            raise HeadraceError(self.why_not)
        return {"containers": [], "warnings": [], "done": apply}

    async def metrics(self) -> bytes | None:
        return f'# HELP a_total A.\n# TYPE a_total counter\na_total{{node="{self.number}"}} 1\n'.encode()

    async def hand_over(self) -> None:
        self.handed_over = True


@pytest.fixture
async def shards(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """Two shards, at adjacent ports."""
    made = [Shard(0), Shard(1)]
    for _ in range(50):
        first = own_port()
        try:
            await made[0].port.start("127.0.0.1", first)
            await made[1].port.start("127.0.0.1", first + 1)
        except OSError:
            for each in made:
                await each.port.close()
            made = [Shard(0), Shard(1)]
            continue
        monkeypatch.setattr(pod, "SHARD_ADMIN_PORT", first)
        return made
    pytest.fail("no two ports are free")


async def answered(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def ask(path: str) -> str:
    listening = pod._listening(0)
    served = pod.serve_pod(listening, 2)
    answer = await answered(listening.getsockname()[1], path)
    served.close()
    await served.wait_closed()
    status, _, rest = answer.partition("\r\n")
    body = rest.partition("\r\n\r\n")[2]
    return f"{status.split()[1]} {body}".strip()


async def test_a_pod_is_ready_when_all_of_its_shards_are(shards: list[Shard]) -> None:
    assert await ask("/readyz") == "200 ok\nok"
    shards[1].why_not = "is behind in container 7"
    assert await ask("/readyz") == "503 is behind in container 7"
    assert await ask("/livez") == "200 ok\nok"
    await shards[0].port.close()
    assert (await ask("/livez")).startswith("503 shard at ")


@pytest.mark.parametrize("path", ["/metrics", "/metrics/kafka"])
async def test_a_pod_tells_the_metrics_of_all_of_its_shards(shards: list[Shard], path: str) -> None:
    assert (await ask(path)).splitlines() == [
        "200 # HELP a_total A.",
        "# TYPE a_total counter",
        'a_total{node="0"} 1',
        'a_total{node="1"} 1',
    ]


async def test_connections_that_say_nothing_keep_no_probe_of_a_pod_out(shards: list[Shard]) -> None:
    listening = pod._listening(0)
    served = pod.serve_pod(listening, 2)
    port = listening.getsockname()[1]
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * pod.MAX_ANSWERED)]
    assert " 200 " in await answered(port, "/readyz")
    served.close()
    for _, writer in silent:
        writer.close()
    await served.wait_closed()


async def test_a_pod_hands_over_with_all_of_its_shards(shards: list[Shard]) -> None:
    assert await pod._hand_over(2) == 0
    assert [each.handed_over for each in shards] == [True, True]
    await shards[1].port.close()
    assert await pod._hand_over(2) == 1


async def test_a_pod_has_one_of_its_shards_put_records_back(
    shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await asyncio.to_thread(pod.recover_store, apply=True) == {"containers": [], "warnings": [], "done": True}
    monkeypatch.setattr(pod, "ADMIN_PORT", pod.SHARD_ADMIN_PORT)  # as in a pod with a single shard
    monkeypatch.setattr(pod, "SHARD_ADMIN_PORT", own_port())
    assert not (await asyncio.to_thread(pod.recover_store, apply=False))["done"]
    shards[0].why_not = "node 3 does not answer"
    with pytest.raises(HeadraceError, match="node 3 does not answer"):
        await asyncio.to_thread(pod.recover_store, apply=True)


async def answered_by(path: str) -> str:
    """The head of a pod's answer."""
    server = await asyncio.start_server(lambda *ends: pod._answer(2, *ends), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
    return answer.partition("\r\n\r\n")[0]


async def test_a_pod_names_the_type_of_what_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus refuses metrics without a content type."""
    monkeypatch.setattr(pod, "_ask", lambda *_: (200, b"# HELP a A.\n# TYPE a gauge\na 1\n"))
    assert "Content-Type: text/plain; version=0.0.4; charset=utf-8" in await answered_by("/metrics")
    assert "Content-Type: text/plain; charset=utf-8" in await answered_by("/livez")
    monkeypatch.setattr(pod, "_ask", lambda *_: (503, b"the node is starting\n"))
    assert "Content-Type: text/plain; charset=utf-8" in await answered_by("/metrics")


async def test_a_pod_asks_its_shards_for_what_anybody_may_ask_and_nothing_else(
    shards: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To its shards the pod is a caller on their own host. Nor does a path lead it to another host."""
    asked: list[str] = []

    def ask_shard(_: int, path: str) -> tuple[int, bytes]:
        asked.append(path)
        return 200, b"ok\n"

    monkeypatch.setattr(pod, "_ask", ask_shard)
    for path in (
        "/hand-over",
        "/recover-store?apply=1",
        "//livez",
        "/livez/",
        "/livez/../hand-over",
        "@192.0.2.1:80/livez",
        ":80@192.0.2.1/livez",
        "http://192.0.2.1/livez",
        "/livez HTTP/1.1 more",
        "",
    ):
        assert " 404 " in await answered_by(path), path
    assert asked == []
    assert " 200 " in await answered_by("/livez?now=1")
    assert asked == ["/livez"] * 2
    assert not any(each.handed_over for each in shards)


async def test_a_line_without_end_ends_a_connection_to_a_pod(shards: list[Shard]) -> None:
    with contextlib.suppress(ConnectionResetError):  # the connection is closed with the rest unread
        assert await answered_by("/" + "x" * (1 << 17)) == ""
