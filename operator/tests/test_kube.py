import pytest
from structlog.testing import capture_logs

from headrace.store.kubernetes.api import ApiError, ApiSilent
from headrace_operator.actions import ACTIONS
from headrace_operator.kube import APPLIED, Kube, covers
from headrace_operator.specs import API, FINALIZER
from headrace_operator.uninstall import strip

from .fake_api import FakeApi, Object
from .fake_cluster import NS


def service(**spec: object) -> Object:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": NS}, "spec": spec}


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.mark.parametrize(
    ("present", "wanted", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": {"b": [1, {"c": 2, "d": 3}]}}, {"a": {"b": [1, {"c": 2}]}}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": {}}, True),
        ({}, {"a": None}, True),
        ({"selector": {"a": "1"}}, {"selector": {"a": "1"}}, True),
        ({"selector": {"a": "1", "b": "2"}}, {"selector": {"a": "1"}}, False),
    ],
)
def test_what_others_added_is_no_difference(present: Object, wanted: Object, expected: bool) -> None:
    assert covers(present, wanted) is expected


async def test_a_name_that_a_resource_gives_leads_nowhere_else(api: FakeApi) -> None:
    api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "far"}})
    wanted: list[str] = []
    api.refuse = lambda _method, path: wanted.append(path)  # type: ignore[func-returns-value]
    assert await Kube(api).get("v1", "ConfigMap", NS, "../../far/secrets/s?x") is None
    assert wanted == [f"/api/v1/namespaces/{NS}/configmaps/..%2F..%2Ffar%2Fsecrets%2Fs%3Fx"]
    with pytest.raises(ApiError, match="not a valid object name"):
        await Kube(api).get("v1", "ConfigMap", NS, "..")


@pytest.mark.parametrize(
    ("status", "namespaces", "fails"),
    [(404, [], False), (404, [NS], False), (403, [NS], False), (403, [], True), (409, [NS], True)],
)
async def test_what_is_gone_already_does_not_stop_an_uninstall(
    api: FakeApi, status: int, namespaces: list[str], fails: bool
) -> None:
    meta = {"name": "s", "namespace": NS, "finalizers": [FINALIZER]}
    api.put({"apiVersion": API, "kind": "Stream", "metadata": meta, "spec": {}})
    api.refuse = lambda _method, path: ApiError(status, "page not found") if "/volumes" in path else None
    if fails:
        with pytest.raises(ApiError):
            await strip(Kube(api), namespaces=namespaces)
        return
    assert await strip(Kube(api), namespaces=namespaces) == 1
    assert api.one("Stream", "s")["metadata"]["finalizers"] == []


async def test_what_is_so_already_is_not_written(api: FakeApi) -> None:
    kube = Kube(api)
    await kube.apply(service(a=1))
    await kube.apply(service(a=1))
    await Kube(api).apply(service(a=1))
    assert (kube.patches, kube.unchanged, len(api.writes)) == (1, 1, 1)


async def test_a_field_that_is_asked_for_no_longer_goes(api: FakeApi) -> None:
    kube = Kube(api)
    await kube.apply(service(a=1, b=2))
    await kube.apply(service(a=1))
    assert api.one("Service", "s")["spec"] == {"a": 1}


@pytest.mark.parametrize(
    ("kind", "api_version", "ours", "by_hand"),
    [
        (
            "StatefulSet",
            "apps/v1",
            {"replicas": 3, "updateStrategy": {"type": "OnDelete"}},
            {"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}},
        ),
        ("PodDisruptionBudget", "policy/v1", {"maxUnavailable": 1}, {"minAvailable": 1}),
    ],
)
async def test_a_field_that_excludes_one_of_ours_goes(
    api: FakeApi, kind: str, api_version: str, ours: Object, by_hand: Object
) -> None:
    manifest: Object = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "s", "namespace": NS}}
    kube = Kube(api)
    await kube.apply({**manifest, "spec": ours})
    api.put({**manifest, "metadata": api.one(kind, "s")["metadata"], "spec": by_hand})
    await kube.apply({**manifest, "spec": ours})
    assert api.one(kind, "s")["spec"] == ours


async def test_what_the_server_writes_in_its_own_way_is_applied_once(api: FakeApi) -> None:
    kube = Kube(api)
    await kube.apply(service(memory="1024Mi"))
    api.one("Service", "s")["spec"]["memory"] = "1Gi"
    for _ in range(3):
        await kube.apply(service(memory="1024Mi"))
    assert kube.patches == 1
    changed = service(memory="2Gi")
    changed["metadata"]["annotations"] = {APPLIED: "x"}
    api.put(changed)
    await kube.apply(service(memory="1024Mi"))
    assert api.one("Service", "s")["spec"]["memory"] == "1024Mi"


async def test_absent_is_as_good_as_deleted(api: FakeApi) -> None:
    kube = Kube(api)
    await kube.delete("v1", "Service", NS, "s")
    assert await kube.get("v1", "Service", NS, "s") is None
    assert await kube.merge("/api/v1/namespaces/ns/services/s", {}) is None


async def test_an_event_that_cannot_be_posted_stops_nothing(api: FakeApi) -> None:
    refused: list[tuple[str, str]] = []

    def refuse(method: str, path: str) -> ApiError | None:
        refused.append((method, path))
        return ApiError(403, "the namespace is being terminated")

    api.refuse = refuse
    await Kube(api).tell(service(), reason="X", message="y")
    assert [method for method, path in refused if "/events" in path] == ["POST"]


async def test_a_status_goes_to_that_resource_and_to_no_later_one(api: FakeApi) -> None:
    kube = Kube(api)
    found = api.put({**service(a=1), "apiVersion": API, "kind": "Topic"})
    assert await kube.apply_status({**found, "metadata": {**found["metadata"], "uid": "old"}}, {"x": 1}) is None
    after = await kube.apply_status(found, {"x": 1})
    assert after is not None
    assert after["status"] == {"x": 1}


async def test_before_uninstall_every_finalizer_of_ours_goes_and_no_other(api: FakeApi) -> None:
    for name, kind in (("a", "Stream"), ("b", "Topic"), ("c", "StreamCluster")):
        meta = {"name": name, "namespace": NS, "finalizers": ["headrace.dev/delete", "else/where"]}
        api.put({"apiVersion": "headrace.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": {}})
    failed = [True]

    def conflict_once(method: str, path: str) -> ApiError | None:
        return ApiError(409, "modified") if method == "PATCH" and failed and failed.pop() else None

    api.refuse = conflict_once
    assert await strip(Kube(api), namespaces=[]) == 3
    assert all(each["metadata"]["finalizers"] == ["else/where"] for each in api.objects.values())


async def test_a_lost_answer_is_an_error_that_is_tried_again(api: FakeApi) -> None:
    api.fail_after = 1
    kube = Kube(api)
    with pytest.raises(ApiSilent):
        await kube.apply(service(a=1))
    await kube.apply(service(a=1))
    assert len(api.writes) == 1


async def test_the_log_has_a_line_for_each_change_and_none_for_what_is_as_it_should_be(api: FakeApi) -> None:
    kube = Kube(api)
    where = "/api/v1/namespaces/ns/services/s"
    with capture_logs() as logged:
        await kube.apply(service(a=1))
        await kube.apply(service(a=1))
        await kube.apply(service(a=2))
        await kube.merge(where, {"metadata": {"annotations": {"x": "secret"}}})
        await kube.get("v1", "Service", NS, "s")
        await kube.tell(service(), reason="PodRolled", message="why", warning=True)
        await kube.delete("v1", "Service", NS, "s")
        await kube.delete("v1", "Service", NS, "s")
        await kube.merge(where, {})
    told = [(each["event"], each["kind"], each["of"]) for each in logged]
    assert told == [(what, "Service", "ns/s") for what in ("made", "changed", "changed", "told", "deleted")]
    assert logged[2]["fields"] == "metadata.annotations.x"
    assert logged[3]["reason"] == "PodRolled"


async def test_an_event_has_an_action_beside_its_reason(api: FakeApi) -> None:
    for reason in (*ACTIONS, "SomethingNew"):
        await Kube(api).tell(service(), reason=reason, message="y")
    for event in api.find("Event"):
        assert event["action"]
        assert event["action"] != event["reason"]
