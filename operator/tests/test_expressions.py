import pytest

from headrace_operator.expressions import DEEPEST, fault


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "  ",
        "p",
        "u:alice",
        "u:alice|g:ops",
        "u:alice | g:ops & !u:bob",
        "!(u:a|u:b)&g:x",
        "!!u:a",
        "((p))",
        "u:a.b@c-d_e",
    ],
)
def test_what_can_be_read(expression: str) -> None:
    assert fault(expression) == ""


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("alice", "'alice' at 1 is no u:NAME"),
        ("u:alice |", "it ends where u:NAME"),
        ("u:alice u:bob", "'u:bob' at 9 comes where | or &"),
        ("| u:a", "'|' at 1 comes where u:NAME"),
        ("u:a & | u:b", "'|' at 7 comes where"),
        ("(u:a", "the bracket at 1 is not closed"),
        ("u:a)", "')' at 4 comes where | or &"),
        ("()", "')' at 2 comes where"),
        ("u:", "'u:' at 1 is no u:NAME"),
        ("x:a", "'x:a' at 1 is no"),
        ("public", "'public' at 1 is no"),
        ("!", "it ends where"),
        ("u:a  %", "'%' at 6 is no"),
        ("(" * (DEEPEST + 1) + "p" + ")" * (DEEPEST + 1), "brackets stand in each other"),
    ],
)
def test_what_cannot_says_where_it_ends_to_be_one(expression: str, says: str) -> None:
    assert says in fault(expression)
