"""The CRDs: structural, bounded, with rules that refer to existing fields; and the examples, validated by them."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CRDS = {
    crd["spec"]["names"]["kind"]: crd for crd in map(yaml.safe_load, (f.read_text() for f in (ROOT / "crds").iterdir()))
}
EXAMPLES = sorted((ROOT / "docs/examples").rglob("*.yaml"))
USERS = ("StreamCluster", "Volume", "Stream", "Topic", "StreamUser", "ReplicationLink", "StreamJob")
NODES = ("StorageNode", "StorageContainer")


def version(kind: str) -> dict[str, Any]:
    (only,) = CRDS[kind]["spec"]["versions"]
    return only


def schema(kind: str) -> dict[str, Any]:
    return version(kind)["schema"]["openAPIV3Schema"]


def nodes(found: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema in a schema, with its path."""
    yield at, found
    for name, each in found.get("properties", {}).items():
        yield from nodes(each, f"{at}.{name}")
    if "items" in found:
        yield from nodes(found["items"], f"{at}[]")
    if isinstance(found.get("additionalProperties"), dict):
        yield from nodes(found["additionalProperties"], f"{at}{{}}")


def rules() -> list[tuple[str, str, dict[str, Any], dict[str, str]]]:
    return [
        (kind, at, found, rule)
        for kind in CRDS
        for at, found in nodes(schema(kind))
        for rule in found.get("x-kubernetes-validations", [])
    ]


def examples() -> list[tuple[str, dict[str, Any]]]:
    return [(file.name, each) for file in EXAMPLES for each in yaml.safe_load_all(file.read_text()) if each]


def test_there_are_nine_kinds_in_one_version() -> None:
    assert set(CRDS) == {*USERS, *NODES}
    for crd in CRDS.values():
        names = crd["spec"]["names"]
        assert crd["metadata"]["name"] == f"{names['plural']}.headrace.dev"
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert names["categories"] == ["headrace"]
        assert len(names["shortNames"]) == 1
        assert [each["name"] for each in crd["spec"]["versions"]] == ["v1alpha1"]
    assert len({crd["spec"]["names"]["shortNames"][0] for crd in CRDS.values()}) == 9


@pytest.mark.parametrize("kind", CRDS)
def test_a_schema_is_structural(kind: str) -> None:
    for at, found in nodes(schema(kind)):
        if found.get("x-kubernetes-int-or-string"):
            assert found["anyOf"] == [{"type": "integer"}, {"type": "string"}], at
            assert "type" not in found, at
            continue
        assert found.get("type"), f"{kind}{at} has no type"
        assert not {"allOf", "oneOf", "not", "$ref", "definitions"} & found.keys(), at
        assert not ("properties" in found and "additionalProperties" in found), at
        assert set(found.get("required", [])) <= found.get("properties", {}).keys(), at
        assert (found["type"] == "array") == ("items" in found), at


@pytest.mark.parametrize("kind", CRDS)
def test_every_string_list_and_map_is_bounded(kind: str) -> None:
    for at, found in nodes(schema(kind)):
        if found.get("type") == "string":
            assert "maxLength" in found or "enum" in found or found.get("format") == "date-time", f"{kind}{at}"
        if found.get("type") == "array":
            assert "maxItems" in found, f"{kind}{at}"
        if "additionalProperties" in found:
            at_most_a_record = kind in NODES and at.startswith(".status")
            assert "maxProperties" in found or at_most_a_record, f"{kind}{at}"


@pytest.mark.parametrize("kind", CRDS)
def test_patterns_compile_and_defaults_keep_to_them(kind: str) -> None:
    for at, found in nodes(schema(kind)):
        if "default" in found:
            jsonschema.validate(found["default"], {k: v for k, v in found.items() if k != "default"})
        if "pattern" in found:
            assert re.compile(found["pattern"]), at
            assert found["pattern"].startswith("^"), at
            assert found["pattern"].endswith("$"), at


@pytest.mark.parametrize(
    ("kind", "at", "found", "rule"), rules(), ids=lambda each: each if isinstance(each, str) else ""
)
def test_a_rule_speaks_of_fields_that_exist(kind: str, at: str, found: dict, rule: dict[str, str]) -> None:
    assert rule["message"], at
    text = re.sub(r"'[^']*'", "''", rule["rule"])
    guarded = set(re.findall(r"has\(((?:self|oldSelf)(?:\.\w+)+)\)", text))
    for path in re.findall(r"\b((?:self|oldSelf)(?:\.\w+)+)", text):
        names = [name for name in path.split(".")[1:] if name not in ("matches", "compareTo", "exists", "all")]
        inside, sofar = found, path.split(".")[0]
        for name in names:
            if at == "" and name in ("metadata", "name"):
                break
            assert name in inside.get("properties", {}), f"{kind}{at}: {path}"
            sofar += f".{name}"
            always = name in inside.get("required", []) or "default" in inside["properties"][name]
            assert always or sofar in guarded, f"{kind}{at}: {sofar} without has()"
            inside = inside["properties"][name]


@pytest.mark.parametrize("kind", USERS)
def test_users_kinds_have_status_and_columns(kind: str) -> None:
    found = version(kind)
    assert "status" in found["subresources"]
    status = schema(kind)["properties"]["status"]["properties"]
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
    assert "observedGeneration" in status
    columns = {each["name"]: each["jsonPath"] for each in found["additionalPrinterColumns"]}
    assert next(iter(columns)) == "Ready"
    assert {"Age", "Reason"} <= columns.keys()


@pytest.mark.parametrize("kind", CRDS)
def test_columns_show_fields_that_exist(kind: str) -> None:
    paths = {at for at, _ in nodes(schema(kind))}
    for column in version(kind)["additionalPrinterColumns"]:
        bare = re.sub(r"\[[^]]*\]", "[]", column["jsonPath"])
        if not bare.startswith(".metadata"):
            assert bare in paths, f"{kind}: {column['jsonPath']}"


def test_a_cluster_can_be_scaled() -> None:
    scale = version("StreamCluster")["subresources"]["scale"]
    paths = {at for at, _ in nodes(schema("StreamCluster"))}
    assert {scale["specReplicasPath"], scale["statusReplicasPath"], scale["labelSelectorPath"]} <= paths


@pytest.mark.parametrize("kind", NODES)
def test_nodes_write_a_record_in_one_call(kind: str) -> None:
    assert "status" not in version(kind).get("subresources", {})
    assert schema(kind)["properties"]["status"]["x-kubernetes-preserve-unknown-fields"]


def test_the_chart_has_the_same_files() -> None:
    for file in (ROOT / "crds").iterdir():
        assert (ROOT / "charts/headrace-crds/templates" / file.name).read_bytes() == file.read_bytes()
    assert len(list((ROOT / "charts/headrace-crds/templates").iterdir())) == len(CRDS)


@pytest.mark.parametrize(("name", "body"), examples(), ids=lambda each: each if isinstance(each, str) else each["kind"])
def test_an_example_keeps_to_its_schema(name: str, body: dict[str, Any]) -> None:
    if body["apiVersion"] != "headrace.dev/v1alpha1":
        return
    assert body["kind"] in CRDS, f"{name}: {body['kind']}"
    jsonschema.validate(body, strict(schema(body["kind"]) | {"properties": envelope(body["kind"])}))


def envelope(kind: str) -> dict[str, Any]:
    own = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    return own | schema(kind)["properties"]


def strict(found: dict[str, Any]) -> dict[str, Any]:
    """Refuse unnamed fields (kubectl only warns, and the API server prunes them)."""
    made = dict(found)
    if "properties" in found:
        made["properties"] = {name: strict(each) for name, each in found["properties"].items()}
        if not found.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    if "items" in found:
        made["items"] = strict(found["items"])
    return made


def test_there_is_an_example_of_each_kind() -> None:
    assert {body["kind"] for _, body in examples()} >= {*USERS, *NODES}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Stream", {"path": "plant"}),
        ("Stream", {"path": "/plant/a.b"}),
        ("Stream", {"path": "/plant", "ttl": "soon"}),
        ("Topic", {"stream": "/plant", "partitions": 0}),
        ("Topic", {"stream": "/plant", "partitions": "three"}),
        ("Volume", {"replicas": 10}),
        ("Volume", {"durability": "none"}),
        ("StreamUser", {"listener": "Outside"}),
        ("StreamUser", {"secretName": "Alice"}),
        ("StreamUser", {"secretName": "../../far/secrets/s"}),
        ("StreamJob", {"application": {"configMap": {"name": "../secrets/s"}}}),
        ("StreamJob", {"application": {"configMap": {"name": "s", "key": "../s"}}}),
        ("StreamJob", {"application": {"path": "/a.py"}, "user": "a/b"}),
        ("StreamJob", {"application": {"path": "/a.py"}, "checkpoint": {"claim": "a b"}}),
        ("StreamJob", {"application": {"url": "ftp://x"}}),
        ("StreamJob", {"application": {"path": "/a.py"}, "trigger": {"availableNow": True, "schedule": "at noon"}}),
    ],
)
def test_a_bad_spec_is_refused_by_the_schema(kind: str, spec: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"clusterRef": {"name": "c"}, **spec}, schema(kind)["properties"]["spec"])


def test_a_user_without_a_name_of_its_own_has_room_for_the_resources() -> None:
    """Otherwise its status could never be written."""
    assert schema("StreamUser")["properties"]["status"]["properties"]["user"]["maxLength"] == 253


@pytest.mark.skipif("HEADRACE_CRDCHECK" not in os.environ, reason="needs tests/crdcheck, built with go")
@pytest.mark.parametrize("kind", CRDS)
def test_kubernetes_itself_takes_the_crd_and_its_rules_refuse_what_they_should(kind: str) -> None:
    plural = CRDS[kind]["spec"]["names"]["plural"]
    cases = sorted((Path(__file__).parent / "crdcheck/cases").glob(f"{plural}-*.json"))
    command = [os.environ["HEADRACE_CRDCHECK"], str(ROOT / f"crds/{plural}.yaml"), *map(str, cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    for case in cases:
        (line,) = [each for each in done.stdout.splitlines() if each.startswith(f"{case} ")]
        faults = int(line.removeprefix(f"{case} ").split()[0])
        assert bool(faults) is ("-bad" in case.name), line
        assert "evaluating rule" not in line
