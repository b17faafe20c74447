"""Writes docs/e2e.md from the records of a complete run of `make e2e`: .ci/e2e_report.py [REPORT]."""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
REPORT: Final = Path(os.environ.get("HEADRACE_E2E_REPORT", ROOT / "e2e" / "report.jsonl"))
WHERE: Final = ROOT / "docs" / "e2e.md"
HEAD: Final = """\
# On kind

What `make e2e` found when it last ran whole, on kind with three workers: each test here
passed, and ended with everything as it should be. Where there is a load, stock clients write and read all the time, and
a checker compares what was acknowledged to them with what is there in the end. Where a figure is followed by a limit,
the test enforces it. Made by `.ci/e2e_report.py`.

"""

Line = Mapping[str, Any]


def page(lines: Iterable[Line], *, on: str) -> str:
    """Return the whole document. `on`: when, and on what machine. If a test ran several times, the last run counts."""
    newest = {(each["behaviour"], each["test"]): each for each in lines}
    seconds = sum(each["seconds"] for each in newest.values())
    told = [HEAD, f"{on}; {len(newest)} lines, {seconds / 60:.0f} min.\n"]
    told += ["\n| behaviour | test | seconds | figures |\n|---|---|---|---|\n"]
    told += [_row(each) for each in sorted(newest.values(), key=lambda each: _numbered(each["behaviour"]))]
    return "".join(told)


def _row(line: Line) -> str:
    test = str(line["test"]).removeprefix("e2e/").removesuffix(" (setup)")
    figures = "; ".join(f"{_words(name)} {_number(value)}" for name, value in line["figures"].items())
    cells = (line["behaviour"], f"`{test}`", _number(line["seconds"]), figures)
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |\n"


def _words(name: str) -> str:
    """Return `driver_back_s` as `driver back s`."""
    return name.replace("_", " ")


def _number(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _numbered(behaviour: str) -> tuple[int, str]:
    """Return the sort key: behaviours that begin with a number come first, in its order."""
    number = re.match(r"\d+", behaviour)
    return int(number[0]) if number else 1000, behaviour


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {memory:.0f} GiB of memory"


def main(report: Path) -> int:
    """Write the document; return the exit code."""
    if not report.exists():
        print(f"there is no {report}: run `make e2e`", file=sys.stderr)
        return 1
    lines = [json.loads(line) for line in report.read_text().splitlines() if line.strip()]
    WHERE.write_text(page(lines, on=_machine()))
    print(f"{WHERE.relative_to(ROOT)}: {len(lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else REPORT))
