"""The table of attempts in docs/security.md is what the tests try. `python -m kit.attempts_table` writes it anew."""

from pathlib import Path

from kit.attempts import ORDER
from kit.attempts_table import HEADING, all_rows, missing_groups, names_of_tests, rendered

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def test_the_table_of_attempts_is_what_the_tests_try() -> None:
    text = DOCUMENT.read_text()
    assert text[text.index(HEADING) :] == rendered()


def test_each_attempt_is_named_once_in_its_group_and_has_a_test_that_exists() -> None:
    rows = all_rows()
    assert len(rows) >= 60
    assert missing_groups(rows) == []
    assert {row.group for row in rows} == set(ORDER)
    named = [(row.group, row.attempt) for row in rows]
    assert len(set(named)) == len(named)
    assert {row.test for row in rows} <= names_of_tests()
    assert all(row.got for row in rows)
