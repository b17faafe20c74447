"""What the StreamJob's CRD refuses, by its schema and by its rules, and that the examples pass.

The API server evaluates the rules; here another CEL implementation does (common-expression-language), if it is
installed.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

jsonschema = pytest.importorskip("jsonschema")
cel = pytest.importorskip("cel")

ROOT = Path(__file__).parents[2]
CRD = yaml.safe_load((ROOT / "crds" / "streamjobs.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
COPY: dict[str, Any] = {
    "clusterRef": {"name": "quickstart"},
    "input": {"stream": "/factory", "topics": ["pumps"]},
    "output": {"stream": "/factory", "topic": "copies"},
    "application": {"sql": "SELECT key, value FROM input"},
}
SHARED = {"checkpoint": {"claim": "shared"}}
NOW = {"availableNow": True}


def defaulted(value: Any, schema: dict[str, Any]) -> Any:
    """Return a resource with the API server's defaults."""
    if isinstance(value, dict):
        made = dict(value)
        for name, each in schema.get("properties", {}).items():
            if name not in made and "default" in each:
                made[name] = copy.deepcopy(each["default"])
            if name in made:
                made[name] = defaulted(made[name], each)
        return made
    if isinstance(value, list):
        return [defaulted(each, schema.get("items", {})) for each in value]
    return value


def closed(schema: Any) -> Any:
    """Return a schema that refuses what the API server would prune."""
    if isinstance(schema, dict):
        found = {name: closed(value) for name, value in schema.items()}
        if "properties" in found and not isinstance(found["properties"].get("type"), str):
            found.setdefault("additionalProperties", False)
        return found
    return [closed(each) for each in schema] if isinstance(schema, list) else schema


def broken(value: Any, schema: dict[str, Any], old: Any = None) -> list[str]:
    """Return the messages of violated rules. Rules about `oldSelf` apply only if there is a former object."""
    found = []
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" in rule["rule"] and old is None:
            continue
        if not cel.evaluate(rule["rule"], {"self": value, "oldSelf": old}):
            found.append(rule["message"])
    if isinstance(value, dict):
        for name, each in schema.get("properties", {}).items():
            if name in value:
                found += broken(value[name], each, (old or {}).get(name))
    if isinstance(value, list):
        for each in value:
            found += broken(each, schema.get("items", {}))
    return found


def job(spec: dict[str, Any], name: str = "copy") -> dict[str, Any]:
    kept = {field: value for field, value in {**COPY, **spec}.items() if value is not None}
    resource = {
        "apiVersion": "headrace.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": name}, "spec": kept,
    }  # fmt: skip
    made: dict[str, Any] = defaulted(resource, SCHEMA)
    return made


def refused(resource: dict[str, Any], before: dict[str, Any] | None = None) -> list[str]:
    schema = closed({**SCHEMA, "properties": {**SCHEMA["properties"], "apiVersion": {}, "kind": {}, "metadata": {}}})
    errors = [each.message for each in jsonschema.Draft7Validator(schema).iter_errors(resource)]
    return errors or broken(resource, SCHEMA, before)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"trigger": {"interval": "2s"}},
        {"trigger": NOW},
        {"trigger": {**NOW, "schedule": "*/5 * * * *", "timeZone": "Etc/UTC"}},
        {"trigger": {**NOW, "schedule": "@hourly"}},
        {"executors": 2, **SHARED},
        {"executors": 2, "checkpoint": {"url": "s3a://bucket/x"}},
        {"autoscale": {"min": 1, "max": 3}, **SHARED},
        {"trigger": NOW, "executors": 2, **SHARED},
        {"engine": "kubeflow", "executors": 1, **SHARED},
        {"input": None, "inputs": [{"name": "a", "stream": "/a"}, {"name": "b", "stream": "/b"}]},
        {"application": {"configMap": {"name": "code"}}, "input": None, "output": None},
        {"checkpoint": {"size": "5Gi", "class": "fast"}},
    ],
)
def test_what_can_be_is_taken(spec: dict[str, Any]) -> None:
    assert refused(job(spec)) == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"trigger": {"schedule": "*/5 * * * *"}}, "trigger.schedule goes with trigger.availableNow: true"),
        ({"trigger": {**NOW, "timeZone": "Etc/UTC"}}, "trigger.timeZone goes with trigger.schedule"),
        ({"trigger": {**NOW, "interval": "2s"}}, "a trigger is an interval or availableNow, not both"),
        ({"executors": 1}, "with executors the checkpoint has to be on a ReadWriteMany claim"),
        ({"autoscale": {"min": 1, "max": 2}}, "with executors the checkpoint has to be on a ReadWriteMany claim"),
        ({"autoscale": {"min": 3, "max": 2}, **SHARED}, "autoscale.min is above autoscale.max"),
        ({"autoscale": {"min": 1, "max": 2}, "executors": 1, **SHARED}, "executors or autoscale, not both"),
        ({"autoscale": {"min": 1, "max": 2}, "trigger": NOW, **SHARED}, "autoscale goes with a job that runs on"),
        ({"engine": "kubeflow"}, "engine kubeflow has executors"),
        ({"engine": "kubeflow", "executors": 1, "trigger": {**NOW, "schedule": "@daily"}, **SHARED}, "no schedule"),
        ({"inputs": [{"name": "a", "stream": "/a"}]}, "input or inputs, not both"),
        ({"input": None}, "an application of sql needs input"),
        ({"output": None}, "an application of sql needs input (or inputs) and output"),
        ({"application": {}}, "exactly one of configMap, path, url and sql"),
        ({"application": {"path": "/a.py", "sql": "SELECT 1"}}, "exactly one of configMap, path, url and sql"),
        ({"application": {"url": "https://me:secret@host/a.py"}}, "a url holds no user and password"),
        ({"input": {"stream": "/a", "topics": ["t"], "topicPattern": "."}}, "topics or topicPattern, not both"),
        ({"checkpoint": {"claim": "a", "url": "s3a://b"}}, "claim or url, not both"),
        ({"checkpoint": {"claim": "a", "size": "1Gi"}}, "size and class describe a claim that is created"),
        ({"trigger": {"interval": "2 seconds"}}, "does not match"),
        ({"trigger": {**NOW, "schedule": "now and then"}}, "does not match"),
        ({"executors": -1}, "minimum"),
        ({"driver": {"memory": "much"}}, "does not match"),
        ({"input": {"stream": "factory"}}, "does not match"),
        ({"executor": {"disk": 1}}, "unexpected"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_change(spec: dict[str, Any], said: str) -> None:
    assert any(said in each for each in refused(job(spec))), refused(job(spec))


@pytest.mark.parametrize("name", ["Copy", "1copy", "a.b", "x" * 46])
def test_a_name_that_does_not_fit_its_objects_is_refused(name: str) -> None:
    assert any("DNS label" in each for each in refused(job({}, name)))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {"clusterRef": {"name": "other"}}, "clusterRef cannot change"),
        ({}, SHARED, "a checkpoint cannot move"),
        (SHARED, {"checkpoint": {"claim": "elsewhere"}}, "a checkpoint cannot move"),
        ({"checkpoint": {"class": "a"}}, {"checkpoint": {"class": "b"}}, "a checkpoint cannot move"),
    ],
)
def test_what_cannot_change_is_refused(before: dict[str, Any], after: dict[str, Any], said: str) -> None:
    assert any(said in each for each in refused(job(after), job(before)))


def test_what_may_change_is_taken() -> None:
    assert refused(job({"trigger": NOW, "checkpoint": {"size": "2Gi"}}), job({"trigger": {"interval": "2s"}})) == []


def test_the_examples_are_taken() -> None:
    found = 0
    for file in sorted((ROOT / "docs" / "examples").glob("*.yaml")):
        for each in yaml.safe_load_all(file.read_text()):
            if each is not None and each["kind"] == "StreamJob":
                found += 1
                assert refused(defaulted(each, SCHEMA)) == [], file.name
    assert found >= 5
