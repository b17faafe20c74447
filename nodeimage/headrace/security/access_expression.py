"""Access expressions (MapR's ACEs): who may do one kind of thing with one object. Pure, and without a clock.

    u:alice | g:ops & !u:bob

A user is let in if the expression holds of it:

- `u:NAME` holds of the user NAME, `g:NAME` of the members of the group NAME;
- `p` holds of everybody, clients that have proved nothing among them. Those are the user ANONYMOUS, so that
  `p & !u:ANONYMOUS` is everybody who has proved who it is;
- `!` binds closer than `&`, and `&` closer than `|`. Mind that `!u:bob` alone holds of everybody else, as
  `p & !u:bob` does;
- the empty expression holds of nobody.

MapR's roles (`r:NAME`) are groups here. `access_syntax` has the grammar. An expression is compiled when it is read: a
row of users or groups between `|` is one look-up in a set, however many they are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.security.access_syntax import (
    EVERYBODY,
    AllOf,
    AnyOf,
    Node,
    Not,
    Term,
    any_of,
    bad_name,
    canonical_text,
    negated,
    parse_tree,
    shown_text,
)
from headrace.security.principals import name_fault

_Test: TypeAlias = Callable[[str, Set[str]], bool]


@dataclass(frozen=True, slots=True)
class PlainOr:
    """An expression that only names whom it lets in, as Kafka's ACLs can say it."""

    users: frozenset[str]
    groups: frozenset[str]
    everybody: bool


@dataclass(frozen=True, slots=True)
class AccessExpression:
    """A compiled expression. Two are equal if their canonical texts are. Made by `parse` and `expression_of`."""

    text: str
    """The canonical text."""
    _tree: Node | None = field(repr=False, compare=False)
    _test: _Test = field(repr=False, compare=False)
    _names: PlainOr = field(repr=False, compare=False)
    """All that it names, also behind a negation."""

    def __str__(self) -> str:
        """The canonical text, which `parse` reads as an equal expression."""
        return self.text

    def allows(self, user: str, groups: Set[str]) -> bool:
        """Whether `user`, a member of `groups`, is let in."""
        return self._test(user, groups)

    def users(self) -> frozenset[str]:
        """The users that it names, also those that it shuts out."""
        return self._names.users

    def groups(self) -> frozenset[str]:
        """The groups that it names, also those that it shuts out."""
        return self._names.groups

    def plain_or(self) -> PlainOr | None:
        """Whom it lets in, if it has no `!` and no `&`; else None."""
        operands = self._tree.operands if isinstance(self._tree, AnyOf) else (self._tree,)
        return self._names if all(operand is None or isinstance(operand, Term) for operand in operands) else None

    def explain(self, user: str, groups: Set[str]) -> str:
        """Whether `user` is let in, and the part of the expression that decides it: one line for a person."""
        if self._tree is None:
            return "refused: the expression is empty, which lets nobody in"
        return _explanation(self._tree, user, groups)


def parse(text: str) -> AccessExpression:
    """The expression that `text` writes. Raises ExpressionFault, which says where and what is expected."""
    return _compiled(parse_tree(text))


def expression_of(
    *, users: Iterable[str] = (), groups: Iterable[str] = (), everybody: bool = False
) -> AccessExpression:
    """The expression that lets in these and nobody else; the order of the names does not matter.

    Raises ExpressionFault for a name that nobody can have, and where they are too many for one expression.
    """
    terms = [EVERYBODY] if everybody else []
    terms += [Term("u", name) for name in sorted(set(users))]
    terms += [Term("g", name) for name in sorted(set(groups))]
    for term in terms:
        if term is not EVERYBODY and (fault := name_fault(term.name)):
            raise bad_name(term.name, fault, position=1)
    return _compiled(any_of(terms) if terms else None)


def _compiled(tree: Node | None) -> AccessExpression:
    terms = list(_terms(tree))
    names = PlainOr(
        users=frozenset([name for kind, name in terms if kind == "u"]),
        groups=frozenset([name for kind, name in terms if kind == "g"]),
        everybody=EVERYBODY in terms,
    )
    return AccessExpression(canonical_text(tree), tree, _test_of(tree), names)


def _terms(tree: Node | None) -> Iterator[Term]:
    waiting = [] if tree is None else [tree]
    while waiting:
        match waiting.pop():
            case Term() as term:
                yield term
            case Not(operand):
                waiting.append(operand)
            case AllOf(operands) | AnyOf(operands):
                waiting.extend(operands)


def _test_of(tree: Node | None) -> _Test:
    match tree:
        case None:
            return lambda user, groups: False
        case Term():
            return _test_of_any([tree])
        case AnyOf(operands):
            return _test_of_any(operands)
        case Not(operand):
            fails = _test_of(operand)
            return lambda user, groups: not fails(user, groups)
        case AllOf(operands):  # all hold unless one does not, so that names behind `!` are one look-up too
            any_fails = _test_of_any([negated(operand) for operand in operands])
            return lambda user, groups: not any_fails(user, groups)


def _test_of_any(operands: Sequence[Node]) -> _Test:
    if EVERYBODY in operands:
        return lambda user, groups: True
    names = [operand for operand in operands if isinstance(operand, Term)]
    users = frozenset([name for kind, name in names if kind == "u"])
    named = frozenset([name for kind, name in names if kind == "g"])
    others = tuple([_test_of(operand) for operand in operands if not isinstance(operand, Term)])
    if not others and not named:
        return lambda user, groups: user in users
    if not others:
        return lambda user, groups: user in users or not named.isdisjoint(groups)

    def test(user: str, groups: Set[str]) -> bool:
        if user in users or not named.isdisjoint(groups):
            return True
        for other in others:  # noqa: SIM110  # no generator on the way of each request
            if other(user, groups):
                return True
        return False

    return test


def _explanation(tree: Node, user: str, groups: Set[str]) -> str:
    part, part_holds, is_negated = _deciding_part(tree, user, groups)
    verdict = "allowed" if part_holds is not is_negated else "refused"
    by = f"{verdict} by {shown_text(part)}" + (", which stands behind a !" if is_negated else "")
    who = shown_text(Term("u", user))
    match part:
        case Term(kind="p"):
            return f"{by}: it is everybody"
        case Term(kind="u"):
            return f"{by}: " + ("this is the user" if part_holds else f"the user is {who}")
        case Term():
            return f"{by}: {who} is {'a member' if part_holds else 'no member'} of this group"
        case AllOf(operands):
            return f"{by}: all {len(operands)} parts hold of {who}"
        case AnyOf(operands):
            return f"{by}: none of the {len(operands)} parts holds of {who}"
        case Not():
            raise AssertionError("the operand decides in its place")


def _deciding_part(node: Node, user: str, groups: Set[str]) -> tuple[Node, bool, bool]:
    """The smallest part of `node` that decides it; whether that part holds; whether a negation turns that round."""
    match node:
        case Term("u", name):
            return node, user == name, False
        case Term("g", name):
            return node, name in groups, False
        case Term():
            return node, True, False
        case Not(operand):
            part, holds, is_negated = _deciding_part(operand, user, groups)
            return part, holds, not is_negated
        case AllOf(operands) | AnyOf(operands):
            decides = isinstance(node, AnyOf)  # the first operand that is so settles the matter
            for operand in operands:
                part, holds, is_negated = _deciding_part(operand, user, groups)
                if (holds is not is_negated) is decides:
                    return part, holds, is_negated
            return node, not decides, False
