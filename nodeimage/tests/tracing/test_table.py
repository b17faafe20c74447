from pathlib import Path

from headrace.tracing.spans import KINDS
from headrace.tracing.table import main, with_table

DOCUMENT = Path(__file__).parents[3] / "docs" / "observability.md"


def test_the_documentation_lists_the_spans_that_are_declared() -> None:
    text = DOCUMENT.read_text()
    assert text == with_table(text), "write it anew: python -m headrace.tracing.table"
    for kind in KINDS:
        assert f"| `{kind.name}" in text
        for attribute in kind.attributes:
            assert f"|  | `{attribute}` |" in text


def test_a_document_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "observability.md"
    path.write_text(DOCUMENT.read_text().replace("headrace.roll", "headrace.old"))
    main(path)
    assert path.read_text() == DOCUMENT.read_text()
