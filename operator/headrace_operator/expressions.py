"""Access expressions (MapR's ACEs), as a Stream's permissions have them: whether one can be read. Pure.

    expression = term *("|" term)
    term       = factor *("&" factor)
    factor     = "!" factor / "(" expression ")" / "u:" name / "g:" name / "p"      p: everybody

Who may do what is for the listeners to say, once they ask who somebody is.
"""

import re
from typing import Final

_TOKEN: Final = re.compile(r"\s*(?:(?P<who>[ug]:[A-Za-z0-9_.@-]+|p(?![A-Za-z0-9_:.@-]))|(?P<mark>[|&!()]))")
DEEPEST: Final = 50


def fault(expression: str) -> str:
    """What is wrong with it, and where; "": nothing. An empty one lets nobody in."""
    text = expression.rstrip()
    tokens: list[tuple[str, int]] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            return f"{text[at : at + 20]!r} at {at + 1} is no u:NAME, g:NAME, p, |, &, ! or bracket"
        tokens.append((found["who"] or found["mark"], found.end() - len(found["who"] or found["mark"])))
        at = found.end()
    return _Reader(tokens).read() if tokens else ""


class _Reader:
    def __init__(self, tokens: list[tuple[str, int]]) -> None:
        self._tokens = [*tokens, ("", -1)]
        self._next = 0

    def read(self) -> str:
        wrong = self._expression(0)
        token, at = self._tokens[self._next]
        return wrong or (f"{token!r} at {at + 1} comes where | or & is expected" if token else "")

    def _expression(self, depth: int) -> str:
        """`&` binds before `|`, which matters to nobody who only looks whether it can be read."""
        while True:
            if wrong := self._factor(depth):
                return wrong
            if self._tokens[self._next][0] not in ("|", "&"):
                return ""
            self._next += 1

    def _factor(self, depth: int) -> str:
        while self._tokens[self._next][0] == "!":
            self._next += 1
        token, at = self._tokens[self._next]
        self._next += 1
        if token == "(":
            if depth == DEEPEST:
                return f"more than {DEEPEST} brackets stand in each other"
            if wrong := self._expression(depth + 1):
                return wrong
            closing, _ = self._tokens[self._next]
            if closing != ")":
                return f"the bracket at {at + 1} is not closed"
            self._next += 1
            return ""
        if token in ("", ")", "|", "&"):
            self._next -= 1
            place = f"{token!r} at {at + 1} comes" if token else "it ends"
            return f"{place} where u:NAME, g:NAME, p, ! or a bracket is expected"
        return ""
