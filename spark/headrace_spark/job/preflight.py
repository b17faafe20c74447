"""Checks that what a job needs exists, before Java is started, and waits for it.

Resources are often applied together, and a StreamJob's streams, topics, user and permissions may come from resources in
the same file; so a job that starts seconds early waits here instead of failing and being backed off.
"""

import time
from collections.abc import Callable
from typing import Final

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.cli.connect import Cluster as AdminCluster
from headrace.cli.connect import connected_to
from headrace.cli.target import Target
from headrace.kafka_client.errors import SourceRefuses
from headrace_spark.cluster import Cluster, access_of
from headrace_spark.errors import RETRIABLE, BadOption, BrokerError, Refused, SourceError
from headrace_spark.job import Input, Job, Output
from headrace_spark.job.ends import End, JobError
from headrace_spark.options import Naming, connection_options, read_options

PAUSE_S: Final = 1.0
ANSWER_S: Final = 10.0
DENIED: Final = frozenset(
    {Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED}
)
"""Error codes that say that a permission is missing, which may be granted later."""


def check(job: Job, *, wait_s: float, stopped: Callable[[], bool] = lambda: False) -> None:
    """Return once the cluster answers and has all inputs and the output. Raises JobError after `wait_s` seconds."""
    for each in job.inputs:
        try:
            read_options(job.reading(each.name))
        except BadOption as error:
            raise JobError(End.WRONG, f"input {each.name}: {error}") from error
    deadline = time.monotonic() + wait_s
    while (missing := _missing(job)) is not None:
        if stopped():
            raise JobError(End.STOPPED, "stopped while it waited for what it needs")
        if time.monotonic() >= deadline:
            raise JobError(End.ABSENT, missing)
        time.sleep(PAUSE_S)


def _missing(job: Job) -> str | None:
    """Return what is missing, in one line; None if nothing is."""
    try:
        target = Target(job.bootstrap, access_of(connection_options(job.options(None))))
        with connected_to(target, timeout_s=ANSWER_S) as admin:
            for each in job.inputs:
                if (missing := _no_stream(admin, each.stream) or _no_topic(job, each)) is not None:
                    return missing
            return None if job.output is None else _no_output(admin, job, job.output)
    except BadOption as error:
        raise JobError(End.WRONG, str(error)) from error
    except (HeadraceError, SourceError, OSError) as error:
        return f"the cluster at {job.bootstrap} {_did(error)}: {error}"


def _did(error: Exception) -> str:
    """Return what the cluster did when this error was raised."""
    match error:
        case SourceRefuses() | Refused():
            return "refuses"
        case KafkaError() | BrokerError():
            return "refuses" if error.code in DENIED else "answers"
        case _:
            return "does not answer"


def _no_stream(admin: AdminCluster, stream: str) -> str | None:
    try:
        admin.admin("stream.show", {"path": stream})
    except KafkaError as error:
        if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            return f"the cluster has no stream {stream}: make it (a Stream resource, or `headrace stream create`)"
        raise
    return None


def _absent(job: Job, stream: str, topics: tuple[str, ...]) -> list[str]:
    naming = Naming(stream)
    full = {naming.full(topic): topic for topic in topics}
    options = read_options({**job.options(stream), "topics": ",".join(topics), "timeout": str(ANSWER_S)})
    with Cluster(options.connection) as cluster:
        try:
            there = cluster.partition_counts(list(full))
        except BrokerError as error:
            if error.code in DENIED | RETRIABLE:
                raise
            raise JobError(End.WRONG, str(error)) from error
    return [topic for name, topic in full.items() if name not in there]


def _no_topic(job: Job, each: Input) -> str | None:
    absent = _absent(job, each.stream, each.topics) if each.topics else []
    if not absent:
        return None
    return (
        f"stream {each.stream} has no topic {', '.join(absent)}: make it (a Topic resource or `headrace topic create`),"
        " or use topicPattern to take topics as they appear"
    )


def _no_output(admin: AdminCluster, job: Job, output: Output) -> str | None:
    if (missing := _no_stream(admin, output.stream)) is not None:
        return missing
    if output.topic is None or admin.admin("stream.show", {"path": output.stream}).get("auto_create", True):
        return None
    if not _absent(job, output.stream, (output.topic,)):
        return None
    return f"stream {output.stream} has no topic {output.topic} and creates none on first use: create it first"
