"""Settings with which a storage node would not start are refused before a pod gets them."""

import argparse
from typing import Any

import pytest

from headrace.node import options
from headrace_operator.builders.settings import FLAGS, KNOWN, MINIMA, fault, tracing_fault

from ..kinds.test_cluster import KEY, SPEC, pods, started

OWN = {
    *("data", "store", "kubernetes", "cluster-record", "kubernetes-api", "kubernetes-token", "host", "bind"),
    *(
        "peer-host",
        "listener",
        "listeners",
        "secure",
        "bootstrap-admin",
        "allow-anonymous",
        "admin-port",
        "admin-token-file",
        "metrics-port",
        "tracing-endpoint",
        "slot",
        "port",
        "peer-port",
        "peer-secrets",
        "peer-tls",
        "peer-tls-mode",
        "ready-file",
        "failure-host",
        "help",
    ),
}
"""Arguments that the operator sets itself, or that do not apply to pods."""


def test_every_argument_of_a_node_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[str] = set()

    def collect(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> Any:
        found.update(each.removeprefix("--") for each in parser._option_string_actions if each.startswith("--"))
        raise RuntimeError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", collect)
    with pytest.raises(RuntimeError):
        options.parse([])
    assert found - OWN == set(KNOWN)


def test_a_node_starts_with_the_least_of_each() -> None:
    assert {name.replace("-", "_"): least for name, least in MINIMA.items() if name != "first-nodes"} == options.MINIMA
    values = {**{name: str(least) for name, least in MINIMA.items()}, "rebuild-after-s": "2.5", "zone": "a"}
    values |= {"label": "disk=fast", "audit-allowed": "produce, consume", **dict.fromkeys(FLAGS, "")}
    assert set(values) == set(KNOWN)
    assert fault(values) == ""
    given = [part for name, value in values.items() for part in ((f"--{name}", value) if value else (f"--{name}",))]
    options.parse(["--data", "/data", "--store", "/s", *given])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"chunk-byte": "1"}, "no such setting; they have audit-allowed, chunk-bytes,"),
        ({"port": "9092"}, "no such setting"),
        ({"audit-allowed": "produce,reading"}, "'reading' is not an audited action; these are: "),
        ({"audit-allowed": ""}, "'' is not an audited action"),
        ({"chunk-bytes": "16Mi"}, "not a whole number"),
        ({"chunk-bytes": ""}, "not a whole number"),
        ({"chunk-bytes": "1024"}, "the minimum is 65536"),
        ({"disk-quota": "-1"}, "the minimum is 0"),
        ({"rebuild-after-s": "nan"}, "not a number of seconds"),
        ({"no-fsync": "true"}, "a flag without a value"),
        ({"zone": "--port"}, "not a valid value"),
    ],
)
def test_what_a_node_would_not_start_with_is_refused(settings: dict[str, str], said: str) -> None:
    assert said in fault(settings)


@pytest.mark.parametrize("endpoint", ["", "http://collector:4318", "https://collector.monitoring/otlp"])
def test_a_node_starts_with_an_endpoint_that_is_one(endpoint: str) -> None:
    assert tracing_fault(endpoint) == ""
    options.parse(["--data", "/data", "--store", "/s", f"--tracing-endpoint={endpoint}"])


@pytest.mark.parametrize("endpoint", ["http://collector:99999", "collector:4318", "http://me:hunter2@collector"])
def test_an_endpoint_that_a_node_would_not_start_with_is_refused(
    endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tracing_fault(endpoint).startswith("tracing.endpoint: the address of a collector ")
    with pytest.raises(SystemExit):
        options.parse(["--data", "/data", "--store", "/s", f"--tracing-endpoint={endpoint}"])
    assert "hunter2" not in tracing_fault(endpoint) + capsys.readouterr().err


async def test_a_wrong_endpoint_is_a_condition() -> None:
    world = await started()
    world.declare("StreamCluster", "c", SPEC | {"tracing": {"endpoint": "http://collector:99999"}})
    await world.run(KEY)
    status, reason, message = world.condition("StreamCluster", "c")[:3]
    assert (status, reason) == ("False", "WrongSettings")
    assert message.startswith("tracing.endpoint: ")


async def test_a_setting_that_does_not_exist_is_a_condition_and_no_pod_is_made_anew() -> None:
    world = await started()
    before = {pod["metadata"]["uid"] for pod in world.api.find("Pod")}
    world.declare("StreamCluster", "c", SPEC | {"nodes": 4, "settings": {"chunk-byte": "16777216"}})
    await world.run(KEY)
    ready = world.condition("StreamCluster", "c")
    assert ready[:2] == ("False", "WrongSettings")
    assert "settings.chunk-byte" in ready[2]
    assert {pod["metadata"]["uid"] for pod in world.api.find("Pod")} == before
    assert world.condition("StreamCluster", "c", "Available")[0] == "True"
    assert world.events().count("WrongSettings") == 1
    world.declare("StreamCluster", "c", SPEC | {"nodes": 4, "settings": {"chunk-bytes": "16777216"}})
    await world.run(KEY)
    assert len(pods(world)) == 4
    assert world.condition("StreamCluster", "c")[0] == "True"
