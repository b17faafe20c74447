"""The table of a node's spans in docs/observability.md: `python -m headrace.tracing.table` updates it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.metrics.table import with_part
from headrace.tracing.spans import ERROR, ERROR_HELP, KINDS

BEGIN: Final = "<!-- spans of nodes: written by python -m headrace.tracing.table -->"
END: Final = "<!-- end of the spans of nodes -->"


def with_table(text: str) -> str:
    """A document with its table brought up to date. Raises ValueError if the document has no place for it."""
    return with_part(text, "\n".join(_lines()), begin=BEGIN, end=END)


def main(path: Path) -> None:
    """[blocking] Updates the table of a document."""
    path.write_text(with_table(path.read_text()))


def _lines() -> Iterator[str]:
    yield from ("| span | attribute | meaning |", "|---|---|---|")
    for kind in KINDS:
        name = f"{kind.name}/{kind.follows}" if kind.follows else kind.name
        yield f"| `{name}` |  | {kind.help} |"
        for attribute, what in kind.attributes.items():
            yield f"|  | `{attribute}` | {what} |"
    yield f"| all | `{ERROR}` | {ERROR_HELP} |"
    yield ""


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/observability.md"))
