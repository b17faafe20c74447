"""Java properties, as in the files of Kafka's clients."""

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.properties import parse_properties, property_line


def test_names_and_values_are_read_as_they_stand() -> None:
    text = "# a comment\n! another\n\n  sasl.username = outpost \r\nempty=\na=b=c\n"
    assert parse_properties(text) == {"sasl.username": "outpost", "empty": "", "a": "b=c"}


def test_a_line_may_go_on_in_the_next_one() -> None:
    assert parse_properties('sasl.jaas.config=a.Module required \\\n  password="x";\n') == {
        "sasl.jaas.config": 'a.Module required password="x";'
    }
    assert parse_properties("bootstrap.servers=a:1,\\\n    b:2\n") == {"bootstrap.servers": "a:1,b:2"}
    assert parse_properties("a=1\\\r\n2") == {"a": "12"}


@pytest.mark.parametrize("comment", ["# in C:\\kafka\\", "  ! \\", "#\\"])
def test_a_comment_does_not_go_on_in_the_next_line(comment: str) -> None:
    assert parse_properties(f"{comment}\nsecurity.protocol=SASL_SSL\n") == {"security.protocol": "SASL_SSL"}


def test_a_line_goes_on_only_behind_an_odd_number_of_backslashes() -> None:
    assert parse_properties("sasl.password=abc\\\\\nsasl.username=a\n") == {
        "sasl.password": "abc\\\\",
        "sasl.username": "a",
    }
    assert parse_properties("a=b\\\\\\\nc=d\n") == {"a": "b\\\\c=d"}
    assert parse_properties("a=b\\\n# no comment here\nc=d\\\n") == {"a": "b# no comment here", "c": "d"}
    assert parse_properties("a=b\\\n\nc=d") == {"a": "b", "c": "d"}
    assert parse_properties("\\\n\nc=d\n\\\n") == {"c": "d"}


def test_only_what_ends_a_line_for_java_ends_one() -> None:
    assert parse_properties("a=b\u2028c\x85d\x0be\rf=g") == {"a": "b\u2028c\x85d\x0be", "f": "g"}


@pytest.mark.parametrize("text", ["pa55word", "=pa55word", "ok=1\n  pa55word\n"])
def test_a_line_that_is_none_is_refused_and_not_told(text: str) -> None:
    with pytest.raises(HeadraceError) as refused:
        parse_properties(text)
    assert "pa55word" not in str(refused.value)


def test_a_line_is_for_all_clients_or_refused() -> None:
    assert property_line("a", 'b "c" = d') == 'a=b "c" = d\n'
    assert parse_properties(property_line("a", "b=c;")) == {"a": "b=c;"}
    line = property_line("a", "/home/jürgen/𝄞")
    assert line.isascii()
    assert parse_properties(line) == {"a": "/home/jürgen/𝄞"}
    for value in ("b\\c", " b", "b\nc"):
        with pytest.raises(HeadraceError, match="cannot be written to a file that every client can read"):
            property_line("a", value)
