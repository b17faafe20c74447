from pathlib import Path

import pytest

from headrace.metrics.declarations import ALL
from headrace.metrics.table import main, table, with_table

DOCUMENT = Path(__file__).parents[3] / "docs" / "observability.md"


def test_the_documentation_lists_what_is_declared() -> None:
    text = DOCUMENT.read_text()
    assert text == with_table(text), "write it anew: python -m headrace.metrics.table"


def test_each_metric_has_a_row() -> None:
    rows = [line for line in table().splitlines() if line.startswith("| `headrace_")]
    assert [row.split("`")[1] for row in rows] == [metric.name for metric in ALL]


def test_a_document_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "observability.md"
    old = DOCUMENT.read_text().replace("headrace_ready", "headrace_old")
    path.write_text(old)
    main(path)
    assert path.read_text() == DOCUMENT.read_text()
    with pytest.raises(ValueError, match="no place"):
        with_table("# Observability\n")
