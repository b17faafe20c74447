"""DescribeAcls, CreateAcls and DeleteAcls: ACLs are shown as, and written to, access expressions that are a plain OR of
users (security.kafka_acls).

Each request becomes one catalog command that carries the expressions on which the decision was based. If an expression
has changed by the time the command is applied, the request is decided again, so no concurrent edit is lost, whichever
node makes it.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeVar

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.runtime import Runtime
from headrace.catalog.access import AccessItem, SetAccess
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import DEFAULT_STREAM, MAX_LENGTH, split, stream_fault
from headrace.kafka.api import Api
from headrace.kafka.common_refusals import NO_ERROR, administrator_refusal, excess_refusal
from headrace.kafka.connection import Connection
from headrace.partitions.access_control import AccessControl
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.lookups import now, refusal, stream_rows, submit_within, topic_rows
from headrace.security.access_rules import AccessRules, Kind, Place
from headrace.security.audit import Change
from headrace.security.kafka_acl_edits import Edit, Grant, granted, revoked, without_form
from headrace.security.kafka_acls import (
    EVERY,
    Acl,
    AclFilter,
    AclOperation,
    Effect,
    Object,
    Pattern,
    Resource,
    invalid,
    object_of,
    shown,
)
from headrace.security.principals import NameRefused, user_of
from headrace.wire.api_keys import ApiKey, Versions

MAX_CREATIONS: Final = 1000
MAX_FILTERS: Final = 100
"""Filters in one DeleteAcls request; each filter is compared with every ACL."""
MAX_SHOWN: Final = 200_000
"""ACLs in one answer."""
TRIES: Final = 20
"""Attempts at one edit while concurrent edits change the same expressions."""
_NO_RIGHTS: Final = {
    "error_code": int(Code.SECURITY_DISABLED),
    "error_message": "security is off in this cluster: everybody may do everything",
}

Fields = Mapping[str, object]


class AclApis:
    """Answers DescribeAcls, CreateAcls and DeleteAcls."""

    def __init__(self, *, runtime: Runtime, catalog: Catalog, access: AccessControl, authorizer: Authorizer) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._access = access
        self._authorizer = authorizer
        self._editing = asyncio.Lock()
        """Serializes the edits of this node, so that they do not conflict with each other."""

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.DESCRIBE_ACLS, Versions(1, 3), self.describe, has_long_answers=True),
            Api(ApiKey.CREATE_ACLS, Versions(1, 3), self.create),
            Api(ApiKey.DELETE_ACLS, Versions(1, 3), self.delete, has_long_answers=True),
        )

    def _refusal(self, session: Connection, api: str) -> Fields | None:
        """The error for the whole request if the client may not use the API; None if it may."""
        if not self._access.rules.on:
            return _NO_RIGHTS
        return administrator_refusal(self._authorizer, session, api=api)

    # --- DescribeAcls

    async def describe(self, request: Any, session: Connection) -> Fields:
        """DescribeAcls."""
        refused = self._refusal(session, "DescribeAcls")
        if refused is not None:
            return refused
        try:
            wanted = _filter(request, session.default_stream)
            (acls,) = await self._runtime.loop.run_in_executor(
                self._runtime.executor, partial(shown, self._access.rules, [wanted], most=MAX_SHOWN)
            )
        except KafkaError as error:
            return refusal(error)
        return {**NO_ERROR, "resources": _grouped(acls)}

    # --- CreateAcls

    async def create(self, request: Any, session: Connection) -> Fields:
        """CreateAcls."""
        asked = request.creations
        refused = self._refusal(session, "CreateAcls") or excess_refusal(
            len(asked), most=MAX_CREATIONS, rule="create at most {} ACLs in one request"
        )
        if refused is not None:
            return {"results": [refused] * len(asked)}
        errors: dict[int, HeadraceError] = {}
        grants: dict[int, Grant] = {}
        for number, each in enumerate(asked):
            try:
                grants[number] = _grant(each, session.default_stream)
            except KafkaError as error:
                errors[number] = error
        try:
            async with self._editing:
                await self._grant(grants, errors, session)
        except HeadraceError as error:
            errors = dict.fromkeys(grants, error) | errors
        return {"results": [refusal(errors[number]) if number in errors else NO_ERROR for number in range(len(asked))]}

    async def _grant(self, grants: dict[int, Grant], errors: dict[int, HeadraceError], session: Connection) -> None:
        for _ in range(TRIES):
            missing, ids = await self._missing({grant.on for grant in grants.values()})
            for number, grant in list(grants.items()):
                if grant.on in missing:
                    errors[number] = missing[grant.on]
                    del grants[number]
            edit = await self._runtime.loop.run_in_executor(
                self._runtime.executor, granted, self._access.rules, dict(grants)
            )
            if await self._write(edit, ids, session, api="CreateAcls"):
                errors |= edit.errors
                return
        raise _busy()

    async def _missing(self, objects: Iterable[Object]) -> tuple[dict[Object, KafkaError], dict[str, bytes]]:
        """The errors of topics and streams that do not exist, and the ids of the topics that do."""
        topics = sorted({each.name for each in objects if each.kind is Kind.TOPIC})
        streams = sorted({each.name for each in objects if each.kind is Kind.STREAM})
        missing: dict[Object, KafkaError] = {}
        ids: dict[str, bytes] = {}
        for name, row in zip(
            topics, await topic_rows(self._catalog, topics, default_stream=DEFAULT_STREAM), strict=True
        ):
            if isinstance(row, KafkaError):
                missing[Object(Kind.TOPIC, name)] = row
            else:
                ids[name] = row.topic_id
        found = await stream_rows(self._catalog, streams)
        for path in streams:
            stream = found.get(path)
            if stream is None:
                stream = KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {path}: create it first")
            if isinstance(stream, KafkaError):
                missing[Object(Kind.STREAM, path)] = stream
        return missing, ids

    async def _write(self, edit: Edit, ids: Mapping[str, bytes], session: Connection, *, api: str) -> bool:
        """Write the edit; return False if an expression is no longer what the edit expects. Raises HeadraceError."""
        if not edit.changes:
            return True
        items = [_item(place, text, ids) for place, text in edit.changes.items()]
        expected = [_item(place, text, ids) for place, text in edit.expected.items()]
        outcomes = await submit_within(self._catalog, SetAccess(items, now(), expected), timeout_ms=0)
        for ((kind, name, permission), text), outcome in zip(edit.changes.items(), outcomes, strict=True):
            if outcome.code is Code.NONE:
                self._authorizer.changed(session, Change.ACCESS, kind, name, f"{permission} is now `{text}`", api=api)
        if all(outcome.code is Code.NONE for outcome in outcomes):
            return True
        await self._catalog.catch_up()
        return False

    # --- DeleteAcls

    async def delete(self, request: Any, session: Connection) -> Fields:
        """DeleteAcls."""
        refused = self._refusal(session, "DeleteAcls") or excess_refusal(
            len(request.filters), most=MAX_FILTERS, rule="delete ACLs by at most {} filters in one request"
        )
        if refused is not None:
            return {"filter_results": [refused] * len(request.filters)}
        try:
            async with self._editing:
                filters = [_filter_or_error(each, session.default_stream) for each in request.filters]
                return {"filter_results": await self._delete(filters, session)}
        except HeadraceError as error:
            return {"filter_results": [refusal(error)] * len(request.filters)}

    async def _delete(self, filters: Sequence[AclFilter | KafkaError], session: Connection) -> list[Fields]:
        for _ in range(TRIES):
            filters_or_errors, matched, (edit, errors) = await self._runtime.loop.run_in_executor(
                self._runtime.executor, _decide, self._access.rules, filters
            )
            _, ids = await self._missing({Object(kind, name) for kind, name, _ in edit.changes})
            gone = {name for kind, name, _ in edit.changes if kind is Kind.TOPIC and name not in ids}
            if gone:  # deleted meanwhile, together with their expressions
                await self._catalog.catch_up()
                continue
            if await self._write(edit, ids, session, api="DeleteAcls"):
                return [
                    refusal(each)
                    if isinstance(each, KafkaError)
                    else {**NO_ERROR, "matching_acls": [_deleted(acl, errors.get(acl)) for acl in acls]}
                    for each, acls in zip(filters_or_errors, matched, strict=True)
                ]
        raise _busy()


def _item(place: Place, text: str | None, ids: Mapping[str, bytes]) -> AccessItem:
    kind, name, permission = place
    if kind is Kind.TOPIC:
        return AccessItem(kind, "", permission, text, ids[name])
    return AccessItem(kind, name, permission, text)


def _busy() -> KafkaError:
    return KafkaError(Code.REQUEST_TIMED_OUT, "these expressions are being changed concurrently; try again")


# --- requests


def _grant(asked: Any, default_stream: str) -> Grant:
    """The grant that a requested ACL describes. Raises KafkaError."""
    effect = _known(Effect, asked.permission_type, "permission type")
    if effect is not Effect.ALLOW:
        raise invalid(
            f"there are no ACLs of {effect.name}: to exclude a user, set an access expression such as `... & "
            "!u:bob`, by `headrace access set`"
        )
    if asked.host != EVERY:
        raise invalid(f"an access expression holds for every host, so the host is {EVERY}, not {asked.host[:100]!r}")
    operation = _known(AclOperation, asked.operation, "operation")
    if operation is AclOperation.ANY:
        raise invalid("ANY is an operation of filters")
    resource = _known(Resource, asked.resource_type, "resource type")
    pattern = _known(Pattern, asked.resource_pattern_type, "pattern type")
    on = object_of(resource, _full_name(resource, pattern, asked.resource_name, default_stream), pattern)
    if fault := _fault(on):
        raise invalid(fault)
    return Grant(on, _user(asked.principal), operation)


def _fault(on: Object) -> str | None:
    if on.kind in (Kind.STREAM, Kind.PREFIX):
        return stream_fault(on.name)
    if on.kind not in (Kind.TOPIC, Kind.CLUSTER) and len(on.name) > MAX_LENGTH:
        return f"a name has at most {MAX_LENGTH} characters"
    return None


def _full_name(resource: Resource, pattern: Pattern, name: str, default_stream: str) -> str:
    """A topic's full name, whichever of its names the client used; other resources' names unchanged. Raises KafkaError
    INVALID_REQUEST."""
    if resource is not Resource.TOPIC or pattern is not Pattern.LITERAL or name == EVERY:
        return name
    try:
        return split(name, default_stream).full
    except KafkaError as error:
        raise invalid(str(error)) from None


def _user(principal: str) -> str:
    if principal == f"User:{EVERY}":
        return EVERY
    try:
        return user_of(principal)
    except NameRefused as error:
        raise invalid(str(error)) from None


def _filter_or_error(asked: Any, default_stream: str) -> AclFilter | KafkaError:
    try:
        return _filter(asked, default_stream)
    except KafkaError as error:
        return error


def _decide(
    rules: AccessRules, filters: Sequence[AclFilter | KafkaError]
) -> tuple[list[AclFilter | KafkaError], list[list[Acl]], tuple[Edit, dict[Acl, KafkaError]]]:
    """[blocking] The filters, or the errors of invalid filters; the ACLs that each filter matches; and the edit that
    removes them.

    Raises KafkaError if too many ACLs match.
    """
    resolved = [(without_form(rules, each) or each) if isinstance(each, AclFilter) else each for each in filters]
    sound = [each for each in resolved if isinstance(each, AclFilter)]
    found = iter(shown(rules, sound, most=MAX_SHOWN))
    matched = [next(found) if isinstance(each, AclFilter) else [] for each in resolved]
    return resolved, matched, revoked(rules, (acl for acls in matched for acl in acls))


def _filter(asked: Any, default_stream: str) -> AclFilter:
    """The filter that the request describes. Raises KafkaError."""
    resource = _known(Resource, asked.resource_type_filter, "resource type")
    pattern = _known(Pattern, asked.pattern_type_filter, "pattern type")
    name = topic_name = asked.resource_name_filter
    if name is not None and name != EVERY and pattern is not Pattern.PREFIXED:
        with contextlib.suppress(KafkaError):  # not a valid topic name: it may name another kind of resource
            topic_name = split(name, default_stream).full
    return AclFilter(
        resource=resource,
        name=name,
        topic_name=topic_name,
        pattern=pattern,
        principal=asked.principal_filter,
        host=asked.host_filter,
        operation=_known(AclOperation, asked.operation, "operation"),
        effect=_known(Effect, asked.permission_type, "permission type"),
    )


E = TypeVar("E", Resource, Pattern, AclOperation, Effect)


def _known(kind: type[E], number: int, what: str) -> E:
    try:
        return kind(number)
    except ValueError:
        raise invalid(f"there is no {what} {number}") from None


# --- answers


def _grouped(acls: Sequence[Acl]) -> list[Fields]:
    return [
        {
            "resource_type": int(resource),
            "resource_name": name,
            "pattern_type": int(pattern),
            "acls": [
                {
                    "principal": acl.principal,
                    "host": EVERY,
                    "operation": int(acl.operation),
                    "permission_type": int(Effect.ALLOW),
                }
                for acl in of_one
            ],
        }
        for (resource, name, pattern), of_one in groupby(acls, key=lambda acl: (acl.resource, acl.name, acl.pattern))
    ]


def _deleted(acl: Acl, error: KafkaError | None) -> Fields:
    return {
        **(NO_ERROR if error is None else refusal(error)),
        "resource_type": int(acl.resource),
        "resource_name": acl.name,
        "pattern_type": int(acl.pattern),
        "principal": acl.principal,
        "host": EVERY,
        "operation": int(acl.operation),
        "permission_type": int(Effect.ALLOW),
    }
