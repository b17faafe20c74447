"""The parts of the process together: when it is ready, and what is watched."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from itertools import islice

import aiohttp
import kopf
import pytest
from structlog.testing import capture_logs

from headrace.store.kubernetes.api import ApiError
from headrace_operator import main
from headrace_operator.engine import Key
from headrace_operator.specs import API

from .fake_api import NOW, ClosingApi
from .test_engine import until


async def test_it_is_ready_once_everything_has_been_listed() -> None:
    api = ClosingApi()
    api.refuse = lambda _method, _path: ApiError(500, "not now")
    operator = main.Operator(api, namespaces=[], sweep_s=300, image="i", spark="s")  # type: ignore[arg-type]
    operator.engine.start()
    url = f"http://127.0.0.1:{await operator.http.start('127.0.0.1', 0)}/readyz"
    async with aiohttp.ClientSession() as http:
        async with http.get(url) as answer:
            assert answer.status == 503
        api.refuse = lambda _method, _path: None
        await until(lambda: operator.engine.has_looked)
        async with http.get(url) as answer:
            assert answer.status == 200
    await operator.close()


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


async def test_when_a_namespace_ends_all_with_finalizers_in_it_are_looked_at(
    running, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, _ = running
    looked: list[tuple[str, str]] = []
    for namespace in ("a", "b"):
        for kind in ("StreamCluster", "Stream"):
            meta = {"name": "s", "namespace": namespace, "resourceVersion": "1", "uid": f"{kind}{namespace}"}
            operator.engine.cache.take({"apiVersion": API, "kind": kind, "metadata": meta, "spec": {}})
    monkeypatch.setattr(operator.engine, "enqueue", lambda key: looked.append((key.kind, key.namespace)))
    ending = {"name": "a", "resourceVersion": "2", "uid": "n", "deletionTimestamp": NOW}
    operator.namespace_seen({"kind": "Namespace", "metadata": ending}, deleted=False)
    assert looked == [("StreamCluster", "a"), ("Stream", "a")]


@pytest.fixture
async def of_two() -> AsyncIterator[tuple[main.Operator, ClosingApi]]:
    """An operator of namespaces a and b without rights in a, and a Stream in each; not started yet."""
    api = ClosingApi()
    for namespace in ("a", "b"):
        meta = {"name": "s", "namespace": namespace}
        api.put({"apiVersion": API, "kind": "Stream", "metadata": meta, "spec": {}})
    api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "b"}})
    api.refuse = lambda _method, path: ApiError(403, "forbidden") if "/namespaces/a/" in path else None
    operator = main.Operator(api, namespaces=["a", "b"], sweep_s=0.05, image="i", spark="s")  # type: ignore[arg-type]
    yield operator, api
    await operator.close()


async def test_a_namespace_without_rights_is_told_of_once_and_holds_up_no_other(of_two) -> None:
    operator, api = of_two
    api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}})
    known = {"name": "s", "namespace": "a", "resourceVersion": "1", "uid": "x"}
    operator.engine.cache.take({"apiVersion": API, "kind": "Topic", "metadata": known, "spec": {}})
    with capture_logs() as logged:
        for kind in ("Stream", "Topic"):
            await operator.engine.sweep(kind)
    assert operator.engine.cache.get(Key("Stream", "b", "s")) is not None
    assert operator.engine.cache.get(Key("Topic", "a", "s")) is not None, "it may be there still"
    assert [each["of"] for each in logged if "no permission" in each["event"]] == ["a"]
    api.refuse = lambda _method, path: ApiError(403, "forbidden")
    with pytest.raises(ApiError):
        await operator.engine.sweep("Stream")


async def test_a_namespace_that_has_gone_holds_up_nothing(of_two) -> None:
    operator, _ = of_two
    known = {"name": "s", "namespace": "a", "resourceVersion": "1", "uid": "x"}
    operator.engine.cache.take({"apiVersion": API, "kind": "Topic", "metadata": known, "spec": {}})
    swept = operator.engine._swept_at
    operator.engine.start()
    await until(lambda: operator.engine._swept_at > swept)
    assert operator.engine.cache.get(Key("Stream", "b", "s")) is not None
    assert operator.engine.cache.get(Key("Topic", "a", "s")) is None
    assert operator.engine.stale() == ""


@pytest.mark.parametrize("rights", [True, False])
async def test_resources_and_namespaces_are_known_before_the_first_reconcile(rights: bool) -> None:
    """Otherwise a starting operator would take a Stream's cluster for deleted and leave data that should be deleted."""
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
    """The goal is less than 150 MiB when idle; imports take half of it."""
    code = "import headrace_operator.main; print(int(open('/proc/self/statm').read().split()[1]) * 4096 >> 20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 100


@pytest.mark.parametrize("namespaced", [False, True])
def test_no_pause_of_kopfs_becomes_longer_by_what_a_server_names(namespaced: bool) -> None:
    """kopf evaluates `retry_after > pause`, and uses the greater one."""
    settings = kopf.OperatorSettings()
    main.bound(settings, namespaced=namespaced)
    pauses = settings.networking.error_backoffs
    assert isinstance(pauses, Iterable)
    first = list(islice(pauses, 5))
    assert len(first) == 5
    assert not any(pause < 86_400 for pause in first)
    assert all(0 < float(pause) <= 30 for pause in first)


def test_changes_of_thousands_of_resources_are_heard_of_within_seconds() -> None:
    """Each of kopf's few workers serves one object, and waits for more events of it."""
    settings = kopf.OperatorSettings()
    main.bound(settings)
    assert settings.queueing.worker_limit is not None
    assert settings.queueing.worker_limit / settings.queueing.idle_timeout > 200
