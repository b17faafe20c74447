"""The query of test_exactly_once.py: copies a topic through a shuffle, and dies at the stage that its plan names.

The plan is a folder. The file `die` in it names a stage; the first process to reach that stage removes the file, so
that it happens once, and dies there: a worker by SIGKILL, the driver by an error in Spark's commit, or, if the file
says so, the driver's whole process group. Run as a program, this module is the driver.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import headrace_spark.sink as sink
from headrace_spark.producing import Outgoing
from headrace_spark.sink import HeadraceStreamWriter
from headrace_spark.source import HeadraceSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from headrace_spark.cluster import Cluster

STAGES = ("before the rows are taken", "between two partitions", "after all are stored", "in Spark's commit")


class Killed(Exception):
    """The driver's death within a session that survives."""


def reach(plan: Path, stage: str) -> None:
    """Die here if the plan says so."""
    try:
        wanted, *group = (plan / "die").read_text().split("\n")
        if wanted != stage:
            return
        (plan / "die").rename(plan / "died")
    except FileNotFoundError:
        return
    if group:
        os.killpg(int(group[0]), signal.SIGKILL)
    if stage == STAGES[3]:
        raise Killed(stage)
    os.kill(os.getpid(), signal.SIGKILL)


class MortalWriter(DataSourceStreamArrowWriter):
    """The sink, which dies at stages of its tasks and of its commit."""

    def __init__(self, writer: HeadraceStreamWriter, plan: Path) -> None:
        self._writer, self._plan = writer, plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        reach(self._plan, STAGES[0])
        whole = sink.store_once

        def one_by_one(cluster: "Cluster", batches: Sequence[Outgoing], *, timed: bool) -> None:
            for number, batch in enumerate(batches):
                if number:
                    reach(self._plan, STAGES[1])
                whole(cluster, [batch], timed=timed)

        sink.store_once = one_by_one
        try:
            written = self._writer.write(iterator)
        finally:
            sink.store_once = whole
        reach(self._plan, STAGES[2])
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        reach(self._plan, STAGES[3])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo."""


class MortalSource(HeadraceSource):
    """`format("headrace")` whose writer dies by plan."""

    @classmethod
    def name(cls) -> str:
        return "mortal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> MortalWriter:  # type: ignore[override]
        return MortalWriter(super().streamWriter(schema, overwrite), Path(self.options["plan"]))


def start(
    spark: "SparkSession", *, bootstrap: str, source: str, target: str, checkpoint: Path, plan: Path
) -> "StreamingQuery":
    """Copy the present content of `source` to `target`, by key, in batches of at most 50 rows and three tasks."""
    if __name__ != "__main__":
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test's modules
    spark.dataSource.register(MortalSource)
    rows = spark.readStream.format("mortal").options(bootstrap=bootstrap, topics=source, maxOffsetsPerTrigger="50")
    writer = rows.load().select("key", "value").repartition(3, "key").writeStream.format("mortal")
    writer = writer.options(bootstrap=bootstrap, topic=target, plan=str(plan))
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def main() -> None:
    """Arguments: bootstrap, source, target, checkpoint, plan."""
    from headrace_spark.session import SHORT_LIVED, build_session

    bootstrap, source, target, checkpoint, plan = sys.argv[1:]
    spark = build_session("mortal", master="local[2]", conf=SHORT_LIVED)
    query = start(
        spark, bootstrap=bootstrap, source=source, target=target, checkpoint=Path(checkpoint), plan=Path(plan)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
