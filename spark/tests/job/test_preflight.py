"""What a job needs exists before Java is started: otherwise the job waits for it, and then reports it in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.cli.target import Target
from headrace.kafka_client.errors import SourceRefuses
from headrace_spark.errors import BrokerError
from headrace_spark.job import Input, Job, Output, preflight
from headrace_spark.job.ends import End, JobError
from headrace_spark.options import Connection


class Cluster:
    """Streams with their topics."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams: dict[str, set[str]] = {"/in": {"t"}, "/out": set()}
        self.makes_topics = True
        self.away = 0
        """Calls that are not answered yet."""
        self.refusals: list[Exception] = []
        """The answers to the next calls."""
        self.strange = False
        """Whether the job's credentials are rejected."""
        self.fault: Code | None = None
        """The nodes' answer about topics."""
        self.paused = 0
        monkeypatch.setattr(preflight, "connected_to", self.connected_to)
        monkeypatch.setattr(preflight, "Cluster", self.topics)
        monkeypatch.setattr(preflight.time, "sleep", self.sleep)

    @contextmanager
    def connected_to(self, target: Target, *, timeout_s: float) -> Iterator["Cluster"]:
        if self.away:
            self.away -= 1
            raise ConnectionRefusedError("nobody listens")
        if self.strange:
            raise SourceRefuses("authentication failed")
        yield self

    def admin(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        assert method == "stream.show"
        if self.refusals:
            raise self.refusals.pop(0)
        if params["path"] not in self.streams:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        return {"auto_create": self.makes_topics}

    @contextmanager
    def topics(self, connection: Connection) -> Iterator["Cluster"]:
        yield self

    def partition_counts(self, names: list[str]) -> dict[str, int]:
        if self.fault is not None:
            raise BrokerError(self.fault, f"{names[0]}: {self.fault.name}")
        there = {f"{stream}:{topic}" for stream, topics in self.streams.items() for topic in topics}
        return {name: 1 for name in names if name in there}

    def sleep(self, seconds: float) -> None:
        self.paused += 1
        assert self.paused < 10


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def job(**fields: Any) -> Job:
    given = {"inputs": (Input("/in", topics=("t",)),), "output": Output("/out", "copy")}
    return Job("ns.job", "h:1", "/nowhere", **{**given, **fields})


def refused(asked: Job, *, wait_s: float = 0.0) -> tuple[End, str]:
    with pytest.raises(JobError) as error:
        preflight.check(asked, wait_s=wait_s)
    return error.value.end, str(error.value)


def test_a_job_that_has_all_it_needs_begins_at_once(cluster: Cluster) -> None:
    preflight.check(job(), wait_s=0)
    assert cluster.paused == 0


def test_a_cluster_that_comes_late_is_waited_for(cluster: Cluster) -> None:
    cluster.away = 3
    preflight.check(job(), wait_s=60)
    assert cluster.paused == 3


def test_what_does_not_come_in_time_is_said_in_one_line(cluster: Cluster) -> None:
    cluster.away = 1
    end, said = refused(job())
    assert end is End.ABSENT
    assert said == "the cluster at h:1 does not answer: nobody listens"
    del cluster.streams["/in"]
    assert "no stream /in: make it" in refused(job())[1]
    cluster.streams["/in"] = {"u"}
    assert "stream /in has no topic t: make it" in refused(job())[1]


def test_what_the_cluster_answers_is_not_said_to_be_silence(cluster: Cluster) -> None:
    cluster.refusals = [KafkaError(Code.TOPIC_AUTHORIZATION_FAILED, "u:ann may not see /in")]
    assert refused(job()) == (End.ABSENT, "the cluster at h:1 refuses: u:ann may not see /in")
    cluster.refusals = [KafkaError(Code.LEADER_NOT_AVAILABLE, "the catalog has no leader")]
    assert refused(job()) == (End.ABSENT, "the cluster at h:1 answers: the catalog has no leader")
    cluster.strange = True
    assert refused(job()) == (End.ABSENT, "the cluster at h:1 refuses: authentication failed")
    cluster.strange, cluster.fault = False, Code.TOPIC_AUTHORIZATION_FAILED
    assert refused(job()) == (End.ABSENT, "the cluster at h:1 refuses: /in:t: TOPIC_AUTHORIZATION_FAILED")
    cluster.fault = Code.LEADER_NOT_AVAILABLE
    assert refused(job()) == (End.ABSENT, "the cluster at h:1 answers: /in:t: LEADER_NOT_AVAILABLE")


def test_a_permission_that_comes_late_is_waited_for(cluster: Cluster) -> None:
    cluster.refusals = [KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED), KafkaError(Code.NOT_CONTROLLER)]
    preflight.check(job(), wait_s=60)
    assert cluster.paused == 2


def test_a_topic_that_cannot_be_is_wrong_and_never_waited_for(cluster: Cluster) -> None:
    cluster.fault = Code.INVALID_TOPIC_EXCEPTION
    assert refused(job(), wait_s=60) == (End.WRONG, "/in:t: INVALID_TOPIC_EXCEPTION")
    assert not cluster.paused


def test_an_output_that_is_made_on_first_use_need_not_be_there(cluster: Cluster) -> None:
    preflight.check(job(), wait_s=0)
    cluster.makes_topics = False
    assert "stream /out has no topic copy and creates none" in refused(job())[1]
    cluster.streams["/out"].add("copy")
    preflight.check(job(), wait_s=0)


def test_topics_by_pattern_are_taken_as_they_appear(cluster: Cluster) -> None:
    cluster.streams["/in"] = set()
    preflight.check(job(inputs=(Input("/in", topic_pattern=".*"),), output=None), wait_s=0)


def test_a_job_that_is_stopped_meanwhile_is_not_absent(cluster: Cluster) -> None:
    cluster.away = 5
    with pytest.raises(JobError) as stopped:
        preflight.check(job(), wait_s=60, stopped=lambda: True)
    assert stopped.value.end is End.STOPPED


def test_options_that_cannot_be_are_wrong_and_never_waited_for(cluster: Cluster) -> None:
    end, said = refused(job(inputs=(Input("/in", topics=("t",), options={"startingOffsets": "yesterday"}),)), wait_s=60)
    assert (end, cluster.paused) == (End.WRONG, 0)
    assert said.startswith("input ")


def test_properties_that_cannot_be_are_wrong_and_never_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("security.protocol=TLS\n")
    with pytest.raises(JobError, match=r"the option propertiesFile: security\.protocol is one of") as error:
        preflight.check(Job("j", "h:1", "/c", credentials=str(tmp_path)), wait_s=60.0)
    assert error.value.end is End.WRONG
    assert not cluster.paused
