"""The user that a client certificate proves: Kafka's `ssl.principal.mapping.rules`. No I/O.

    rules   = [rule *("," rule)]                    blanks around rules, and empty rules, are ignored
    rule    = "DEFAULT" / "RULE:" pattern "/" replacement "/" ["L" / "U"]

A pattern is a regular expression; in patterns and replacements a slash is written `\\/`. The first rule whose pattern
matches the whole subject, as `distinguished_name` writes it, yields the name: its replacement, with `$1` for the first
group, in lower (L) or upper case (U). DEFAULT takes the subject as it is. If no rule matches, the client is refused: it
never becomes ANONYMOUS. Without any rule all clients are refused.

As in Kafka (SslPrincipalMapper), the replacement replaces *every* match in the subject, not the whole subject: `.*`
matches again at the end, so `RULE:.*/admin/` yields `adminadmin`, and `RULE:^.*$/admin/` yields `admin`. `$9` stands
for itself if there are fewer groups. What Kafka fails to apply later is refused at once: a `$` without a number, and
`$1` without any group. Constructs of Java's regular expressions that Python lacks are refused, with the position;
`\\d`, `\\w`, `\\s` and `(?i)` concern ASCII only, as in Java.

Patterns come from the listener's configuration, subjects from clients. No pattern is applied to a subject of more than
`SUBJECT_LIMIT` characters, so that one whose cost grows with the square of the length stays cheap; one that grows
exponentially (`(a+)+`) has to be avoided by its author.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.base.errors import Code, HeadraceError
from headrace.security.principals import NameRefused, check_user_name

DEFAULT: Final = "DEFAULT"
"""The rule that takes the subject as it is; also the default list of rules."""
SUBJECT_LIMIT: Final = 4 << 10
"""Longest subject, in characters."""
RULES_LIMIT: Final = 64 << 10
"""Longest list of rules, in characters."""

_HALF: Final = re.compile(r"(?:\\.|[^\\/])*+", re.DOTALL)
"""Matches a pattern or a replacement up to the slash that ends it."""
_BETWEEN: Final = re.compile(r"[\s,]*+")
_END_OF_RULE: Final = re.compile(r"\s*+(?=,|\Z)")
_REPLACEMENT_PART: Final = re.compile(r"\\(?P<escaped>.)|\$(?P<digits>[0-9]+)|(?P<plain>[^\\$]++)", re.DOTALL)
_LINE_ENDS: Final = re.compile("[\n\r\x85\u2028\u2029]")
_SHOWN: Final = 120
"""The maximum number of characters of a subject that a message shows."""


class MappingFault(HeadraceError):
    """The rules cannot be parsed. `position` counts characters from 1."""

    code = Code.INVALID_CONFIG

    def __init__(self, position: int, fault: str) -> None:
        super().__init__(f"ssl.principal.mapping.rules: at character {position}: {fault}")
        self.position = position


class PrincipalRefused(HeadraceError):
    """The subject of a certificate yields no user."""


@dataclass(frozen=True, slots=True)
class _Rule:
    text: str
    pattern: re.Pattern[str] | None
    """None: the rule is DEFAULT."""
    replacement: tuple[str | int, ...] = ()
    """Literal texts, and numbers of groups."""
    case: str = ""
    """`L`, `U`, or empty."""

    def name(self, subject: str) -> str | None:
        """The name that the rule yields for a subject; None if it does not match."""
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        name = "".join(self._replaced(self.pattern, subject))
        match self.case:
            case "L":
                return name.lower()
            case "U":
                return name.upper()
            case _:
                return name

    def _replaced(self, pattern: re.Pattern[str], subject: str) -> Iterator[str]:
        """The subject with every match replaced, as Java's `replaceAll` does it.

        `re.sub` differs: after an empty match it looks for a non-empty one at the same place.
        """
        done = at = 0
        while at <= len(subject) and (found := pattern.search(subject, at)):
            yield subject[done : found.start()]
            for part in self.replacement:
                yield part if isinstance(part, str) else found[part] or ""
            done = found.end()
            at = done if done > found.start() else done + 1
        yield subject[done:]


@dataclass(frozen=True, slots=True)
class PrincipalMapping:
    """The rules in order. Created by `parse`."""

    _rules: tuple[_Rule, ...]

    def __str__(self) -> str:
        """The rules, as `parse` reads them."""
        return ", ".join([rule.text for rule in self._rules])

    def user(self, subject: str) -> str:
        """The user that a certificate with this subject proves. Raises PrincipalRefused."""
        if len(subject) > SUBJECT_LIMIT:
            raise PrincipalRefused(
                f"the subject of the certificate has {len(subject)} characters, at most {SUBJECT_LIMIT} are allowed"
            )
        if _LINE_ENDS.search(subject):  # `.` and `$` treat line ends differently in Java and Python
            raise PrincipalRefused(f"the subject {_shown(subject)} of the certificate has more than one line")
        for rule in self._rules:
            name = rule.name(subject)
            if name is not None:
                return _checked(name, subject)
        raise PrincipalRefused(f"no rule of ssl.principal.mapping.rules fits the subject {_shown(subject)}")


def parse(rules: str) -> PrincipalMapping:
    """The mapping from a list of rules. Raises MappingFault, which says where it is wrong."""
    if len(rules) > RULES_LIMIT:
        raise MappingFault(RULES_LIMIT + 1, f"the list of rules is longer than {RULES_LIMIT} characters")
    found = []
    at = _end(_BETWEEN, rules, 0)
    while at < len(rules):
        rule, end = _rule(rules, at)
        if _END_OF_RULE.match(rules, end) is None:
            raise MappingFault(end + 1, f"found {_shown(rules[end:])}, expected a comma or the end after the rule")
        found.append(rule)
        at = _end(_BETWEEN, rules, end)
    return PrincipalMapping(tuple(found))


def _rule(rules: str, start: int) -> tuple[_Rule, int]:
    """The rule at `start`, and where it ends."""
    if rules.startswith(DEFAULT, start):
        end = start + len(DEFAULT)
        return _Rule(DEFAULT, None), end
    if not rules.startswith("RULE:", start):
        raise MappingFault(start + 1, f"found {_shown(rules[start:])}, expected DEFAULT or RULE:PATTERN/REPLACEMENT/")
    pattern_start = start + len("RULE:")
    pattern_end = _half_end(rules, pattern_start, "pattern")
    replacement_end = _half_end(rules, pattern_end + 1, "replacement")
    end = replacement_end + 1
    case = rules[end : end + 1]
    case = case if case in ("L", "U") else ""
    end += len(case)
    pattern = _pattern(rules[pattern_start:pattern_end], pattern_start)
    replacement = _replacement(rules[pattern_end + 1 : replacement_end], pattern_end + 1, pattern.groups)
    return _Rule(rules[start:end], pattern, replacement, case), end


def _half_end(rules: str, start: int, what: str) -> int:
    """The position of the slash that ends the pattern, or the replacement, that begins at `start`."""
    end = _end(_HALF, rules, start)
    if rules[end : end + 1] != "/":
        raise MappingFault(end + 1, f"the end comes before the / that ends the {what} at character {start + 1}")
    return end


def _pattern(text: str, start: int) -> re.Pattern[str]:
    _check_classes(text, start)
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise MappingFault(start + (error.pos or 0) + 1, f"the pattern cannot be used: {error.msg}") from None
    except (OverflowError, RecursionError) as error:
        raise MappingFault(start + 1, f"the pattern cannot be used: {error}") from None


def _check_classes(pattern: str, start: int) -> None:
    """Refuse Java's classes inside classes, and their intersections, which mean something else in Python."""
    is_inside, at = False, 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif is_inside and (pattern[at] == "[" or pattern.startswith("&&", at)):
            raise MappingFault(start + at + 1, f"the pattern cannot be used: {pattern[at]} inside [...] needs a \\")
        elif pattern[at] == "[":
            is_inside = True
            at += 1 if pattern.startswith("^", at + 1) else 0
            at += 1 if pattern.startswith("]", at + 1) else 0  # a bracket in first position is a literal
        elif pattern[at] == "]":
            is_inside = False
        at += 1


def _replacement(text: str, start: int, groups: int) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        part = _REPLACEMENT_PART.match(text, at)
        if part is None:
            raise MappingFault(start + at + 1, "a $ without a number; the character itself is written \\$")
        if part["digits"] is not None:
            parts += _group_parts(part["digits"], start + at, groups)
        else:
            parts.append(part["plain"] or part["escaped"])
        at = part.end()
    return tuple(parts)


def _group_parts(digits: str, at: int, groups: int) -> list[str | int]:
    """What `$` with these digits is replaced by: the longest number that is a group's, and the digits after it."""
    number, length = int(digits[0]), 1
    while length < len(digits) and 10 * number + int(digits[length]) <= groups:
        number, length = 10 * number + int(digits[length]), length + 1
    if number <= groups:
        return [number, digits[length:]]
    if not groups:
        raise MappingFault(at + 1, f"found ${digits}, but the pattern has no group in brackets")
    return ["$" + digits]


def _checked(name: str, subject: str) -> str:
    try:
        check_user_name(name)
    except NameRefused as refused:
        raise PrincipalRefused(
            f"the subject {_shown(subject)} of the certificate does not give a valid user: {refused}"
        ) from None
    return name


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """The end of a match at `at`, for a pattern that matches anywhere."""
    found = pattern.match(text, at)
    assert found is not None
    return found.end()


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
