"""The process's parts together: health, metrics, what is watched."""

import asyncio
import subprocess
import sys

import aiohttp
import kopf
import pytest

from headrace_operator import main
from headrace_operator.engine import Key
from headrace_operator.http_port import exposition

from .fake_api import NOW, FakeApi


class ClosingApi(FakeApi):
    async def close(self) -> None:
        pass


@pytest.fixture
async def running():
    operator = main.Operator(ClosingApi(), namespaces=[], sweep_s=300, image="i", spark="s")  # type: ignore[arg-type]
    operator.engine.start()
    port = await operator.http.start("127.0.0.1", 0)
    yield operator, f"http://127.0.0.1:{port}"
    await operator.close()


async def test_health_tells_the_truth(running, monkeypatch: pytest.MonkeyPatch) -> None:
    _, url = running
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{url}/healthz") as answer:
            assert answer.status == 200
        monkeypatch.setattr("headrace_operator.engine.STALE_S", -1e9)
        async with http.get(f"{url}/healthz") as answer:
            assert answer.status == 503
            assert "sweep" in await answer.text()


async def test_metrics_count_what_is_done(running) -> None:
    _, url = running
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        text = await answer.text()
    assert "# TYPE headrace_operator_writes_total counter" in text
    assert 'headrace_operator_resources{kind="Topic"} 0' in text


def test_counters_and_gauges_are_told_apart() -> None:
    text = exposition({("a_total", 'x="1"'): 2.0, ("a_total", 'x="2"'): 3.0, ("b", ""): 0.5})
    assert text == '# TYPE a_total counter\na_total{x="1"} 2\na_total{x="2"} 3\n# TYPE b gauge\nb 0.5\n'


async def test_when_its_own_namespace_ends_all_with_finalizers_are_looked_at(
    running, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, _ = running
    looked: list[str] = []
    monkeypatch.setattr(main, "OWN_NAMESPACE", "ops")
    meta = {"name": "s", "namespace": "far", "resourceVersion": "1", "uid": "u"}
    operator.engine.cache.take({"apiVersion": "headrace.dev/v1alpha1", "kind": "Stream", "metadata": meta, "spec": {}})
    monkeypatch.setattr(operator.engine, "enqueue", lambda key: looked.append(key.name))
    ending = {"name": "ops", "resourceVersion": "2", "uid": "n", "deletionTimestamp": NOW}
    operator.namespace_seen({"kind": "Namespace", "metadata": ending}, deleted=False)
    assert looked == ["s"]


@pytest.mark.parametrize("rights", [True, False])
async def test_resources_and_namespaces_are_known_before_the_first_reconcile(rights: bool) -> None:
    """Else one that starts would take a Stream's cluster for gone, and leave what is to be deleted with it."""
    api = ClosingApi()
    api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "far"}})
    meta = {"name": "s", "namespace": "far"}
    api.put({"apiVersion": "headrace.dev/v1alpha1", "kind": "Stream", "metadata": meta, "spec": {}})
    asked: list[str] = []
    api.refuse = lambda _method, path: asked.append(path)  # type: ignore[func-returns-value]
    operator = main.Operator(
        api,  # type: ignore[arg-type]
        namespaces=[] if rights else ["far"],
        sweep_s=300,
        image="i",
        spark="s",
        cluster_rights=rights,
    )
    operator.engine.start()
    await asyncio.wait_for(operator.engine._looked.wait(), 5)
    cache = operator.engine.cache
    assert cache.get(Key("Stream", "far", "s")) is not None
    assert (cache.get(Key("Namespace", "", "far")) is not None) == rights
    assert ("/api/v1/namespaces" in asked) == rights
    await operator.close()


def test_what_kopf_watches_leaves_nothing_on_resources() -> None:
    registry = kopf.OperatorRegistry()
    before = kopf.get_default_registry()
    kopf.set_default_registry(registry)
    try:
        main.register()
    finally:
        kopf.set_default_registry(before)
    watching = registry._watching.get_all_handlers()
    assert len(watching) == len(main.OURS) + len(main.BELONGING) + 1
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()


def test_imports_stay_small() -> None:
    """Idle under 150 MiB is the goal; what is imported takes half of it."""
    code = "import headrace_operator.main; print(int(open('/proc/self/statm').read().split()[1]) * 4096 >> 20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 100


def test_changes_of_thousands_of_resources_are_heard_of_within_seconds() -> None:
    """A worker of kopf's waits for more of its own object; there are few of them, and each object needs one."""
    settings = kopf.OperatorSettings()
    main.bound(settings)
    assert settings.queueing.worker_limit is not None
    assert settings.queueing.worker_limit / settings.queueing.idle_timeout > 200
