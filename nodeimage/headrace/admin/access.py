"""Headrace's own admin calls on access expressions: set, list, show with what is inherited, explain.

Any node answers them. An expression is parsed before its command is written, so that the log holds no unreadable one. A
principal with `admin` on an object sets and sees its expressions, and those of objects below it that inherit `admin`
from it. The answer to a change names the nodes that have not applied it within a few seconds; the change is made
anyway."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import structlog

from headrace.admin.access_changes import AccessChanges, read_expression
from headrace.base.errors import Code, KafkaError
from headrace.catalog.access import AccessItem, AccessOutcome, SetAccess
from headrace.catalog.catalog import Catalog
from headrace.catalog.names import DEFAULT_STREAM
from headrace.catalog.rows import TopicRow
from headrace.partitions.access_control import AccessControl
from headrace.partitions.admin_params import Method, Methods, NoParams, Params
from headrace.partitions.admin_rights import ADMIN, Anybody, On, Target, Targets, read_object, written
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.lookups import COMMAND_ITEMS, now, submit_within, topic_rows
from headrace.security.access_expression import AccessExpression, parse
from headrace.security.access_rules import Kind, Permission, Place, Rule, UnknownPlace, place_of
from headrace.security.access_syntax import ExpressionFault
from headrace.security.audit import Change
from headrace.security.principals import ANONYMOUS, NOBODY, Mechanism, Principal, check_name

log = structlog.get_logger()


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One expression. None: the object's own expression is removed; "": it allows nobody."""

    object: str
    permission: Permission
    expression: str | None = None


class NewAccess(Params, frozen=True):
    items: Annotated[list[Item], msgspec.Meta(min_length=1, max_length=COMMAND_ITEMS)]
    force: bool = False
    """Whether to make the change even if the caller no longer administers the cluster after it."""


class OneObject(Params, frozen=True):
    object: str


class Question(Params, frozen=True):
    user: str
    object: str
    permission: Permission | None = None
    """None means all permissions."""
    groups: Annotated[list[str], msgspec.Meta(max_length=1_000)] = msgspec.field(default_factory=list)
    """Groups that a token names, in addition to those of the catalog."""


TAKEN: Final = (NewAccess, OneObject, Question)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class AccessCalls:
    """The admin calls on access expressions."""

    def __init__(
        self, *, catalog: Catalog, access: AccessControl, authorizer: Authorizer, changes: AccessChanges
    ) -> None:
        self._catalog = catalog
        self._access = access
        self._authorizer = authorizer
        self._changes = changes

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        of_items = On(ADMIN, "each `object` of the items", _objects)
        of_object = On(ADMIN, "the `object`", lambda params, _: (read_object(params.object),))
        listed = Anybody("lists the expressions of objects on which the caller has `admin`")
        return {
            "access.set": Method(NewAccess, self._set, of_items, of_caller=True),
            "access.list": Method(NoParams, self._list, listed, of_caller=True),
            "access.show": Method(OneObject, self._show, of_object),
            "access.explain": Method(Question, self._explain, of_object, of_caller=True),
        }

    async def _set(self, params: NewAccess, caller: Caller) -> dict[str, Any]:
        """Set expressions, and return them. Raises UNKNOWN_TOPIC_OR_PARTITION for a missing stream or topic;
        nothing is changed then, unless the object was deleted during the call."""
        targets = [read_object(each.object) for each in params.items]
        read = [
            None if each.expression is None else read_expression(each.expression, of=f"{each.permission} on {of}")
            for each, of in zip(params.items, map(_written, targets), strict=True)
        ]
        topics = await self._topics(targets)
        await self._check_streams(targets)
        places: dict[Place, str | None] = {
            (target.kind, target.name, each.permission): None if expression is None else expression.text
            for target, each, expression in zip(targets, params.items, read, strict=True)
        }
        self._changes.check_stays_admin(caller, force=params.force, rules=self._access.rules.changed(places))
        items = [_item(place, text, topics) for place, text in places.items()]
        outcomes: Sequence[AccessOutcome] = await submit_within(
            self._catalog, SetAccess(items=items, now=now()), timeout_ms=0
        )
        gone: list[KafkaError] = []
        for (kind, name, permission), outcome in zip(places, outcomes, strict=True):
            if outcome.code is not Code.NONE:
                why = f"{written(kind, name)} is gone: its {permission} was not set"
                gone.append(KafkaError(outcome.code, why))
                continue
            log.info("access expression set", object=written(kind, name), permission=str(permission))
            text = places[(kind, name, permission)]
            what = f"{permission} is {text!r}" if text is not None else f"{permission} is inherited"
            self._changes.note(caller, Change.ACCESS, name, what, api="access.set", kind=kind)
        if gone:
            done = len(outcomes) - len(gone)
            rest = f"; {done} of {len(outcomes)} expressions were" if len(outcomes) > 1 else ""
            raise KafkaError(gone[0].code, f"{gone[0]}{rest}")
        warnings = await self._changes.warnings(each for each in read if each is not None)
        return {
            "items": [_as_json(Rule(*place, text or ""), text) for place, text in places.items()],
            **await self._changes.outcome_fields([*warnings, *_anonymous_warnings(read)]),
        }

    async def _list(self, _params: NoParams, caller: Caller) -> list[dict[str, Any]]:
        """All expressions that the caller may set, in order of object."""
        rows = await self._catalog.query(lambda reader: reader.access.all())
        found: list[Rule] = []
        unknown: list[dict[str, Any]] = []
        for row in rows:
            place = place_of(row.kind, row.object, row.permission)
            if isinstance(place, UnknownPlace):
                if self._authorizer.sees(caller, ADMIN, Kind.CLUSTER, ""):
                    unknown.append(_unknown_as_json(place, row.expression))
            elif self._authorizer.sees(caller, ADMIN, *place[:2]):
                found.append(Rule(*place, row.expression))
        return [_as_json(rule, rule.expression) for rule in sorted(found)] + unknown

    async def _show(self, params: OneObject) -> dict[str, Any]:
        """For each permission, the expression that decides on an object, and the object that it belongs to."""
        target = read_object(params.object)
        shown = []
        for permission in Permission:
            rule = self._access.rules.deciding(permission, target.kind, target.name)
            shown.append(
                {
                    "permission": str(permission),
                    "expression": None if rule is None else rule.expression,
                    "from": None if rule is None else written(rule.kind, rule.name),
                    "inherited": rule is not None and (rule.kind, rule.name) != (target.kind, target.name),
                }
            )
        return {"object": _written(target), "security": self._access.rules.on, "permissions": shown}

    async def _explain(self, params: Question, caller: Caller) -> list[dict[str, Any]]:
        """Whether a user has a permission on an object, by which expression, and why. Groups that the expression does
        not name are shown only to administrators of the cluster."""
        target = read_object(params.object)
        principal = _principal(params.user, params.groups)
        groups = self._access.groups_of(principal)
        is_admin = self._changes.is_admin(caller)
        wanted = tuple(Permission) if params.permission is None else (params.permission,)
        shown = []
        for permission in wanted:
            decision = self._access.rules.explain(principal.user, groups, permission, target.kind, target.name)
            rule = decision.rule
            told = groups if is_admin else groups & (principal.groups | _groups_in(rule))
            shown.append(
                {
                    "user": principal.user,
                    "groups": sorted(told),
                    "object": _written(target),
                    "permission": str(permission),
                    "allowed": decision.allowed,
                    "from": None if rule is None else written(rule.kind, rule.name),
                    "by": None if rule is None else str(rule.permission),
                    "expression": None if rule is None else rule.expression,
                    "reason": decision.reason,
                }
            )
        return shown

    async def _topics(self, targets: Sequence[Target]) -> Mapping[str, TopicRow]:
        """The topics among the targets, by full name. Raises KafkaError if one does not exist."""
        names = [each.name for each in targets if each.kind is Kind.TOPIC]
        found: dict[str, TopicRow] = {}
        for row in await topic_rows(self._catalog, names, default_stream=DEFAULT_STREAM) if names else ():
            if isinstance(row, KafkaError):
                raise row
            found[row.full_name] = row
        return found

    async def _check_streams(self, targets: Sequence[Target]) -> None:
        paths = {each.name for each in targets if each.kind is Kind.STREAM}
        rows = await self._catalog.query(lambda reader: {path: reader.streams.at(path) for path in paths})
        missing = sorted(path for path, row in rows.items() if row is None)
        if missing:
            raise KafkaError(
                Code.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no stream {missing[0]}; write {missing[0]}/* for the streams below a path",
            )


def _objects(params: NewAccess, _caller: Caller) -> Targets:
    return tuple(dict.fromkeys(read_object(each.object) for each in params.items))


def _groups_in(rule: Rule | None) -> frozenset[str]:
    """The groups that an expression names; none if it cannot be parsed."""
    try:
        return frozenset() if rule is None else frozenset(parse(rule.expression).groups())
    except ExpressionFault:
        return frozenset()


def _written(target: Target) -> str:
    return written(target.kind, target.name)


def _item(place: Place, text: str | None, topics: Mapping[str, TopicRow]) -> AccessItem:
    kind, name, permission = place
    if kind is Kind.TOPIC:
        return AccessItem(str(kind), "", str(permission), text, topics[name].topic_id)
    return AccessItem(str(kind), name, str(permission), text)


def _as_json(rule: Rule, text: str | None) -> dict[str, Any]:
    return {
        "object": written(rule.kind, rule.name),
        "kind": str(rule.kind),
        "permission": str(rule.permission),
        "expression": text,
    }


def _unknown_as_json(place: UnknownPlace, text: str) -> dict[str, Any]:
    """A stored expression of another version, as it is shown."""
    of = f"{place.kind}:{place.name}"
    return {"object": of, "kind": place.kind, "permission": place.permission, "expression": text}


def _anonymous_warnings(read: Sequence[AccessExpression | None]) -> list[str]:
    """Warnings about expressions with `!` or `&` that allow unauthenticated clients, perhaps unintentionally. A plain
    OR that does so names `p`, and gets none."""
    return [
        f"{each.text[:100]} lets in clients that have proved nothing, too: `p & !u:{ANONYMOUS} & ...` does not"
        for each in read
        if each is not None and each.allows(ANONYMOUS, frozenset()) and not each.plain_or()
    ]


def _principal(user: str, groups: Sequence[str]) -> Principal:
    if user == ANONYMOUS:
        return NOBODY
    for each in groups:
        check_name(each, kind="group")
    return Principal(user, Mechanism.PLAIN, frozenset(groups))
