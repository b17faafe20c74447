"""How an access expression is written: text to a tree, and a tree to its canonical text. No I/O.

    expression  = [alternative *("|" alternative)]          an empty expression admits nobody
    alternative = factor *("&" factor)
    factor      = *"!" ("u:" name / "g:" name / "p" / "(" alternative *("|" alternative) ")")
    name        = 1*(letter / digit / "." / "_" / "-" / "@" / "=" / "/" / "+") / quoted
    quoted      = DQUOTE *(any character but DQUOTE and backslash / backslash DQUOTE / backslash backslash) DQUOTE

Letters and digits are those of ASCII. Every other name needs quotes, as in `u:"CN=a,OU=b"` or `u:"Jörg"`; `principals`
says which names are valid. Blanks (space, tab, line ends) may surround terms, operators and brackets, but not occur in
an unquoted name. A comma is deliberately not allowed there: `!u:alice,bob` would exclude neither.

The canonical text has a blank on either side of `|` and `&`, unless that makes it longer than `TEXT_LIMIT`. It has no
redundant bracket, no double negation, and no operand twice in one `|` or `&`; quotes only where they are needed. It
keeps the order in which the expression was written.

Invariant: the canonical text of a tree, without its blanks, is no longer than any text that parses to that tree, so it
can always be read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, Union

from headrace.base.errors import Code, HeadraceError
from headrace.security.principals import NAME_LIMIT, name_fault

TEXT_LIMIT: Final = 64 << 10
"""The maximum number of bytes of an expression in UTF-8; the same as MapR's limit."""
DEEPEST: Final = 50
"""Deepest nesting of brackets. This bounds every recursion over a tree."""

_BLANK_CHARACTERS: Final = " \t\r\n"
_BLANKS: Final = r"[ \t\r\n]*+"
_BARE: Final = r"[A-Za-z0-9._@=/+-]"
_AFTER: Final = r"(?=[ \t\r\n|&!()]|\Z)"
_TOKEN: Final = re.compile(
    rf"{_BLANKS}(?:u:(?P<u>{_BARE}{{1,{NAME_LIMIT}}}+){_AFTER}|(?P<mark>[|&!()])|g:(?P<g>{_BARE}{{1,{NAME_LIMIT}}}+){_AFTER}"
    rf'|(?P<quoted>[ug]:"(?:[^"\\]|\\["\\])*+"){_AFTER}|(?P<p>p){_AFTER}|(?P<end>\Z))'
)
_BARE_NAME: Final = re.compile(rf"{_BARE}+")
_WORD: Final = re.compile(r"[^ \t\r\n|&!()]+")
_QUOTED_CONTENT: Final = re.compile(r'(?:[^"\\]|\\["\\])*+')
_ESCAPED: Final = re.compile(r"\\(.)")
_SHOWN: Final = 24
"""The maximum number of characters of the offending text that a message shows."""
_PART_SHOWN: Final = 100
"""The maximum number of characters of a part of an expression that an explanation shows."""
_TERM_EXPECTED: Final = "u:NAME, g:NAME, p, ! or ("


class ExpressionFault(HeadraceError):
    """The text is not a valid access expression. `position` counts characters from 1."""

    code = Code.INVALID_REQUEST

    def __init__(self, position: int, found: str, expected: str) -> None:
        super().__init__(f"at character {position}: found {found}, expected {expected}")
        self.position = position
        self.found = found
        self.expected = expected


class Term(NamedTuple):
    """A user, a group, or everybody."""

    kind: str
    """One of `u`, `g` and `p`."""
    name: str


@dataclass(frozen=True, slots=True)
class Not:
    """True if its operand, which is not a Not, is false."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class AllOf:
    """True if every operand is: two or more, none of them an AllOf."""

    operands: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True if any operand is: two or more, none of them an AnyOf."""

    operands: "tuple[Node, ...]"


Node: TypeAlias = Union[Term, Not, AllOf, AnyOf]  # noqa: UP007  # classes above name it in quotes
EVERYBODY: Final = Term("p", "")


def parse_tree(text: str) -> Node | None:
    """The tree of an expression; None: it admits nobody. Raises ExpressionFault. Works without recursion, so no text
    exhausts the stack."""
    _check_length(text)
    if not text.strip(_BLANK_CHARACTERS):
        return None
    # Factors since the last `|`, alternatives since the last open bracket, and what is pending outside that bracket.
    outer: list[tuple[list[Node], list[Node], bool, int]] = []  # the int: the bracket's position
    alternatives: list[Node] = []
    factors: list[Node] = []
    is_negated, wants_term = False, True
    at = 0
    while True:
        token = _TOKEN.match(text, at)
        if token is None:
            raise _unreadable(text, at, _expected(wants_term, outer))
        at = token.end()
        kind = token.lastgroup or ""
        mark = token["mark"] if kind == "mark" else ""
        if wants_term:
            if mark == "!":
                is_negated = not is_negated
            elif mark == "(":
                if len(outer) == DEEPEST:
                    raise ExpressionFault(at, "one more bracket", f"at most {DEEPEST} brackets inside each other")
                outer.append((alternatives, factors, is_negated, at))
                alternatives, factors, is_negated = [], [], False
            elif mark or kind == "end":
                raise _misplaced(token, _TERM_EXPECTED)
            else:
                term = _quoted_term(text, token.start(kind), at) if kind == "quoted" else Term(kind, _name(token, kind))
                factors.append(Not(term) if is_negated else term)
                is_negated, wants_term = False, False
        elif mark == "|":
            alternatives.append(factors[0] if len(factors) == 1 else all_of(factors))
            factors, wants_term = [], True
        elif mark == "&":
            wants_term = True
        elif mark == ")" and outer:
            inner = _closed(alternatives, factors)
            alternatives, factors, is_negated, _ = outer.pop()
            factors.append(negated(inner) if is_negated else inner)
            is_negated = False
        elif kind == "end" and not outer:
            return _closed(alternatives, factors)
        else:
            raise _misplaced(token, _expected(wants_term, outer))


def any_of(operands: Sequence[Node]) -> Node:
    """The node that is true if any operand is; there is at least one."""
    flat = _flat(operands, AnyOf)
    return flat[0] if len(flat) == 1 else AnyOf(flat)


def all_of(operands: Sequence[Node]) -> Node:
    """The node that is true if all operands are; there is at least one."""
    flat = _flat(operands, AllOf)
    return flat[0] if len(flat) == 1 else AllOf(flat)


def negated(node: Node) -> Node:
    """The negation of `node`."""
    return node.operand if isinstance(node, Not) else Not(node)


def canonical_text(node: Node | None) -> str:
    """The canonical text, "" for nobody. Raises ExpressionFault if it is longer than an expression may be."""
    if node is None:
        return ""
    text = _text(node, " ")
    if len(text) > TEXT_LIMIT or len(text.encode()) > TEXT_LIMIT:
        text = _text(node, "")
        _check_length(text)
    return text


def shown_text(node: Node) -> str:
    """The text of a part of an expression, shortened for a message of one line."""
    text = _text(node, " ")
    text = text if len(text) <= _PART_SHOWN else text[:_PART_SHOWN] + " ..."
    return text if text.isprintable() else repr(text)


def bad_name(name: str, fault: str, *, position: int) -> ExpressionFault:
    """The fault for an invalid name; `fault` as `name_fault` returns it."""
    return ExpressionFault(position, f"the name {_shown(name)}, which {fault}", "a name that somebody can have")


def _closed(alternatives: list[Node], factors: list[Node]) -> Node:
    alternatives.append(all_of(factors))
    return any_of(alternatives)


def _flat(operands: Sequence[Node], kind: type[AnyOf] | type[AllOf]) -> tuple[Node, ...]:
    """The operands in order, each once; operands of the same kind are replaced by their own operands."""
    flat: list[Node] = []
    for operand in operands:
        if isinstance(operand, kind):
            flat.extend(operand.operands)
        else:
            flat.append(operand)
    return tuple(dict.fromkeys(flat))


def _text(node: Node, blank: str) -> str:
    match node:
        case Term(kind="p"):
            return "p"
        case Term(kind, name):
            return f"{kind}:{_name_text(name)}"
        case Not(operand):
            return "!" + _bracketed(operand, blank, (AnyOf, AllOf))
        case AllOf(operands):
            return f"{blank}&{blank}".join([_bracketed(operand, blank, (AnyOf,)) for operand in operands])
        case AnyOf(operands):
            return f"{blank}|{blank}".join([_text(operand, blank) for operand in operands])


def _bracketed(node: Node, blank: str, looser: tuple[type, ...]) -> str:
    text = _text(node, blank)
    return f"({text})" if isinstance(node, looser) else text


def _name_text(name: str) -> str:
    if _BARE_NAME.fullmatch(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _name(token: re.Match[str], kind: str) -> str:
    return "" if kind == "p" else token[kind]


def _quoted_term(text: str, start: int, end: int) -> Term:
    name = _ESCAPED.sub(r"\1", text[start + 3 : end - 1])
    if fault := name_fault(name):
        raise bad_name(name, fault, position=start + 3)
    return Term(text[start], name)


def _check_length(text: str) -> None:
    size = len(text)
    if size <= TEXT_LIMIT:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            place = error.start
            raise ExpressionFault(place + 1, ascii(text[place]), "characters that UTF-8 can have") from None
    if size > TEXT_LIMIT:
        fitting = text[:TEXT_LIMIT].encode(errors="replace")[:TEXT_LIMIT].decode(errors="ignore")
        raise ExpressionFault(len(fitting) + 1, "more text", f"the end, after at most {TEXT_LIMIT} bytes of UTF-8")


def _expected(wants_term: bool, outer: Sequence[tuple[object, object, bool, int]]) -> str:
    if wants_term:
        return _TERM_EXPECTED
    return f"|, &, or ) for the bracket at character {outer[-1][3]}" if outer else "|, & or the end"


def _misplaced(token: re.Match[str], expected: str) -> ExpressionFault:
    """The fault for a token at a position where it is not allowed."""
    found = token[0].lstrip()
    return ExpressionFault(token.end() - len(found) + 1, _shown(found) if found else "the end", expected)


def _unreadable(text: str, at: int, expected: str) -> ExpressionFault:
    """The fault for a text without a valid token at `at`."""
    while text[at] in _BLANK_CHARACTERS:
        at += 1
    word = (_WORD.match(text, at) or [""])[0]
    if word.startswith("r:"):
        return ExpressionFault(at + 1, _shown(word), "g:NAME, since roles are groups here")
    if not word.startswith(("u:", "g:")):
        return ExpressionFault(at + 1, _shown(word), expected)
    name = word[2:]
    if name.startswith('"'):
        return _bad_quotes(text, at + 2)
    if not name:
        return ExpressionFault(
            at + 3, _shown(text[at + 2]) if at + 2 < len(text) else "the end", f"a name right after {word}"
        )
    if name == "*":
        return ExpressionFault(at + 3, "'*'", "a name; everybody is written p")
    bare = (_BARE_NAME.match(name) or [""])[0]
    if bare == name:
        return ExpressionFault(at + 3, f"a name of {len(name)} characters", f"at most {NAME_LIMIT}")
    return ExpressionFault(
        at + 3 + len(bare),
        _shown(name[len(bare)]),
        f'a letter of ASCII, a digit, or one of . _ - @ = / + in a name without quotes; write {word[:2]}"..."',
    )


def _bad_quotes(text: str, quote: int) -> ExpressionFault:
    """The fault for an invalid quoted name that begins at `quote`."""
    content = _QUOTED_CONTENT.match(text, quote + 1)
    assert content is not None  # it may be empty
    end = content.end()
    if end == len(text):
        return ExpressionFault(end + 1, "the end", f'" for the quote at character {quote + 1}')
    if text[end] == "\\":
        return ExpressionFault(end + 1, _shown(text[end : end + 2]), 'nothing but " or \\ after a \\')
    return ExpressionFault(end + 2, _shown(text[end + 1]), "a blank, |, &, a bracket or the end after a quoted name")


def _shown(found: str) -> str:
    return repr(found if len(found) <= _SHOWN else found[:_SHOWN] + "...")
