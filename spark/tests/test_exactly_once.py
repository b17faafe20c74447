"""A streaming query that is killed at every stage of a batch, and run again, writes every row once.

The rows pass a shuffle, so a re-run gets them in another order, and the target's partitions roll between the runs, so
the tokens must have moved to the next partitionlet.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from exactly_once_query import STAGES, start
from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Node

PARTITIONS = 3
CLEAN_EVERY = 3
"""So a batch is killed at its first run, its second and its third, each at another stage."""
KILLS = int(os.environ.get("HEADRACE_QUERY_KILLS", str(CLEAN_EVERY * len(STAGES))))
"""By default each of these runs of a batch is killed at each stage; `make nightly` has more."""
DRIVER_EVERY = 5
"""Every fifth kill hits the whole driver; the others a worker, or the query in a session that survives."""
QUERY = Path(__file__).parent / "exactly_once_query.py"

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300 + 60 * KILLS)]


def test_every_row_is_written_once_over_kills_at_every_stage(
    spark: "SparkSession", new_node: Callable[..., "Node"], tmp_path: Path
) -> None:
    node = new_node("--partitionlet-bytes=1048576")
    source, target = node.topic(partitions=2), node.topic(partitions=PARTITIONS)
    where: dict[str, Any] = {
        "bootstrap": node.bootstrap, "source": source, "target": target, "checkpoint": tmp_path / "checkpoint",
    }  # fmt: skip
    written = 0

    def produce(count: int) -> None:
        nonlocal written
        node.produce(source, [{"key": b"%d" % (n % 17), "value": b"%d" % n} for n in range(written, written + count)])
        written += count

    def plan_of(number: int) -> Path:
        """A plan for each kill: tasks that briefly outlive their query must not die in the next one's place."""
        plan = tmp_path / f"plan-{number}"
        plan.mkdir()
        return plan

    rolled: Counter[int] = Counter()
    for kill in range(KILLS):
        stage, plan = STAGES[kill % len(STAGES)], plan_of(kill)
        produce(60)
        if kill % DRIVER_EVERY == DRIVER_EVERY - 1:
            driver = subprocess.Popen(
                [sys.executable, str(QUERY), node.bootstrap, source, target, str(where["checkpoint"]), str(plan)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            (plan / "die").write_text(f"{stage}\n{os.getpgid(driver.pid)}")
            assert driver.wait(240) == -signal.SIGKILL
        else:
            (plan / "die").write_text(stage)
            with pytest.raises(StreamingQueryException):
                start(spark, **where, plan=plan).awaitTermination()
        assert (plan / "died").exists(), "the query failed of something else"
        partition = kill % PARTITIONS
        *_, newest = node.admin("chain", {"topic": target, "partition": partition})
        rolled[partition] += newest["end"] > newest["first"]  # an empty partitionlet leaves no trace in the chain
        node.admin("roll", {"topic": target, "partition": partition})
        if kill % CLEAN_EVERY == CLEAN_EVERY - 1:
            start(spark, **where, plan=plan).awaitTermination()

    node.kill()
    node.start()
    start(spark, **where, plan=plan_of(KILLS)).awaitTermination()
    found = Counter(int(record.value()) for record in node.consume(target))
    assert [n for n in range(written) if found[n] != 1] == []
    assert sum(found.values()) == written
    assert rolled.total() > KILLS // 2
    for partition in range(PARTITIONS):
        assert len(node.admin("chain", {"topic": target, "partition": partition})) > rolled[partition]
