"""A job's status, from its objects and its driver's report."""

from typing import Any

import msgspec

from headrace_operator.kinds.job_status import ObservedJob, figures, judge, newest_driver
from headrace_operator.specs import JobSpec

from .test_job import SPEC, World, driver, ended, seen


def test_states_of_a_job_that_runs_on() -> None:
    assert seen({"suspend": True}) == ("Suspended", "Suspended")
    assert seen({}) == ("Starting", "Starting")
    assert seen({}, told={"state": "Running"}) == ("Running", "Running")
    assert seen({}, driver=driver(ended(1, {"end": "failed", "failure": "x"}))) == ("Failed", "QueryFailed")
    assert seen({}, driver=driver(ended(2, {"end": "wrong", "failure": "x"}))) == ("Failed", "JobWrong")
    killed = ended(137)
    killed[0]["lastState"]["terminated"]["reason"] = "OOMKilled"
    assert seen({}, driver=driver(killed)) == ("Failed", "OOMKilled")


def test_states_of_a_run() -> None:
    now = {"trigger": {"availableNow": True}}

    def job(kind: str) -> dict[str, Any]:
        return {"kind": "Job", "status": {"conditions": [{"type": kind, "status": "True", "message": "limit"}]}}

    assert seen(now, workload={"kind": "Job"}) == ("Starting", "Starting")
    assert seen(now, workload=job("Complete")) == ("Done", "Done")
    assert seen(now, workload=job("Failed")) == ("Failed", "JobFailed")
    wrong = driver(ended(2, {"end": "wrong", "failure": "bad SQL"}, now="terminated"), "Failed")
    assert seen(now, workload=job("Failed"), driver=wrong) == ("Failed", "JobWrong")
    done = driver(ended(0, {"end": "done", "failure": "", "records": 5}, now="terminated"), "Succeeded")
    spec = msgspec.convert({**SPEC, **now}, JobSpec)
    shown = figures(spec, "Done", ObservedJob(job("Complete"), done), name="copy", namespace="plant")
    assert (shown["records"], shown["recordsPerSecond"]) == (5, 0.0)


def test_states_between_the_runs_of_a_schedule() -> None:
    nightly = {"trigger": {"availableNow": True, "schedule": "@daily"}}
    assert seen(nightly) == ("Scheduled", "Scheduled")
    good = driver(ended(0, {"end": "done", "failure": ""}, now="terminated"), "Succeeded")
    bad = driver(ended(1, {"end": "failed", "failure": "x"}, now="terminated"), "Failed")
    assert seen(nightly, driver=good) == ("Scheduled", "Scheduled")
    assert seen(nightly, driver=bad) == ("Scheduled", "QueryFailed")
    assert seen(nightly, driver=driver([])) == ("Starting", "Starting")


def test_a_driver_that_has_no_place_says_why() -> None:
    unplaced = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient memory"}
    spec = msgspec.convert(SPEC, JobSpec)
    _, conditions = judge(spec, ObservedJob(driver=driver([], "Pending", conditions=[unplaced])))
    assert conditions[-1].message == "the driver cannot be scheduled: 0/2 nodes: Insufficient memory"
    pulling = [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}]
    _, conditions = judge(spec, ObservedJob(driver=driver(pulling, "Pending")))
    assert conditions[-1].message == "the driver is waiting: ErrImagePull no such image"


def test_a_driver_that_had_too_little_memory_says_so_and_not_what_that_looked_like() -> None:
    word = {"end": "failed", "failure": "ConnectionRefusedError: [Errno 111] Connection refused"}
    killed = ended(137, word)
    killed[0]["lastState"]["terminated"]["reason"] = "OOMKilled"
    _, conditions = judge(msgspec.convert(SPEC, JobSpec), ObservedJob(driver=driver(killed)))
    assert conditions[-1].reason == "OOMKilled"
    assert conditions[-1].message.startswith("the driver needed more memory than its limit")
    assert "raise driver.memory" in conditions[-1].message


def test_the_newest_driver_counts() -> None:
    world = World()
    pods = [world.pod("a"), world.pod("c"), world.pod("b"), world.pod("z", "job-executor")]
    newest = newest_driver(pods)
    assert newest is not None
    assert newest["metadata"]["name"] == "c"
