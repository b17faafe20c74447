"""Whom an expression admits, compared with a model that knows nothing of sets; and how decisions are explained."""

from collections.abc import Set
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.security.access_expression import AccessExpression, PlainOr, expression_of, parse
from headrace.security.access_syntax import DEEPEST, ExpressionFault

NAMES = ("alice", "bob", "ops", "p", "u:alice", "CN=a,OU=b", 'with "quotes" and \\', "Jörg", "ANONYMOUS")
NONE: frozenset[str] = frozenset()

Model = tuple[Any, ...]
"""("u", name), ("g", name), ("p",), ("!", model), ("&", model, model), ("|", model, model)."""
BINDING = {"|": 0, "&": 1, "!": 2, "u": 3, "g": 3, "p": 3}


def models() -> st.SearchStrategy[Model]:
    terms = st.one_of(st.just(("p",)), st.tuples(st.sampled_from("ug"), st.sampled_from(NAMES)))
    return st.recursive(
        terms,
        lambda inner: st.one_of(
            st.tuples(st.just("!"), inner),
            st.tuples(st.sampled_from("&|"), inner, inner),
            st.tuples(st.just("|"), terms, inner),
        ),
        max_leaves=12,
    )


def holds(model: Model, user: str, groups: Set[str]) -> bool:
    match model:
        case ("p",):
            return True
        case ("u", name):
            return bool(name == user)
        case ("g", name):
            return any(name == group for group in groups)
        case ("!", operand):
            return not holds(operand, user, groups)
        case ("&", left, right):
            return holds(left, user, groups) and holds(right, user, groups)
        case ("|", left, right):
            return holds(left, user, groups) or holds(right, user, groups)
    raise AssertionError(model)


@st.composite
def written(draw: st.DrawFn, model: Model) -> str:
    """A text for the model: with required and redundant brackets, any blanks, any quotes."""
    blank = st.sampled_from(["", "", " ", "\n\t "])

    def text(node: Model, binding: int) -> str:
        match node:
            case ("p",):
                found = "p"
            case ("!", operand):
                found = "!" + draw(blank) + text(operand, BINDING["!"])
            case (("&" | "|") as mark, left, right):
                found = draw(blank).join([text(left, BINDING[mark]), mark, text(right, BINDING[mark])])
            case (kind, name):
                is_bare = name in ("alice", "bob", "ops", "p", "ANONYMOUS") and draw(st.booleans())
                escaped = name.replace("\\", "\\\\").replace('"', '\\"')
                found = f"{kind}:{name}" if is_bare else f'{kind}:"{escaped}"'
        if BINDING[node[0]] < binding or draw(st.integers(0, 9)) == 0:
            found = f"({draw(blank)}{found}{draw(blank)})"
        return draw(blank) + found + draw(blank)

    return text(model, 0)


@st.composite
def written_models(draw: st.DrawFn) -> tuple[Model, str]:
    model = draw(models())
    return model, draw(written(model))


USERS = st.sampled_from([*NAMES, "nobody"])
GROUPS = st.frozensets(st.sampled_from(NAMES), max_size=3)


@given(written_models(), USERS, GROUPS)
def test_an_expression_lets_in_whom_the_model_lets_in(
    case: tuple[Model, str], user: str, groups: frozenset[str]
) -> None:
    model, text = case
    expression = parse(text)
    is_allowed = holds(model, user, groups)
    assert expression.allows(user, groups) is is_allowed
    again = parse(str(expression))
    assert (again, hash(again), str(again)) == (expression, hash(expression), str(expression))
    assert again.allows(user, groups) is is_allowed
    explanation = expression.explain(user, groups)
    assert explanation.startswith("allowed by " if is_allowed else "refused by ")
    assert explanation.isprintable()


@given(written_models())
def test_what_is_a_plain_or_lets_in_exactly_those(case: tuple[Model, str]) -> None:
    expression = parse(case[1])
    plain = expression.plain_or()
    if plain is None:
        assert set("!&") & set(str(expression))
    else:
        rebuilt = expression_of(users=plain.users, groups=plain.groups, everybody=plain.everybody)
        assert rebuilt.plain_or() == plain
        for user in (*NAMES, "nobody"):
            assert rebuilt.allows(user, NONE) is expression.allows(user, NONE)
            assert rebuilt.allows("nobody", {user}) is expression.allows("nobody", {user})


@given(st.frozensets(st.sampled_from(NAMES)), st.frozensets(st.sampled_from(NAMES)), st.booleans())
def test_an_expression_made_of_names_is_a_plain_or_of_them(
    users: frozenset[str], groups: frozenset[str], everybody: bool
) -> None:
    expression = expression_of(users=users, groups=groups, everybody=everybody)
    assert expression.plain_or() == PlainOr(users, groups, everybody)
    assert parse(str(expression)) == expression
    assert expression_of(users=sorted(users, reverse=True), groups=sorted(groups), everybody=everybody) == expression


@pytest.mark.parametrize(
    ("text", "user", "groups", "is_allowed"),
    [
        ("", "alice", {"ops"}, False),
        ("p", "ANONYMOUS", set(), True),
        ("p & !u:ANONYMOUS", "ANONYMOUS", set(), False),
        ("p & !u:ANONYMOUS", "alice", set(), True),
        ("!u:bob", "ANONYMOUS", set(), True),
        ("u:alice | g:ops & !u:bob", "alice", set(), True),
        ("u:alice | g:ops & !u:bob", "bob", {"ops"}, False),
        ("u:alice | g:ops & !u:bob", "carol", {"ops", "x"}, True),
        ("u:alice", "Alice", set(), False),
        ("u:ops", "x", {"ops"}, False),
        ("g:alice", "alice", set(), False),
        ("g:a & g:b", "x", {"a"}, False),
        ("g:a & g:b", "x", {"a", "b"}, True),
        ("!(g:a | g:b)", "x", {"b"}, False),
        ("u:cfkane | (g:admin & !g:cl3) | (g:qa & (g:app2 | g:app3))", "x", {"qa", "app3"}, True),
        ("u:cfkane | (g:admin & !g:cl3) | (g:qa & (g:app2 | g:app3))", "x", {"admin", "cl3"}, False),
    ],
)
def test_who_is_let_in(text: str, user: str, groups: set[str], is_allowed: bool) -> None:
    assert parse(text).allows(user, groups) is is_allowed


def test_all_that_is_named_is_told_also_behind_a_negation() -> None:
    expression = parse("u:alice | g:ops & !(u:bob | g:interns & p)")
    assert expression.users() == {"alice", "bob"}
    assert expression.groups() == {"ops", "interns"}


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("", PlainOr(NONE, NONE, False)),
        ("p", PlainOr(NONE, NONE, True)),
        ("u:a", PlainOr(frozenset({"a"}), NONE, False)),
        ("u:a | (g:b | p)", PlainOr(frozenset({"a"}), frozenset({"b"}), True)),
        ("!!u:a", PlainOr(frozenset({"a"}), NONE, False)),
        ("u:a & u:a", PlainOr(frozenset({"a"}), NONE, False)),
        ("!u:a", None),
        ("u:a & g:b", None),
        ("u:a | g:b & g:c", None),
    ],
)
def test_a_plain_or_has_no_negation_and_no_and(text: str, plain: PlainOr | None) -> None:
    assert parse(text).plain_or() == plain


def test_names_that_nobody_can_have_make_no_expression() -> None:
    with pytest.raises(ExpressionFault, match="the name '\\*', which means everybody in Kafka's ACLs"):
        expression_of(users=["alice", "*"])
    with pytest.raises(ExpressionFault, match="more text"):
        expression_of(groups=[f"group-{number}" for number in range(10_000)])


@pytest.mark.parametrize(
    ("text", "user", "explanation"),
    [
        ("", "alice", "refused: the expression is empty, which lets nobody in"),
        ("u:alice | g:ops", "alice", "allowed by u:alice: this is the user"),
        ("u:alice | g:ops", "olga", "allowed by g:ops: u:olga is a member of this group"),
        ("u:alice | g:x", "olga", "refused by u:alice | g:x: none of the 2 parts holds for u:olga"),
        ("u:alice", "olga", "refused by u:alice: the user is u:olga"),
        ("g:x & u:olga", "olga", "refused by g:x: u:olga is no member of this group"),
        ("g:ops & !u:bob", "bob", "refused by u:bob, which is negated by a !: this is the user"),
        ("g:ops & !u:bob", "olga", "allowed by g:ops & !u:bob: all 2 parts hold for u:olga"),
        ("!(u:a | u:b)", "olga", "allowed by u:a | u:b, which is negated by a !: none of the 2 parts holds for u:olga"),
        ("u:a | p", "olga", "allowed by p: p means everybody"),
        ("!p", "olga", "refused by p, which is negated by a !: p means everybody"),
    ],
)
def test_an_explanation_names_the_part_that_decides(text: str, user: str, explanation: str) -> None:
    assert parse(text).explain(user, frozenset({"ops"})) == explanation


def test_an_explanation_of_many_names_is_short_and_of_one_line() -> None:
    expression = expression_of(users=[f"{number:05}" for number in range(5000)])
    assert len(expression.explain("two\nlines", NONE)) < 250
    assert "\n" not in expression.explain("two\nlines", NONE)


class CountedName(str):
    """A name that counts its comparisons."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_row_of_users_is_one_look_up_also_behind_negations() -> None:
    row = parse("|".join(f"u:{number:05}" for number in range(7000)))
    shut_out = parse("&".join(f"!u:{number:05}" for number in range(7000)))
    CountedName.comparisons = 0
    assert row.allows(CountedName("06999"), NONE)
    assert not row.allows(CountedName("x"), NONE)
    assert not shut_out.allows(CountedName("00100"), NONE)
    assert shut_out.allows(CountedName("x"), NONE)
    assert CountedName.comparisons < 20


def test_the_deepest_expression_is_evaluated_explained_and_written() -> None:
    text = "!(u:a & !(g:ops | " * (DEEPEST // 2) + "p" + "))" * (DEEPEST // 2)
    expression = parse(text)
    assert parse(str(expression)) == expression
    assert expression.allows("x", NONE)
    assert expression.explain("x", NONE) == "allowed by u:a, which is negated by a !: the user is u:x"


def test_an_expression_cannot_be_changed() -> None:
    expression = parse("u:a")
    with pytest.raises(AttributeError):
        expression.text = "p"  # type: ignore[misc]
    assert {expression: 1}[parse(" (u:a) ")] == 1
    assert repr(expression) == "AccessExpression(text='u:a')"
    assert isinstance(expression, AccessExpression)
