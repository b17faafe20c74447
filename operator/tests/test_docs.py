"""The operator's documents match its code: resources, conditions, reasons, events."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.control import events
from headrace_operator.actions import ACTIONS
from headrace_operator.kinds import cluster, job, kind, link_status, permissions
from headrace_operator.kinds.cluster import SEEN_BY_ALL, event_reason
from headrace_operator.status import WARNED
from kit.gate_scripts import gate_script

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = (ROOT / "docs" / "kubernetes.md").read_text()
JOBS = (ROOT / "docs" / "jobs.md").read_text()
SOURCE = ROOT / "operator" / "headrace_operator"


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the rows of the last table with this first cell in its head."""
    table = text[text.index(f"| {heading} |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def names(text: str, heading: str) -> set[str]:
    return {name for row in rows(text, heading) for name in re.findall(r"`(\w+)`", row[0])}


def calls() -> Iterator[tuple[str, list[ast.expr], dict[str | None, ast.expr]]]:
    """Yield every call in the operator: the function's last name, and its arguments."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                yield name, node.args, {each.arg: each.value for each in node.keywords}


def texts(found: ast.expr | None) -> set[str]:
    return {each.value for each in ast.walk(found) if isinstance(each, ast.Constant)} if found is not None else set()


def reasons() -> set[str]:
    said = set()
    for name, arguments, _ in calls():
        if name in ("note", "Condition") and len(arguments) > 2:
            said |= texts(arguments[2])
        if name in ("Unresolved", "Unheard", "Fault") and arguments:
            said |= texts(arguments[0])
    return {each for each in said if isinstance(each, str) and re.fullmatch(r"[A-Z][A-Za-z]+", each)}


def test_the_report_of_the_tests_on_kind_has_each_test_as_it_was_last() -> None:
    line = {"behaviour": "10. b", "test": "e2e/test_x.py::test_y", "seconds": 61.0, "figures": {"back_s": 3.21}}
    lines = [line, {**line, "seconds": 30.0}, {**line, "behaviour": "2. a|b", "figures": {"written": 12345}}]
    page = gate_script("e2e_report").page(lines, on="then, there")
    assert "then, there; 2 lines, 2 min" in page
    assert page.splitlines()[-2:] == [
        "| 2. a/b | `test_x.py::test_y` | 61.0 | written 12,345 |",
        "| 10. b | `test_x.py::test_y` | 30.0 | back s 3.2 |",
    ]


def test_the_reference_of_resources_is_up_to_date() -> None:
    module = gate_script("resources")
    assert (ROOT / "docs" / "resources.md").read_text() == module.reference(), "run `make docs`"


def test_every_condition_is_explained() -> None:
    assert names(KUBERNETES, "condition") == {
        *cluster.TYPES,
        *kind.TYPES,
        *job.TYPES,
        *link_status.TYPES,
        *permissions.TYPES,
    }


def test_every_reason_is_explained() -> None:
    of_jobs = names(JOBS, "condition `Running` is False because of")
    of_jobs |= names(JOBS, "condition `Reconciled` is False because of")
    explained = names(KUBERNETES, "reason")
    good_ones_of_jobs = {"Running", "Done", "Scheduled", "Ready"}
    assert reasons() - explained - of_jobs - good_ones_of_jobs == set()
    assert explained - reasons() == set(), "explained, and never said"


def test_every_event_is_explained() -> None:
    told = set()
    for name, arguments, named in calls():
        if name == "tell":
            told |= texts(arguments[1] if len(arguments) > 1 else named.get("reason"))
        if name == "Turn":
            told |= texts(arguments[0])
    told = {each for each in told if isinstance(each, str) and re.fullmatch(r"[A-Z]\w+", each)}
    kinds = ("anything", *SEEN_BY_ALL, *re.findall(r"`(\w+)`", kinds_of_the_controller()))
    told |= {event_reason(kind) for kind in kinds} | WARNED
    assert names(KUBERNETES, "event") == told


def test_every_event_has_its_action() -> None:
    assert ACTIONS.keys() == names(KUBERNETES, "event")


def kinds_of_the_controller() -> str:
    source = Path(str(events.__file__)).read_text()
    (found,) = re.findall(r'kind: str\n    """(.*?)"""', source, re.DOTALL)
    return str(found)


@pytest.mark.parametrize("document", ["kubernetes.md", "jobs.md", "resources.md"])
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / "docs" / document).read_text()
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (ROOT / "docs" / link).exists(), link


def test_tests_that_stand_for_what_the_operator_can_do_are_there() -> None:
    """The tests that the table of capability levels names."""
    named = set(re.findall(r"`(test_\w+)`", KUBERNETES[KUBERNETES.index("## How far it goes") :]))
    folders = (ROOT / "operator" / "tests", ROOT / "nodeimage" / "tests", ROOT / "e2e")
    files = [file for folder in folders for file in folder.rglob("test_*.py")]
    defined = {name for file in files for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.M)}
    assert named
    assert named - defined == set()
