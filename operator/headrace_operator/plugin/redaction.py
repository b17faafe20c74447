"""Removes secrets from what is given to others: Kubernetes objects, and texts such as logs. Pure.

In doubt a value is removed. The rules:

1. All values of environment variables are removed; their sources (`valueFrom`) stay.
2. Values under a name that sounds like a secret are removed; names of Secrets, and other references, stay.
3. All remaining texts lose what follows such a name, credentials in URLs and headers, private keys, and web tokens.
4. Copies of an object in its own annotations are removed as a whole.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

GONE: Final = "REDACTED"
_NAMES: Final = (
    r"pass(?:word|wd|phrase)|(?<![a-z])pass(?![a-z])|pwd|secret|token|credential|private[-_.]?key|jaas|api[-_.]?key|"
    r"access[-_.]?key|account[-_.]?key|encryption[-_.]?key|authorization|(?<![a-z])auth(?![a-z])|cookie|"
    r"session[-_.]?id|signature|sas[-_.]?url|"
    r"(?-i:(?<=[a-z])(?:Pass|Auth)(?![a-z]))"  # a word of its own in camel case, as in dbPass
)
SECRET_NAME: Final = re.compile(rf"(?i){_NAMES}")
REFERENCES: Final = frozenset(
    {
        *("secretName", "credentialsSecret", "secretRef", "secretKeyRef", "imagePullSecrets", "serviceAccountToken"),
        *("passwordSecretRef", "passwordFrom", "userRef", "tokenExpirationSeconds", "automountServiceAccountToken"),
    }
)
"""Names that sound like a secret, but hold the name or the place of one."""
OF_REFERENCE: Final = frozenset(
    {
        *("name", "key", "secretName", "namespace", "optional", "path", "mode", "defaultMode", "items", "kind"),
        *("apiVersion", "audience", "expirationSeconds", "enabled", "type"),
    }
)
"""Fields of a reference to a secret."""
COPIES: Final = frozenset({"kubectl.kubernetes.io/last-applied-configuration", "managedFields"})
ENVIRONMENT: Final = frozenset({"env", "environment", "driverEnvVars", "envVars"})

_PLACE: Final = r"(?![-_.]?(?:file|path|location|dir|name|ref|provider|class|type|mechanism|expir\w*|bytes|count)\b)"
_ASSIGNED: Final = re.compile(
    rf"""(?ix)
    ( (?:{_NAMES}) s? {_PLACE} [\w.-]{{0,60}} ["'\\]* (?: \s* (?: => | = | : ) \s* | \s+ (?=["']) ) )
    ( \\?" (?:[^"\\]|\\.)* \\?" | ' [^']* ' | (?:bearer|basic|digest)\s+\S+ | \[ [^\]]* \]? | [^\s,;}}\]"']+ )
    """
)
_OPTION: Final = re.compile(
    rf"(?i)((?<![\w.-])--?[\w.-]{{0,60}}(?:{_NAMES})s?{_PLACE}[\w.-]{{0,60}}\s+)(\"[^\"]*\"|'[^']*'|[^\s-][^\s]*)"
)
_PATTERNS: Final = (
    (re.compile(r"-----BEGIN[^-\n]*PRIVATE KEY-----.*?(?:-----END[^-\n]*-----|\Z)", re.DOTALL), GONE),
    (re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9+/=._~-]{6,}"), rf"\1\2{GONE}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"), GONE),
    (re.compile(r"://[^/\s@]{1,2000}@"), f"://{GONE}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), GONE),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}\b"), GONE),
)
_OPTION_NAME: Final = re.compile(rf"(?i)--?[\w.-]*(?:{_NAMES})s?{_PLACE}[\w.-]*")


def redacted_text(text: str) -> str:
    """Return a text without what looks like a secret."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    text = _ASSIGNED.sub(lambda found: f"{found[1]}{GONE}", text)
    return _OPTION.sub(lambda found: f"{found[1]}{GONE}", text)


def redacted(found: Any) -> Any:
    """Return a Kubernetes object, or a part of one, without secrets. Raises ValueError for a Secret."""
    if isinstance(found, Mapping) and found.get("kind") == "Secret" and "metadata" in found:
        raise ValueError("a Secret must not be in a bundle")
    return _value(found)


def _value(found: Any) -> Any:
    match found:
        case Mapping():
            return {name: _entry(str(name), value) for name, value in found.items() if name not in COPIES}
        case list() | tuple():
            return _elements(found)
        case str():
            return _text(found)
        case _:
            return found


def _text(text: str) -> str:
    """Redact a text, which may itself be a JSON document."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.dumps(_value(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return redacted_text(text)


def _entry(name: str, value: Any) -> Any:
    if name in ENVIRONMENT:
        return _environment(value)
    if name in REFERENCES or isinstance(value, bool) or value is None or not SECRET_NAME.search(name):
        return _value(value)
    return _secret(value)


def _secret(value: Any) -> Any:
    """Redact the value under a name that sounds like a secret; references stay."""
    match value:
        case Mapping():
            return {
                name: _value(each) if name in OF_REFERENCE and not isinstance(each, Mapping) else _secret(each)
                for name, each in value.items()
            }
        case list() | tuple():
            return [_secret(each) for each in value]
        case bool() | None:
            return value
        case _:
            return GONE


def _environment(value: Any) -> Any:
    match value:
        case list() | tuple():
            return [
                {name: GONE if name == "value" else _value(each) for name, each in entry.items()}
                if isinstance(entry, Mapping)
                else GONE
                for entry in value
            ]
        case Mapping():
            return dict.fromkeys(value, GONE)
        case None:
            return None
        case _:
            return GONE


def _elements(found: Any) -> list[Any]:
    """Redact the elements of a list; in a program's arguments also the value after an option named like a secret."""
    shown: list[Any] = []
    hides = False
    for each in found:
        if hides and isinstance(each, str) and not each.startswith("-"):
            shown.append(GONE)
            hides = False
            continue
        hides = isinstance(each, str) and _OPTION_NAME.fullmatch(each) is not None
        shown.append(_pair(each) if isinstance(each, Mapping) else _value(each))
    return shown


def _pair(entry: Mapping[str, Any]) -> Any:
    """Redact `{name: …, value: …}`, the form in which many kinds hold settings."""
    if isinstance(entry.get("name"), str) and "value" in entry and SECRET_NAME.search(entry["name"]):
        return {**_value(entry), "value": _secret(entry["value"])}
    return _value(entry)
