"""The syntax of expressions: what is valid, where a fault is, and the canonical text."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.security.access_syntax import (
    DEEPEST,
    TEXT_LIMIT,
    AllOf,
    AnyOf,
    ExpressionFault,
    Not,
    Term,
    canonical_text,
    parse_tree,
)

ALICE, BOB, OPS = Term("u", "alice"), Term("u", "bob"), Term("g", "ops")


def fault_of(text: str) -> ExpressionFault:
    with pytest.raises(ExpressionFault) as caught:
        parse_tree(text)
    return caught.value


def test_not_binds_closer_than_and_and_and_closer_than_or() -> None:
    assert parse_tree("u:alice | g:ops & !u:bob") == AnyOf((ALICE, AllOf((OPS, Not(BOB)))))
    assert parse_tree("(u:alice | g:ops) & !u:bob") == AllOf((AnyOf((ALICE, OPS)), Not(BOB)))
    assert parse_tree("!(u:alice & g:ops) | u:bob") == AnyOf((Not(AllOf((ALICE, OPS))), BOB))
    assert parse_tree("p") == Term("p", "")


@pytest.mark.parametrize("text", ["", " ", "\t\r\n "])
def test_the_empty_expression_is_nobody(text: str) -> None:
    assert parse_tree(text) is None
    assert canonical_text(None) == ""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("u:a.b_c-d@example.com/x+y=z", "a.b_c-d@example.com/x+y=z"),
        ('u:"CN=a,OU=b"', "CN=a,OU=b"),
        (r'u:"CN=Tkac\\, Adam"', r"CN=Tkac\, Adam"),
        (r'u:"say \"hi\""', 'say "hi"'),
        ('u:"alice"', "alice"),
        ('u:"Jörg Müller"', "Jörg Müller"),
        ('u:"a | !(g:b) & p"', "a | !(g:b) & p"),
        ("u:ANONYMOUS", "ANONYMOUS"),
        ("u:p", "p"),
    ],
)
def test_every_name_can_be_written(text: str, name: str) -> None:
    tree = parse_tree(text)
    assert tree == Term("u", name)
    assert parse_tree(canonical_text(tree)) == tree


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("u:alice|g:ops&!u:bob", "u:alice | g:ops & !u:bob"),
        ("  ( ( u:alice )\n|\t(g:ops) ) ", "u:alice | g:ops"),
        ("!!u:alice", "u:alice"),
        ("!!!(u:alice)", "!u:alice"),
        ("!(!(u:alice | p))", "u:alice | p"),
        ("!(!u:alice)", "u:alice"),
        ("(u:a | u:b) | (u:c | (u:d))", "u:a | u:b | u:c | u:d"),
        ("u:a & (u:b & u:c) & (u:d | u:e)", "u:a & u:b & u:c & (u:d | u:e)"),
        ("u:a | (u:b & u:c) | u:a", "u:a | u:b & u:c"),
        ("u:a & u:a | (u:a)", "u:a"),
        ('u:"alice" | g:"a b"', 'u:alice | g:"a b"'),
    ],
)
def test_the_canonical_text_has_nothing_that_changes_nothing(text: str, canonical: str) -> None:
    assert canonical_text(parse_tree(text)) == canonical


@pytest.mark.parametrize(
    ("text", "position", "found", "expected"),
    [
        ("u:alice |", 10, "the end", "u:NAME, g:NAME, p, ! or ("),
        ("u:alice || u:bob", 10, "'|'", "u:NAME, g:NAME, p, ! or ("),
        ("u:alice  u:bob", 10, "'u:bob'", "|, & or the end"),
        ("u:a & not u:b", 7, "'not'", "u:NAME, g:NAME, p, ! or ("),
        ("u:a and u:b", 5, "'and'", "|, & or the end"),
        ("(u:a", 5, "the end", "|, &, or ) for the bracket at character 1"),
        ("p & (u:a u:b)", 10, "'u:b'", "|, &, or ) for the bracket at character 5"),
        ("u:a)", 4, "')'", "|, & or the end"),
        ("()", 2, "')'", "u:NAME, g:NAME, p, ! or ("),
        ("!", 2, "the end", "u:NAME, g:NAME, p, ! or ("),
        ("!!", 3, "the end", "u:NAME, g:NAME, p, ! or ("),
        ("(", 2, "the end", "u:NAME, g:NAME, p, ! or ("),
        ("r:admins", 1, "'r:admins'", "g:NAME, since roles are groups here"),
        ("User:alice", 1, "'User:alice'", "u:NAME, g:NAME, p, ! or ("),
        ("public", 1, "'public'", "u:NAME, g:NAME, p, ! or ("),
        ("U:a", 1, "'U:a'", "u:NAME, g:NAME, p, ! or ("),
        ("\xa0u:a", 1, r"'\xa0u:a'", "u:NAME, g:NAME, p, ! or ("),
        ("u:", 3, "the end", "a name right after u:"),
        ("u: alice", 3, "' '", "a name right after u:"),
        ("u:*", 3, "'*'", "a name; everybody is written p"),
        ("u:" + "a" * 250, 3, "a name of 250 characters", "at most 249"),
        ('u:"abc', 7, "the end", '" for the quote at character 3'),
        ('u:"abc\\"', 9, "the end", '" for the quote at character 3'),
        (r'u:"a\x"', 5, r"'\\x'", 'nothing but " or \\ after a \\'),
        ('u:"a"b', 6, "'b'", "a blank, |, &, a bracket or the end after a quoted name"),
        ('u:""', 3, "the name '', which is empty", "a name that somebody can have"),
    ],
)
def test_a_fault_says_where_it_is_and_what_is_expected(text: str, position: int, found: str, expected: str) -> None:
    fault = fault_of(text)
    assert (fault.position, fault.found, fault.expected) == (position, found, expected)
    assert str(fault) == f"at character {position}: found {found}, expected {expected}"


@pytest.mark.parametrize(("text", "position"), [("!u:alice,bob", 9), ("u:jörg", 4), ("u:a:b", 4), ('u:a"b"', 4)])
def test_a_name_with_other_characters_needs_quotes(text: str, position: int) -> None:
    fault = fault_of(text)
    assert fault.position == position
    assert fault.expected.endswith('write u:"..."')


@pytest.mark.parametrize("name", ["*", " a", "a ", "a\nb", "a\0", "\u202ea", "a" * 250])
def test_a_name_that_nobody_can_have_is_a_fault(name: str) -> None:
    fault = fault_of(f'p | g:"{name}"')
    assert fault.position == 7
    assert "\n" not in str(fault)


def test_an_expression_of_64_kib_can_be_read_and_one_byte_more_can_not() -> None:
    text = "u:" + "|u:".join(f"{number:05}" for number in range(8192))
    text += "x" * (TEXT_LIMIT - len(text))
    assert len(text) == TEXT_LIMIT
    canonical = canonical_text(parse_tree(text))
    assert canonical == text  # too long with blanks
    assert canonical_text(parse_tree(canonical)) == canonical
    assert fault_of(text + " ").position == TEXT_LIMIT + 1
    assert fault_of('u:"' + "ö" * (TEXT_LIMIT // 2)).position == TEXT_LIMIT // 2 + 2
    assert fault_of("x" * 10_000_000).position == TEXT_LIMIT + 1


def test_brackets_stand_inside_each_other_as_deep_as_is_said() -> None:
    assert parse_tree("(" * DEEPEST + "p" + ")" * DEEPEST) == Term("p", "")
    fault = fault_of("(" * TEXT_LIMIT)
    assert fault.position == DEEPEST + 1
    assert fault.found == "one more bracket"


def test_any_number_of_negations_is_one_or_none() -> None:
    assert parse_tree("!" * (TEXT_LIMIT - 2) + "p") == Term("p", "")
    assert parse_tree("!" * (TEXT_LIMIT - 1) + "p") == Not(Term("p", ""))


def test_what_utf_8_cannot_have_is_a_fault() -> None:
    assert fault_of('u:"a\ud800"').position == 5


class Grammar:
    """The grammar, rule by rule: each method returns the end of what it reads, or raises IndexError or ValueError."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens

    def has(self) -> bool:
        try:
            return not self.tokens or self.expression(0) == len(self.tokens)
        except (IndexError, ValueError):
            return False

    def expression(self, at: int) -> int:
        at = self.alternative(at)
        return self.expression(at + 1) if self.tokens[at : at + 1] == ("|",) else at

    def alternative(self, at: int) -> int:
        at = self.factor(at)
        return self.alternative(at + 1) if self.tokens[at : at + 1] == ("&",) else at

    def factor(self, at: int) -> int:
        match self.tokens[at]:
            case "!":
                return self.factor(at + 1)
            case "(":
                return self.tokens.index(")", end := self.expression(at + 1), end + 1) + 1
            case "p":
                return at + 1
            case _:
                raise ValueError


def test_what_can_be_read_is_what_the_grammar_has() -> None:
    read = 0
    for length in range(7):
        for tokens in itertools.product("p|&!()", repeat=length):
            try:
                parse_tree(" ".join(tokens))
            except ExpressionFault:
                assert not Grammar(tokens).has(), tokens
            else:
                assert Grammar(tokens).has(), tokens
                read += 1
    assert read > 50


@given(st.text(alphabet='ugrp:|&!()"\\ ,*ab\n\0ö\u202e\ud800', max_size=40))
@example('u:"\\')
@example("u:a\\")
@example('g:"')
def test_any_text_is_an_expression_or_a_fault_of_one_line(text: str) -> None:
    try:
        tree = parse_tree(text)
    except ExpressionFault as fault:
        position, message = fault.position, str(fault)
    else:
        position, message = 1, ""
        canonical = canonical_text(tree)
        assert parse_tree(canonical) == tree
        assert len(canonical.replace(" ", "")) <= len(text)
    assert 1 <= position <= len(text) + 1
    assert message.isprintable()
