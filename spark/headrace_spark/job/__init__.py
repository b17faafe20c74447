"""What a StreamJob's application gets: the session, its input, its output, and how often it is to run.

    from headrace_spark.job import current

    job = current()
    counts = job.input().groupBy("key").count()
    job.write(counts.selectExpr("key", "CAST(count AS STRING) AS value"), mode="update")

An application may as well make its own session and queries: `SparkSession.builder.getOrCreate()` is the job's, knows
`format("headrace")`, and all queries of it are watched.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SPEC: Final = Path("/etc/headrace/job/job.json")


@dataclass(frozen=True, slots=True)
class Job:
    """A StreamJob, as its driver runs it."""

    name: str
    bootstrap: str
    checkpoint: str
    """A folder or a URL; each query has its own below it."""
    input_stream: str | None = None
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    starting_offsets: str = "earliest"
    output_stream: str | None = None
    output_topic: str | None = None
    interval: str | None = None
    available_now: bool = False
    application: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def spark(self) -> "SparkSession":
        """The session."""
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()

    def options(self, stream: str | None) -> dict[str, str]:
        """What `format("headrace")` needs to find a stream."""
        found = {"bootstrap": self.bootstrap}
        if stream is not None:
            found["stream"] = stream
        return found

    def input(self, **options: str) -> "DataFrame":
        """The input, streaming. Raises ValueError where the job has none."""
        if self.input_stream is None:
            raise ValueError(f"StreamJob {self.name} has no input: spec.input names it")
        reader = self.spark.readStream.format("headrace").options(**self.options(self.input_stream))
        if self.topics:
            reader = reader.option("topics", ",".join(self.topics))
        else:
            reader = reader.option("topicPattern", self.topic_pattern or ".*")
        given = {"startingOffsets": self.starting_offsets, "group": self.name, **options}
        return reader.options(**given).load()

    def write(
        self, rows: "DataFrame", *, topic: str | None = None, mode: str = "append", query: str = "output"
    ) -> "StreamingQuery":
        """Write rows (`key`, `value`, …) to the output, from the job's checkpoint on, as often as it says."""
        if self.output_stream is None:
            raise ValueError(f"StreamJob {self.name} has no output: spec.output names it")
        writer = rows.writeStream.format("headrace").options(**self.options(self.output_stream))
        writer = writer.option("topic", topic or self.output_topic or "").option("checkpointLocation", self.place(query))
        return self.triggered(writer.outputMode(mode).queryName(query)).start()

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
    """The job that this process runs. Raises FileNotFoundError outside of one."""
    return read(Path(os.environ.get("HEADRACE_JOB", SPEC)))


def read(path: Path) -> Job:
    """A job as the operator wrote it."""
    found = json.loads(path.read_text())
    return Job(**{**found, "topics": tuple(found.get("topics", ()))})
