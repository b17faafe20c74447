import base64
import io
import json
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.output import json_text, print_fields, print_table
from headrace.cli.text import is_utf8, printable, printable_bytes, to_bytes
from headrace.local.hints import quoted

Headrace = Callable[..., Any]

ARGUMENTS = st.binary().map(lambda given: given.decode("utf-8", "surrogateescape"))


def steers(text: str) -> bool:
    return any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in text)


@given(st.binary())
def test_an_argument_gives_back_the_bytes_that_it_was(given: bytes) -> None:
    assert to_bytes(given.decode("utf-8", "surrogateescape")) == given


@given(st.text(alphabet=st.characters()) | ARGUMENTS)
def test_what_is_shown_steers_no_terminal_and_can_be_written(text: str) -> None:
    shown = printable(text)
    assert not steers(shown)
    shown.encode()
    assert shown == text or not text.isprintable()


def test_bytes_are_shown_as_python_writes_them() -> None:
    assert printable_bytes(b"caf\xe9 \x1b[31m\t\xc3\xa9") == "caf\\xe9 \\x1b[31m\\t\xe9"
    assert printable_bytes(b"a\tb\r\n", keep="\t\n") == "a\tb\\r\n"


@given(st.recursive(ARGUMENTS | st.integers(0, 9), lambda inner: st.dictionaries(st.text("ab"), inner, max_size=3)))
def test_json_gives_every_text_back_and_steers_no_terminal(result: Any) -> None:
    text = json_text({"it": result})
    assert not any(unicodedata.category(each) == "Cc" for each in text)
    assert same(result, json.loads(text), "it")


def same(given: Any, found: dict[str, Any], name: str) -> bool:
    match given:
        case dict():
            return all(same(each, found[name], inner) for inner, each in given.items())
        case str() if is_utf8(given):
            return bool(found[name] == given)
        case str():
            return base64.b64decode(found[f"{name}_base64"]) == to_bytes(given)
        case _:
            return bool(found[name] == given)


@given(st.lists(st.lists(ARGUMENTS, min_size=2, max_size=2), max_size=3))
def test_a_table_has_a_line_for_each_row_and_steers_no_terminal(rows: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        patched.setattr("sys.stdout", out)
        print_table(("a", "b"), rows)
        print_fields([(first, second) for first, second in rows])
        lines = out.buffer.getvalue().decode().split("\n")  # type: ignore[attr-defined]
    assert len(lines) == 1 + 2 * len(rows) + 1
    assert not any(map(steers, lines))


def test_long_rows_stay_lines_in_a_pipe_whatever_is_said_of_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(variable, "1")
        print_table(("name", "number"), [("x" * 3_000, 1), ("y" * 50, 2)])
        assert len(capsys.readouterr().out.splitlines()) == 3


def test_lists_of_names_have_their_bytes_beside_them() -> None:
    shown = msgspec.json.decode(json_text({"stopped": ["caf\udce9", "b"]}))
    assert shown == {"stopped": ["caf\\xe9", "b"], "stopped_base64": ["Y2Fm6Q==", "Yg=="]}


@pytest.mark.parametrize(
    ("word", "shown"),
    [("plain", "plain"), ("my data", "'my data'"), ("it's", "'it'\"'\"'s'"), ("a\n'\udcff", "$'a\\x0a\\'\\xff'")],
)
def test_a_word_of_a_hint_can_be_pasted_into_a_shell(word: str, shown: str) -> None:
    assert quoted(word) == shown


# --- arguments of commands


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("topic", "show", "t\udcff"), "STREAM:TOPIC: 't\\xff' is not UTF-8"),
        (("stream", "create", "/\udcff"), "PATH: "),
        (("stream", "create", "/d", "--description", "caf\udce9"), "--description: 'caf\\xe9' is not UTF-8"),
        (("groups", "delete", "a", "\udcff"), "GROUP...: "),
        (("consume", "t", "--group", "\udcff"), "--group: "),
        (("consume", "t", "--group", ""), "--group is empty"),
        (("consume", "t", "--group", " g"), "--group begins with a blank"),
        (("consume", "t", "--group", "g" * 40_000), "--group is longer"),
        (("status", "--bootstrap", "\udcff:1"), "--bootstrap: "),
        (("node", "add", "--label", "a=\udcff"), "--label: "),
        (("status", "--events", "9" * 40), "--events: it is at most"),
        (("status", "--timeout", "inf"), "--timeout: inf is not a number"),
        (("down", "--timeout", "1e300"), "--timeout: "),
        (("topic", "create", "t", "--partitions", str(2**31)), "--partitions"),
        (("produce", "t", "--partition", str(2**31)), "--partition"),
        (("replay", "f", "--stream", "/s", "--limit", str(2**70)), "--limit"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_by_name(
    headrace: Headrace, arguments: tuple[str, ...], says: str
) -> None:
    assert says in headrace(*arguments).refused(code=2)


@pytest.mark.parametrize(
    "address", ["\u00b2:\u00b2", "host:\u0663", f"{'x' * 70}:1", "a..b:1", "a b:1", "\x1b[1m:9092"]
)
def test_an_address_of_no_host_is_refused(headrace: Headrace, address: str) -> None:
    assert "HOST:PORT" in headrace("status", "--bootstrap", address).refused()


@pytest.mark.parametrize("header", ["no-equals", "=x", "\udcff=x"])
def test_a_header_that_cannot_be_sent_is_refused(headrace: Headrace, header: str) -> None:
    assert headrace("produce", "t", "--value", "x", "--header", header, "-b", "127.0.0.1:1").refused()


def test_an_error_shows_what_it_names_escaped(headrace: Headrace) -> None:
    assert "\\x1b[31m" in headrace("status", "--data", "/\x1b[31m  two").refused()
    assert "m  two" in headrace("status", "--data", "/\x1b[31m  two").refused()
