"""What a StreamJob's application gets: the session, its inputs, its output, and how often it is to run.

    from headrace_spark.job import current

    job = current()
    counts = job.input().groupBy("key").count()
    job.write(counts.selectExpr("key", "CAST(count AS STRING) AS value"), mode="complete")

An application may as well make its own queries: `SparkSession.builder.getOrCreate()` is the job's session, knows
`format("headrace")`, and all queries of it are watched. `job.place(name)` says where a query keeps its checkpoint, and
`job.triggered(writer)` has it run as often as the job does.

Responsible for the job's definition, which is the file that the operator writes (its builders/job_definition.py), and
for turning it into readers and writers. Knows nothing of Kubernetes. The file holds no credentials: those are mounted
beside it, by reference, and `credentials` says where.
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
"""Of the files of credentials the one that says who asks."""
INPUT: Final = "input"
"""What an input is called that is not named."""


@dataclass(frozen=True, slots=True)
class Input:
    """Topics of one stream."""

    stream: str
    name: str = INPUT
    topics: tuple[str, ...] = ()
    """Names within the stream; none: those that `topic_pattern` matches."""
    topic_pattern: str = ".*"
    starting_offsets: str = "earliest"
    watermark: str | None = None
    """How late records may be, as Spark writes a duration; on the column `timestamp`."""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Output:
    """A stream, and the topic in it for all rows; none: each row names its own in a column `topic`."""

    stream: str
    topic: str | None = None
    mode: str = "append"
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Application:
    """What runs: one of these."""

    path: str | None = None
    url: str | None = None
    sql: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A StreamJob, as its driver runs it."""

    name: str
    bootstrap: str
    checkpoint: str
    """A folder or a URL; each query has its own below it."""
    application: Application = Application()
    inputs: tuple[Input, ...] = ()
    output: Output | None = None
    interval: str | None = None
    available_now: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    credentials: str | None = None
    """Folder with the files of the StreamUser's Secret: user, password, bootstrap, client.properties."""
    master: str | None = None
    """None: whoever started the driver has said it (spark-submit)."""
    conf: Mapping[str, str] = field(default_factory=dict)
    autoscale: Autoscale | None = None

    @property
    def spark(self) -> "SparkSession":
        """The session."""
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()

    def options(self, stream: str | None) -> dict[str, str]:
        """What `format("headrace")` needs to find a stream."""
        found = {"bootstrap": self.bootstrap}
        if self.credentials is not None and (file := Path(self.credentials, CLIENT_PROPERTIES)).exists():
            found["propertiesFile"] = str(file)
        if stream is not None:
            found["stream"] = stream
        return found

    def group(self, name: str = INPUT) -> str:
        """Under which an input's cursors are committed."""
        return self.name if name == INPUT else f"{self.name}.{name}"

    def reading(self, name: str = INPUT) -> dict[str, str]:
        """The options of reading an input. Raises JobError where the job has no such input."""
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
        """An input, streaming; `options` stand over those of the job. Raises JobError where the job has none."""
        rows = self.spark.readStream.format("headrace").options(**(self.reading(name) | options)).load()
        watermark = next(each.watermark for each in self.inputs if each.name == name)
        return rows if watermark is None else rows.withWatermark("timestamp", watermark)

    def write(
        self, rows: "DataFrame", *, topic: str | None = None, mode: str | None = None, query: str = "output"
    ) -> "StreamingQuery":
        """Write rows (`key`, `value`, …) to the output, from the job's checkpoint on, as often as it says.

        Raises JobError where the job has no output.
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
        """Where a query's checkpoint lies."""
        return f"{self.checkpoint.rstrip('/')}/{query}"

    def triggered(self, writer: Any) -> Any:
        """A DataStreamWriter that runs as often as the job says."""
        if self.available_now:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=self.interval) if self.interval else writer


@cache
def current() -> Job:
    """The job that this process runs. Raises JobError outside of one."""
    path = Path(os.environ.get("HEADRACE_JOB", DEFINITION))
    try:
        return read(path.read_text())
    except OSError as error:
        raise JobError(End.WRONG, f"no job is defined in {path}: {error.strerror}") from error


def read(text: str) -> Job:
    """A job as the operator wrote it; what this version does not know is left alone."""
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
