"""The first query of docs/spark.md, run unchanged."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conftest import Node

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_first_query_of_the_documentation(spark: "SparkSession", node: "Node", tmp_path: Path) -> None:
    """Without its last line, which would end the session of all tests."""
    (text,) = re.findall(r"^## A first query$.*?^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    for stream in ("/factory/sensors", "/factory/insights"):
        node.admin("stream.create", {"path": stream, "policy": {}})
    rows = [{"key": b"temperature", "value": value} for value in (b"79.5", b"81.2", b"cold", b"93")]
    node.produce("/factory/sensors:press-7", rows)
    for shown, typed in (
        ("127.0.0.1:9092", node.bootstrap),
        ("/tmp/hot-checkpoint", str(tmp_path / "checkpoint")),
        ("spark.stop()\n", ""),
    ):
        assert shown in text
        text = text.replace(shown, typed)
    exec(text, {})
    found = [(record.key(), record.value()) for record in node.consume("/factory/insights:hot")]
    assert sorted(found) == [(b"press-7", b"81.2"), (b"press-7", b"93")]
