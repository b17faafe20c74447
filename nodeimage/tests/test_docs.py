"""What the documents say is so: tables, commands, links and names of tests are held against the code."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.node.options import parse
from headrace.partitions.cluster_layout import NodeSettings
from headrace.wire.api_keys import ApiKey
from headrace_spark import options as spark_options
from kit.documents import DOCUMENTS, ROOT
from kit.kafka_versions import told_versions

ROOTS = ("", "nodeimage", "nodeimage/headrace", "operator", "operator/headrace_operator", "spark")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()

SEED_TESTS = {"seed": "test_what_a_seed_found_is_mended", "link seed": "test_what_a_seed_found_in_links_is_mended"}
"""What holds the simulator's seeds that are kept: of one cluster, of several."""


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next one."""
    (found,) = re.findall(rf"^#+ {re.escape(title)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def table(text: str) -> list[list[str]]:
    """The rows of the tables in `text`, cells stripped, without heads."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    rules = [index for index, row in enumerate(rows) if set("".join(row)) <= set("-: ")]
    return [row for index, row in enumerate(rows) if index not in rules and index + 1 not in rules]


def names(cell: str) -> list[str]:
    """The names in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_apis_is_what_api_versions_tells(cluster: Any) -> None:
    shown = {}
    for key, name, versions, _ in table(section((ROOT / "docs" / "protocol.md").read_text(), "APIs")):
        lowest, _, highest = versions.partition("-")
        shown[int(key), name] = (int(lowest), int(highest or lowest))
    assert shown == {
        (key, "".join(word.capitalize() for word in ApiKey(key).name.split("_"))): versions
        for key, versions in told_versions(cluster.host, cluster.port).items()
    }


def test_the_settings_of_a_node_are_all_there_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)) - {"--help"}
    shown = {names(setting)[0]: default.strip("`") for setting, default, _ in table(section(OPERATIONS, "Settings"))}
    assert set(shown) == known
    defaults = dataclasses.asdict(NodeSettings())
    assert defaults.pop("fsync") is True
    assert {name: shown["--" + name.replace("_", "-")] for name in defaults} == {
        name: str(value) for name, value in defaults.items()
    }


def flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_field_of_the_status_is_explained(cluster: Any) -> None:
    status = cluster.admin("status")
    containers = status.pop("containers")
    text = section(OPERATIONS, "What to look at")
    shown = [names(fields) for fields, _ in table(text[: text.index("| event |")])]
    of_containers = next(row[1:] for row in shown if row[0] == "containers[]")
    plain = {name for row in shown for name in row if row[0] != "containers[]"}
    assert set(of_containers) == set(containers[0])
    assert set(flat(status)) <= plain


def test_every_event_of_the_log_that_is_explained_exists() -> None:
    text = section(OPERATIONS, "What to look at")
    rows = table(text[text.index("| event |") :])
    source = "\n".join(path.read_text() for path in (ROOT / "nodeimage" / "headrace").rglob("*.py"))
    events = [event for row in rows for event in names(row[0])]
    assert len(events) > 15
    assert [event for event in events if f'"{event}"' not in source] == []


def test_the_options_of_spark_are_all_there() -> None:
    source = Path(spark_options.__file__).read_text()
    read = set(re.findall(r'options\.get\("([a-z.]+)"', source))
    read |= {name.lower() for name in re.findall(r'_(?:flag|count|place)\(options, "(\w+)"', source)}
    text = (ROOT / "docs" / "spark.md").read_text()
    tables = section(text, "Options for reading and writing") + section(text, "Reading") + section(text, "Writing")
    shown = {name.lower() for row in table(tables) if row[0].startswith("`") for name in names(row[0])}
    assert shown >= read
    assert shown - read <= {"key", "value", "topic", "partition", "headers", "timestamp", "offset", "timestamptype"}


def test_every_link_leads_to_a_file() -> None:
    broken = [
        (document.name, target)
        for document in DOCUMENTS
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []


def test_every_test_that_is_named_exists() -> None:
    files = [path for path in ROOT.rglob("test_*.py") if ".venv" not in path.parts]
    tests = {path.name for path in files} | {  # files of one name lie in several folders
        name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    named = {(path.name, name) for path in DOCUMENTS for name in re.findall(r"\btest_\w+(?:\.py)?", path.read_text())}
    assert len(named) > 15
    assert [(document, name) for document, name in sorted(named) if name not in tests] == []


def test_every_folder_and_file_of_tests_that_is_named_exists() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"`(tests/[\w/.]+)`", path.read_text())}
    assert len(named) > 5
    assert sorted(name for name in named if not (ROOT / "nodeimage" / name).exists()) == []


def test_every_fault_found_has_a_test_or_says_what_covers_it() -> None:
    """A row that cites the simulator's seeds names those of its fault, and every seed that is kept has a row."""
    source = (ROOT / "nodeimage/tests/simulation/test_seeds.py").read_text()
    alone, linked = (re.findall(r"^    (\d+): ", each, re.MULTILINE) for each in source.split("FOUND_WITH_LINKS = {"))
    kept = {("seed", seed) for seed in alone} | {("link seed", seed) for seed in linked}
    told: set[tuple[str, str]] = set()
    for row in table(section((ROOT / "docs/history/reliability-runs.md").read_text(), "Faults found")):
        tests = row[-1]
        assert len(row) == 4, row
        assert re.search(r"`(test_\w+|test_\w+\.py)`", tests) or tests.startswith("none of its own: "), row
        seeds = {
            (kind, seed)
            for kind, found in re.findall(r"\(((?:link )?seed)s? ([\d, ]+)\)", " ".join(row))
            for seed in found.split(", ")
        }
        held = {kind for kind, test in SEED_TESTS.items() if f"`{test}`" in tests}
        assert {kind for kind, _ in seeds} == held, row
        told |= seeds
    assert told == kept


def test_every_module_that_is_named_exists() -> None:
    missing = [
        (document.name, name)
        for document in DOCUMENTS
        for name in set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", document.read_text()))
        if not any((ROOT / root / name).exists() for root in ROOTS)
    ]
    assert missing == []


def test_the_figures_of_the_readme_are_those_that_were_measured() -> None:
    """Of the newest run: bench/results/README.md has all, by the number of nodes."""
    measured = (ROOT / "bench" / "results" / "README.md").read_text()
    headings = {"1": "One node and one broker", "3": "Three nodes and three brokers"}
    rows = {nodes: {row[0]: row[1:3] for row in table(section(measured, title))} for nodes, title in headings.items()}
    (text,) = re.findall(r"^\| nodes \| measured .*?\n\n", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    shown = table(text)
    assert len(shown) >= 5
    for nodes, what, kafka, headrace in shown:
        assert rows[nodes][what] == [kafka, headrace], what


def anchors(document: Path) -> set[str]:
    """What links may name within a document: its headings, as GitHub writes them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_into_a_document_leads_to_a_heading() -> None:
    broken = []
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", document.read_text()):
            page = document.parent / target if target else document
            if page.suffix == ".md" and anchor not in anchors(page):
                broken.append((document.name, target, anchor))
    assert broken == []
