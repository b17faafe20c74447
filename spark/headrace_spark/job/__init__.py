"""The API for a StreamJob's application: the session, its inputs, its output, and its trigger.

    from headrace_spark.job import current

    job = current()
    counts = job.input().groupBy("key").count()
    job.write(counts.selectExpr("key", "CAST(count AS STRING) AS value"), mode="complete")

An application may also define its own queries: `SparkSession.builder.getOrCreate()` returns the job's session, which
knows `format("headrace")`, and whose queries are all monitored. `job.place(name)` returns a query's checkpoint
location, and `job.triggered(writer)` sets the job's trigger.

Reads the job's definition, the file that the operator writes (its builders/job_definition.py), and turns it into
readers and writers. Knows nothing about Kubernetes. The file holds no credentials: these are mounted separately, and
`credentials` names their folder.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace_spark.job.autoscale import Autoscale
from headrace_spark.job.ends import End, JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEFINITION: Final = Path("/etc/headrace/job/job.json")
CLIENT_PROPERTIES: Final = "client.properties"
"""The file with client properties in the folder of credentials."""
INPUT: Final = "input"
"""The name of an input without a name."""


@dataclass(frozen=True, slots=True)
class Input:
    """Topics of one stream that the job reads."""

    stream: str
    name: str = INPUT
    topics: tuple[str, ...] = ()
    """Names within the stream; if empty, all topics that match `topic_pattern`."""
    topic_pattern: str = ".*"
    starting_offsets: str = "earliest"
    watermark: str | None = None
    """How late records may be, in Spark's form of a duration; applies to the column `timestamp`."""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Output:
    """A stream, and the topic in it for all rows; without a topic, each row names its own in a column `topic`."""

    stream: str
    topic: str | None = None
    mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Application:
    """What the job runs: one of the fields is set."""

    path: str | None = None
    url: str | None = None
    sql: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A StreamJob, as its driver runs it."""

    name: str
    bootstrap: str
    checkpoint: str
    """A folder or a URL; each query has its own folder in it."""
    application: Application = Application()
    inputs: tuple[Input, ...] = ()
    output: Output | None = None
    interval: str | None = None
    available_now: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    credentials: str | None = None
    """The folder with the files of the StreamUser's Secret: user, password, bootstrap, client.properties."""
    master: str | None = None
    """Spark's master; None if it was set when the driver was started (spark-submit)."""
    conf: Mapping[str, str] = field(default_factory=dict)
    autoscale: Autoscale | None = None

    @property
    def spark(self) -> "SparkSession":
        """The job's session."""
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()

    def options(self, stream: str | None) -> dict[str, str]:
        """Return the options by which `format("headrace")` finds a stream."""
        found = {"bootstrap": self.bootstrap}
        if self.credentials is not None and (file := Path(self.credentials, CLIENT_PROPERTIES)).exists():
            found["propertiesFile"] = str(file)
        if stream is not None:
            found["stream"] = stream
        return found

    def group(self, name: str = INPUT) -> str:
        """Return the consumer group under which an input's offsets are committed."""
        return self.name if name == INPUT else f"{self.name}.{name}"

    def reading(self, name: str = INPUT) -> dict[str, str]:
        """Return the options to read an input. Raises JobError if the job has no such input."""
        found = next((each for each in self.inputs if each.name == name), None)
        if found is None:
            known = ", ".join(each.name for each in self.inputs) or "none"
            raise JobError(End.WRONG, f"the job has no input {name} (it has: {known}): name it in spec.inputs")
        which = {"topics": ",".join(found.topics)} if found.topics else {"topicPattern": found.topic_pattern}
        return {
            **self.options(found.stream),
            **which,
            "startingOffsets": found.starting_offsets,
            "group": self.group(name),
            **found.options,
        }

    def input(self, name: str = INPUT, **options: str) -> "DataFrame":
        """Return an input as a streaming DataFrame; `options` override those of the job. Raises JobError if there is no
        such input.
        """
        rows = self.spark.readStream.format("headrace").options(**(self.reading(name) | options)).load()
        watermark = next(each.watermark for each in self.inputs if each.name == name)
        return rows if watermark is None else rows.withWatermark("timestamp", watermark)

    def write(
        self, rows: "DataFrame", *, topic: str | None = None, mode: str | None = None, query: str = "output"
    ) -> "StreamingQuery":
        """Start a query that writes rows (`key`, `value`, …) to the output, with the job's checkpoint and trigger.

        Raises JobError if the job has no output.
        """
        if self.output is None:
            raise JobError(End.WRONG, "the job has no output: name it in spec.output")
        writer = rows.writeStream.format("headrace").options(**self.options(self.output.stream), **self.output.options)
        to = topic or self.output.topic
        if to is not None:
            writer = writer.option("topic", to)
        writer = writer.option("checkpointLocation", self.place(query)).outputMode(mode or self.output.mode)
        started: StreamingQuery = self.triggered(writer.queryName(query)).start()
        return started

    def place(self, query: str) -> str:
        """Return a query's checkpoint location."""
        return f"{self.checkpoint.rstrip('/')}/{query}"

    def triggered(self, writer: Any) -> Any:
        """Return a DataStreamWriter with the job's trigger."""
        if self.available_now:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=self.interval) if self.interval else writer


@cache
def current() -> Job:
    """Return the job that this process runs. Raises JobError if it runs none."""
    path = Path(os.environ.get("HEADRACE_JOB", DEFINITION))
    try:
        return read(path.read_text())
    except OSError as error:
        raise JobError(End.WRONG, f"no job is defined in {path}: {error.strerror}") from error


def read(text: str) -> Job:
    """Parse a job that the operator wrote; fields that this version does not know are ignored."""
    found = _known(Job, json.loads(text))
    found["application"] = Application(**_known(Application, found.get("application", {})))
    found["inputs"] = tuple(
        Input(**{**_known(Input, each), "topics": tuple(each.get("topics", ()))}) for each in found.get("inputs", ())
    )
    if found.get("output") is not None:
        found["output"] = Output(**_known(Output, found["output"]))
    if found.get("autoscale") is not None:
        found["autoscale"] = Autoscale(**_known(Autoscale, found["autoscale"]))
    return Job(**found)


def _known(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in given.items() if name in names}
