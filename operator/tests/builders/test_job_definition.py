"""A driver's definition, when a change of it restarts the driver, and which jobs are refused."""

import json
from typing import Any

import msgspec
import pytest

from headrace_operator.builders.job_definition import definition, fault
from headrace_operator.specs import JobSpec
from headrace_spark.job import read

from .test_job import COPY, FORMS, asked, by_kind, digest, objects


@pytest.mark.parametrize("form", FORMS)
def test_a_driver_reads_what_the_operator_writes(form: str) -> None:
    made = by_kind(FORMS[form])["ConfigMap/copy-job"]
    job = read(made["data"]["job.json"])
    assert job.name == "plant.copy"
    assert job.bootstrap == "quickstart-bootstrap.plant.svc:9092"
    assert job.reading()["stream"] == "/factory"
    assert job.available_now == (form in ("available-now", "schedule"))
    assert job.checkpoint == ("s3a://bucket/checkpoints/copy" if form == "autoscale" else "/checkpoint/copy")
    assert (job.autoscale is not None) == (form == "autoscale")
    assert (job.master is None) == (form == "kubeflow")


def test_what_a_driver_runs_makes_it_anew_when_it_changes() -> None:
    first = digest(FORMS["executors"])
    assert digest(FORMS["executors"]) == first
    assert digest({**FORMS["executors"], "executors": 3}) != first
    assert digest({**FORMS["executors"], "parameters": {"a": "b"}}) != first
    assert digest(FORMS["executors"], file_digest="other") != first
    assert digest({**FORMS["executors"], "suspend": True}) == first


def test_what_a_run_was_asked_for_changes_with_its_resource_alone() -> None:
    first = asked({})
    assert asked({}, file_digest="other") == first
    assert asked({"suspend": True, "reclaimPolicy": "Delete"}) == first
    assert asked({"executors": 0, "driver": {"cores": 1, "memory": "1Gi"}}) == first, "as other CRDs may fill it in"
    assert asked({"driver": {"memory": "2Gi"}}) != first
    one, other = ([{"name": "a", "stream": "/a", **more}] for more in ({}, {"startingOffsets": "earliest"}))
    assert asked({"input": None, "inputs": one}) == asked({"input": None, "inputs": other}) != first


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sparkConf": {"spark.master": "local"}}, "its cluster's, sets spark.master"),
        ({"sparkConf": {"spark.hadoop.fs.s3a.secret.key": "x"}}, "fs.s3a.secret.key by value"),
        ({"parameters": {"password": "x"}}, "parameters hold password by value"),
        ({"input": {"stream": "/in", "options": {"password": "x"}}}, "options hold password by value"),
        ({"output": {"stream": "/in", "options": {"authToken": "x"}}}, "options hold authToken by value"),
        ({"checkpoint": {"url": "s3a://key:x@bucket/here"}}, "checkpoint.url holds a password"),
        ({"env": [{"name": "AWS_ACCESS_KEY_ID", "value": "x"}]}, "env holds AWS_ACCESS_KEY_ID by value"),
        ({"inputs": [{"stream": "/a"}, {"stream": "/b"}], "input": None}, "two inputs have the same name"),
    ],
)
def test_what_cel_cannot_see_is_said(fields: dict[str, Any], said: str) -> None:
    assert said in (fault(msgspec.convert({**COPY, **fields}, JobSpec)) or "")


def test_what_is_right_has_no_fault() -> None:
    for fields in FORMS.values():
        assert fault(msgspec.convert({**COPY, **fields}, JobSpec)) is None


def test_several_inputs_are_tables_of_their_own() -> None:
    inputs = [{"name": "left", "stream": "/a"}, {"name": "right", "stream": "/b", "watermark": "90s"}]
    placed = objects({"input": None, "inputs": inputs}).placed
    job = read(json.dumps(definition(placed)))
    assert [job.reading(name)["stream"] for name in ("left", "right")] == ["/a", "/b"]
    assert job.group("left") == "plant.copy.left"
    assert job.inputs[1].watermark == "90 seconds"
