"""Access expressions (MapR's ACEs): who may do one kind of thing with one object. Pure, and without a clock.

    u:alice | g:ops & !u:bob

An expression admits a user if it is true for that user:

- `u:NAME` is true for the user NAME, `g:NAME` for the members of the group NAME;
- `p` is true for everybody, including clients that have proved nothing. Those are the user ANONYMOUS, so
  `p & !u:ANONYMOUS` is everybody who has proved who they are;
- `!` binds more tightly than `&`, and `&` more tightly than `|`. Note that `!u:bob` alone is true for everybody but
  bob, just as `p & !u:bob` is;
- the empty expression is true for nobody.

MapR's roles (`r:NAME`) are groups here. `access_syntax` has the grammar. An expression is compiled when it is read: any
number of users or groups joined by `|` costs one set look-up.
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
    """An expression that only lists whom it admits, as Kafka's ACLs can express it."""

    users: frozenset[str]
    groups: frozenset[str]
    everybody: bool


@dataclass(frozen=True, slots=True)
class AccessExpression:
    """A compiled expression, created by `parse` or `expression_of`. Two are equal if their canonical texts are
    equal."""

    text: str
    """The canonical text."""
    _tree: Node | None = field(repr=False, compare=False)
    _test: _Test = field(repr=False, compare=False)
    _names: PlainOr = field(repr=False, compare=False)
    """All users and groups that the expression names, including negated ones."""

    def __str__(self) -> str:
        """The canonical text, which `parse` reads as an equal expression."""
        return self.text

    def allows(self, user: str, groups: Set[str]) -> bool:
        """Whether the expression admits `user`, a member of `groups`."""
        return self._test(user, groups)

    def users(self) -> frozenset[str]:
        """The users that the expression names, including those that it excludes."""
        return self._names.users

    def groups(self) -> frozenset[str]:
        """The groups that the expression names, including those that it excludes."""
        return self._names.groups

    def plain_or(self) -> PlainOr | None:
        """Whom the expression admits, if it has no `!` and no `&`; otherwise None."""
        operands = self._tree.operands if isinstance(self._tree, AnyOf) else (self._tree,)
        return self._names if all(operand is None or isinstance(operand, Term) for operand in operands) else None

    def explain(self, user: str, groups: Set[str]) -> str:
        """Whether `user` is admitted, and the part of the expression that decides it: one line for people."""
        if self._tree is None:
            return "refused: the expression is empty, which lets nobody in"
        return _explanation(self._tree, user, groups)


def parse(text: str) -> AccessExpression:
    """The expression with this text. Raises ExpressionFault, which says where it is wrong and what is expected
    there."""
    return _compiled(parse_tree(text))


def expression_of(
    *, users: Iterable[str] = (), groups: Iterable[str] = (), everybody: bool = False
) -> AccessExpression:
    """The expression that admits these and nobody else; the order of the names does not matter.

    Raises ExpressionFault for an invalid name, and for too many names for one expression.
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
        case AllOf(operands):  # "not any fails": makes negated names one look-up too
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
        for other in others:  # noqa: SIM110  # a generator would slow down each request
            if other(user, groups):
                return True
        return False

    return test


def _explanation(tree: Node, user: str, groups: Set[str]) -> str:
    part, part_holds, is_negated = _deciding_part(tree, user, groups)
    verdict = "allowed" if part_holds is not is_negated else "refused"
    by = f"{verdict} by {shown_text(part)}" + (", which is negated by a !" if is_negated else "")
    who = shown_text(Term("u", user))
    match part:
        case Term(kind="p"):
            return f"{by}: p means everybody"
        case Term(kind="u"):
            return f"{by}: " + ("this is the user" if part_holds else f"the user is {who}")
        case Term():
            return f"{by}: {who} is {'a member' if part_holds else 'no member'} of this group"
        case AllOf(operands):
            return f"{by}: all {len(operands)} parts hold for {who}"
        case AnyOf(operands):
            return f"{by}: none of the {len(operands)} parts holds for {who}"
        case Not():
            raise AssertionError("the operand decides in its place")


def _deciding_part(node: Node, user: str, groups: Set[str]) -> tuple[Node, bool, bool]:
    """The smallest part of `node` that decides it; whether that part is true; whether a negation inverts it."""
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
            decides = isinstance(node, AnyOf)  # the first operand with this value decides
            for operand in operands:
                part, holds, is_negated = _deciding_part(operand, user, groups)
                if (holds is not is_negated) is decides:
                    return part, holds, is_negated
            return node, not decides, False
