"""DescribeClientQuotas and AlterClientQuotas (KIP-546): limits of users, client ids and addresses.

Each entry of AlterClientQuotas is refused as a whole if one of its limits is invalid, and changes only the limits that
it names, by one command.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.catalog.quotas import AlterQuotas, Quota
from headrace.catalog.rows import QuotaRow
from headrace.kafka.api import Api
from headrace.kafka.common_refusals import NO_ERROR, administrator_refusal, excess_refusal
from headrace.kafka.connection import Connection
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.lookups import refusal, submit_groups
from headrace.security.audit import Change
from headrace.security.client_quotas import Key, address_of, entity_text, names_of
from headrace.wire.api_keys import ApiKey, Versions

MAX_ENTRIES: Final = 1000
MAX_OPS: Final = 20
"""Changes in one entry."""
MAX_NAME: Final = 249
"""Characters in a user name or client id."""
_EXACT, _DEFAULT, _ANY = 0, 1, 2
_TYPES: Final = ("user", "client-id", "ip")
_ONLY: Final = "only of user, client-id and ip"
_OF_CLIENTS: Final = (Key.PRODUCE, Key.CONSUME, Key.REQUESTS, Key.MUTATIONS)
_BYTES: Final = (Key.PRODUCE, Key.CONSUME)


class ClientQuotaApis:
    """Answers DescribeClientQuotas and AlterClientQuotas."""

    def __init__(self, *, catalog: Catalog, authorizer: Authorizer) -> None:
        self._catalog = catalog
        self._authorizer = authorizer

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, Versions(0, 1), self.describe, has_long_answers=True),
            Api(ApiKey.ALTER_CLIENT_QUOTAS, Versions(0, 1), self.alter),
        )

    async def describe(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DescribeClientQuotas."""
        if refused := administrator_refusal(self._authorizer, session, api="DescribeClientQuotas"):
            return {**refused, "entries": None}
        try:
            components = _components(request.components)
            rows = await self._catalog.query(lambda reader: reader.users.quotas())
        except HeadraceError as error:
            return {**refusal(error), "entries": None}
        return {**NO_ERROR, "entries": _entries(rows, components, strict=request.strict)}

    async def alter(self, request: Any, session: Connection) -> Mapping[str, object]:
        """AlterClientQuotas."""
        if refused := (
            administrator_refusal(self._authorizer, session, api="AlterClientQuotas")
            or excess_refusal(len(request.entries), most=MAX_ENTRIES, rule="alter at most {} entities in one request")
        ):
            return {"entries": [_answered(each, refused) for each in request.entries]}
        results: list[Mapping[str, object]] = []
        limits: dict[int, Sequence[Quota]] = {}
        for place, each in enumerate(request.entries):
            try:
                if items := _quotas(each):
                    limits[place] = items
                results.append(NO_ERROR)
            except KafkaError as error:
                results.append(refusal(error))
        if not request.validate_only:
            failures = await submit_groups(
                self._catalog, limits, AlterQuotas, lambda _, items, _outcome: self._audit(session, items)
            )
            for place, failure in failures.items():
                results[place] = refusal(failure)
        return {"entries": [_answered(each, result) for each, result in zip(request.entries, results, strict=True)]}

    def _audit(self, session: Connection, items: Iterable[Quota]) -> None:
        for item in items:
            what = f"{item.key} is now {'without limit' if item.value is None else f'{item.value:g}'}"
            self._authorizer.changed(session, Change.QUOTAS, "quota", item.entity, what, api="AlterClientQuotas")


def _answered(entry: Any, result: Mapping[str, object]) -> Mapping[str, object]:
    entity = [{"entity_type": of.entity_type, "entity_name": of.entity_name} for of in entry.entity]
    return {**result, "entity": entity}


# --- DescribeClientQuotas


def _components(asked: Sequence[Any]) -> dict[str, tuple[int, str | None]]:
    """By entity type, the match type and the name that the filter requires. Raises KafkaError."""
    found: dict[str, tuple[int, str | None]] = {}
    for each in asked:
        kind = each.entity_type
        if kind not in _TYPES:
            raise KafkaError(Code.UNSUPPORTED_VERSION, f"there are no quotas of {kind[:100]!r}, {_ONLY}")
        if kind in found:
            raise _invalid(f"{kind} is given more than once")
        if each.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise _invalid(f"there is no match type {each.match_type}")
        if (each.match is None) is (each.match_type == _EXACT):
            raise _invalid(f"{kind}: an exact match has a name, the others have none")
        found[kind] = (each.match_type, each.match)
    if "ip" in found and len(found) > 1:
        raise _invalid("an ip has quotas of its own, so a filter cannot name it together with a user or client id")
    return found


def _entries(
    rows: Iterable[QuotaRow], components: Mapping[str, tuple[int, str | None]], *, strict: bool
) -> list[Mapping[str, object]]:
    values: dict[str, list[Mapping[str, object]]] = {}
    for row in rows:
        values.setdefault(row.entity, []).append({"key": row.key, "value": row.value})
    return [
        {"entity": [{"entity_type": kind, "entity_name": name} for kind, name in names.items()], "values": limits}
        for entity, limits in values.items()
        if _matches(names := names_of(entity), components, strict=strict)
    ]


def _matches(
    names: Mapping[str, str | None], components: Mapping[str, tuple[int, str | None]], *, strict: bool
) -> bool:
    if strict and len(names) != len(components):
        return False
    return all(
        kind in names and (match == _ANY or names[kind] == name)  # the default's name is None
        for kind, (match, name) in components.items()
    )


# --- AlterClientQuotas


def _quotas(entry: Any) -> list[Quota]:
    """The limits that an entry sets or removes. Raises KafkaError."""
    names: dict[str, str | None] = {}
    for of in entry.entity:
        kind, name = of.entity_type, of.entity_name
        if kind not in _TYPES:
            raise _invalid(f"there are no quotas of {kind[:100]!r}, {_ONLY}")
        if kind in names:
            raise _invalid(f"{kind} is given more than once")
        names[kind] = _name(kind, name)
    try:
        entity = entity_text(names)
    except ValueError as error:
        raise _invalid(str(error)) from None
    if len(entry.ops) > MAX_OPS:
        raise _invalid(f"more than {MAX_OPS} changes of one entity")
    keys = (Key.CONNECTIONS,) if "ip" in names else _OF_CLIENTS
    return [Quota(entity, _key(op.key, keys), None if op.remove else _value(op.key, op.value)) for op in entry.ops]


def _name(kind: str, name: str | None) -> str | None:
    if name is None:
        return None
    if len(name) > MAX_NAME:
        raise _invalid(f"a {kind} has at most {MAX_NAME} characters")
    if kind != "ip":
        return name
    try:
        return address_of(name)
    except ValueError:
        raise _invalid(f"{name[:100]!r} is not an IP address") from None


def _key(key: str, keys: Sequence[Key]) -> str:
    if key not in keys:
        raise _invalid(f"there is no quota {key[:100]!r} here; there are: {', '.join(keys)}")
    return key


def _value(key: str, value: float) -> float:
    least_is_zero = key == Key.CONNECTIONS
    if not math.isfinite(value) or value < 0 or (value == 0 and not least_is_zero):
        raise _invalid(f"{key} is {value:g}; it is {'0 or more' if least_is_zero else 'more than 0'}")
    if key in (*_BYTES, Key.CONNECTIONS) and not value.is_integer():
        raise _invalid(f"{key} is {value:g}; it is a whole number")
    if value > (2**31 - 1 if key == Key.CONNECTIONS else 2**63 - 1):
        raise _invalid(f"{key} is {value:g}, which is too large")
    return value


def _invalid(message: str) -> KafkaError:
    return KafkaError(Code.INVALID_REQUEST, message)
