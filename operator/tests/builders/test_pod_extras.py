"""Additions to pods that users ask for."""

import re

import yaml

from headrace_operator.builders.secured_pods import REQUIRE, Secured

from .test_cluster import EXAMPLES, built, pod


def test_volumes_sidecars_and_variables_are_passed_on_beside_what_headrace_needs() -> None:
    asked = {
        "env": [{"name": "TZ", "value": "UTC"}],
        "volumes": [{"name": "certs", "secret": {"secretName": "s"}}],
        "volumeMounts": [{"name": "certs", "mountPath": "/certs"}],
        "sidecars": [{"name": "logs", "image": "l"}],
        "initContainers": [{"name": "first", "image": "f"}],
    }
    plain, found = pod(built({})), pod(built({"pod": asked}))
    node, sidecar = found["containers"]
    assert (node["name"], sidecar) == ("node", {"name": "logs", "image": "l"})
    assert node["env"] == [*plain["containers"][0]["env"], *asked["env"]]
    assert node["volumeMounts"] == [*plain["containers"][0]["volumeMounts"], *asked["volumeMounts"]]
    assert found["volumes"] == [*plain["volumes"], *asked["volumes"]]
    assert found["initContainers"] == asked["initContainers"]
    for name, value in asked.items():
        assert built({"pod": {name: value}}).rolled() != built({}).rolled()


def test_names_that_are_the_operators_own_are_refused_by_the_schema() -> None:
    """The CRD lists the names that the builder uses."""
    crd = yaml.safe_load((EXAMPLES.parents[1] / "crds/streamclusters.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["pod"]
    secured = pod(built({}).with_security(Secured(REQUIRE, from_start=True)))
    (node,) = secured["containers"]
    for field, name, made in (
        ("env", "name", node["env"]),
        ("volumes", "name", secured["volumes"]),
        ("volumeMounts", "mountPath", node["volumeMounts"]),
        ("sidecars", "name", [node]),
    ):
        (rule,) = schema["properties"][field]["x-kubernetes-validations"]
        claims = {"data"} if field == "volumes" else set()
        names = set(re.findall(r"'([^']+)'", rule["rule"]))
        prefixes = set(re.findall(r"startsWith\('([^']+)'\)", rule["rule"]))
        rest = {each[name] for each in made if not each[name].startswith(tuple(prefixes))}
        assert names - prefixes == rest | claims


def test_whom_pods_run_as_can_be_left_to_the_namespace() -> None:
    assert pod(built({}))["securityContext"]["runAsUser"] == 10001
    left = pod(built({"pod": {"securityContext": {}}}))["securityContext"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & left.keys()
    assert left["runAsNonRoot"] is True
    assert left["seccompProfile"] == {"type": "RuntimeDefault"}
    asked = {"runAsUser": 2000, "fsGroup": 3000, "seccompProfile": {"type": "Unconfined"}}
    assert pod(built({"pod": {"securityContext": asked}}))["securityContext"].items() >= asked.items()
