"""ReplicationLinks: creates, checks, changes and deletes links of the target's cluster as declared.

The link is the cluster's own, and copies with or without an operator. It is created and changed by admin calls at the
target; the present link is read first, and only differences are sent. The values of credentials, which cannot be read,
are sent when the Secret's version differs from the one that was sent last, for each direction.

1. Deleting the resource deletes the link, unless `reclaimPolicy` is Retain; what was copied stays in either case.
2. Calls for which a cluster contacts the source take as long as the source does. Only a few run at a time, so that
   silent sources do not delay other links.
3. No part of a Secret appears in a status, an event or a log.
4. A link of the source that copies from here is noted in the status before it is created, and until it is known to be
   gone: so an interrupted reconcile leaves no such link behind, and no source is asked about a link that never existed.
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from time import time
from typing import Any, Final

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace_operator.engine import Body
from headrace_operator.kinds.kind import (
    AGAIN_EACH_S,
    AGAIN_S,
    FIGURES_AGAIN_S,
    FIGURES_EACH_S,
    FINAL,
    Figures,
    Kind,
    Outcome,
)
from headrace_operator.kinds.link_asked import Asked, LinkResolver, Unheard, addresses
from headrace_operator.kinds.link_credentials import without_secrets
from headrace_operator.kinds.link_status import (
    ASIDE,
    JUST_CHANGED,
    TYPES,
    Homes,
    Shown,
    figures,
    judge,
    kept,
    moved,
    turns,
)
from headrace_operator.kinds.references import Unresolved, check_oldest, resolve
from headrace_operator.specs import LinkSpec, milliseconds
from headrace_operator.status import Condition

__all__ = ["Links"]

LOOK_S: Final = 30.0
SOON_S: Final = 5.0
"""Seconds between two looks while it is not known whether the source answers, or still answers."""
TROUBLED_S: Final = 10.0
"""Seconds between two looks while the source is unreachable or the link lags: people wait for the end of that."""
LOOK_EACH_S: Final = 0.1
"""Seconds between two looks, for each link: with hundreds of links each is looked at less often."""
PATIENCE_S: Final = 45.0
AT_ONCE: Final = 2
"""The maximum number of concurrent calls for which a source is contacted."""
IN_TURN_S: Final = 3.0
WITHOUT_WORDS: Final = frozenset({"link", "state", "lagRecords", "lagBytes", "lagSeconds", "groups", "partitions"})
"""Status fields without free text, which might quote a secret."""
MAX_COUNTED: Final = 1000
"""The maximum number of topics of a stream whose homes are counted."""
VERSIONS: Final = ("credentialsVersion", "reverseCredentialsVersion")
"""Status fields with the versions of the credentials that were sent last."""
ROOM: Final = 100
"""Deleted resources about which something may be remembered."""
SILENT: Final = frozenset({Code.BROKER_NOT_AVAILABLE, Code.REQUEST_TIMED_OUT})
NO_METHOD: Final = "there is no method"
"""Part of the error of a cluster whose version has no links."""


class _InTurn(Exception):
    """Another step or link comes first. `noted`: status fields to be written before the reconcile continues."""

    def __init__(self, why: str, **noted: Any) -> None:
        super().__init__(why)
        self.noted = noted


class Links(Kind[LinkSpec]):
    """Reconciles ReplicationLinks."""

    name = "ReplicationLink"
    spec = LinkSpec
    types = TYPES
    aside = ASIDE

    def __init__(self, **common: Any) -> None:
        """Takes the arguments of Kind."""
        super().__init__(**common)
        self._resolver = LinkResolver(kube=self._kube, cache=self._cache, index=self._index)
        self._asking = 0
        self._sent: dict[str, tuple[str, str]] = {}
        """The versions of the credentials that were sent last, the link's own and the reverse ones, by the resource's
        uid.
        """
        self._homes: dict[str, Homes] = {}
        """The topics' homes as last counted, by the resource's uid."""

    async def _advance(self, body: Body, spec: LinkSpec) -> tuple[list[Condition], Figures, float | None]:
        before = body.get("status") or {}
        credentials: Sequence[Mapping[str, str]] = ()
        try:
            asked = await self._resolver.resolved(body, spec)
            credentials = asked.given.credentials, asked.reverse.credentials
            shown, problem = await self._made(asked, body, spec)
            if shown is None:
                return _failed(problem, credentials), {}, self._again_after(problem)
            shown = _clean(shown, credentials)
            reconciled = _failed(problem, credentials)[:1] if problem else [Condition("Reconciled", True, "AsAsked")]
            is_told = before.get("observedGeneration") == body["metadata"]["generation"]
            conditions = [*reconciled, *judge(shown, before, now=time())]
            again = self._again_after(problem) if problem else self._next_look(shown, conditions)
            if not is_told:
                conditions = [JUST_CHANGED if each.type == "CaughtUp" else each for each in conditions]
                again = min(again, self._again(SOON_S, AGAIN_EACH_S))
            versions = self._sent.get(body["metadata"]["uid"], (None, None))
            found = {**figures(shown, spec), **dict(zip(VERSIONS, versions, strict=True))}
            if asked.both or (_has_reverse(body) and problem is None):
                found["reverseLink"] = asked.both
            found |= await self._stream(asked, body, spec)
        except _InTurn as first:
            waits = Condition("Reconciled", None, "InTurn", str(first))
            is_told = before.get("observedGeneration") == body["metadata"]["generation"]
            return kept(before) if is_told else [waits], first.noted, IN_TURN_S * random.uniform(0.5, 1.5)
        except Unheard as error:
            return [error.condition], await self._running_figures(body, spec), self._again(AGAIN_S, AGAIN_EACH_S)
        except Unresolved as error:  # the index calls again when that changes
            runs_on = await self._running_figures(body, spec)
            return [error.condition], runs_on, self._again(LOOK_S, LOOK_EACH_S) if runs_on else None
        except HeadraceError as error:
            return _failed(error, credentials), {}, self._again_after(error)
        return conditions, found, again

    async def _running_figures(self, body: Body, spec: LinkSpec) -> Figures:
        """Return the status fields of a link that keeps running while its resource cannot be resolved, for example
        because its source's resource was deleted. Free text is left out: it is not known here whether a part of it is
        secret.
        """
        try:
            _, _, bootstrap = resolve(self._cache, body, spec.cluster_ref)
            check_oldest(self._cache, self._index, body)
            shown = await self._shown(bootstrap, spec.name or body["metadata"]["name"])
        except (HeadraceError, Unresolved):
            return {}
        if shown is None or (shown["stream"], shown["source_stream"]) != (spec.target.stream, spec.source.stream):
            return {}
        return {name: value for name, value in figures(shown, spec).items() if name in WITHOUT_WORDS}

    def _next_look(self, shown: Shown, conditions: Sequence[Condition]) -> float:
        """Return the seconds until the next look: fewer while a change is expected."""
        state = shown["state"]
        if state == "Connecting" and not any(each.type == "Connected" and each.ok is False for each in conditions):
            return self._again(SOON_S, AGAIN_EACH_S)
        return self._again(TROUBLED_S if state in ("Connecting", "CatchingUp") else LOOK_S, LOOK_EACH_S)

    def _again_after(self, error: HeadraceError | None) -> float:
        """Return the seconds until a retry: more if the same call would fail again."""
        final = isinstance(error, KafkaError) and error.code in (*FINAL, Code.CLUSTER_AUTHORIZATION_FAILED)
        return self._again(FIGURES_AGAIN_S if final else AGAIN_S, FIGURES_EACH_S if final else AGAIN_EACH_S)

    async def _report(self, body: Body, conditions: Sequence[Condition], figures: Figures) -> None:
        """Write the status, then post an event per change: it is posted once, as the status then holds the change."""
        await super()._report(body, conditions, figures)
        if body["metadata"].get("deletionTimestamp"):
            return
        stream = str((body["spec"].get("target") or {}).get("stream"))
        for turn in turns(body.get("status") or {}, conditions, stream):
            await self._kube.tell(body, reason=turn.reason, message=turn.message, warning=turn.warning)

    async def _make(self, bootstrap: str, body: Body, spec: LinkSpec) -> Outcome:
        raise NotImplementedError  # this kind overrides _advance

    # --- creation and changes

    async def _made(self, asked: Asked, body: Body, spec: LinkSpec) -> tuple[Shown | None, HeadraceError | None]:
        """Create or change the link; return it, and the error that kept it from being as asked. Raises HeadraceError,
        Unresolved, _InTurn.
        """
        shown = await self._shown(asked.bootstrap, asked.name)
        if is_new := shown is None:
            await self._await_stream(asked, body, spec)
            self._note_reverse(body, asked.both)
            try:
                shown = await self._create(asked, body, spec)
            except KafkaError as error:
                return None, error
        elif (shown["stream"], shown["source_stream"]) != (spec.target.stream, spec.source.stream):
            raise Unheard(
                "OtherLink",
                f"the cluster has a link {asked.name} already, from {shown['source_stream']} into {shown['stream']}:"
                " give this one another name, or delete that one with `headrace link delete`",
            )
        self._note_reverse(body, asked.both or shown["direction"] == "both")
        seen, problem = shown, None
        if spec.paused and shown["state"] != "Paused":  # pause at once, whether or not the source answers
            shown = await self._admin.call(asked.bootstrap, "link.pause", {"name": asked.name})
        try:
            shown = await self._altered(asked, body, shown)
            if not asked.both and _has_reverse(body):
                await self._drop_reverse(asked, body, spec)
        except KafkaError as error:
            problem = error
        if not spec.paused and shown["state"] == "Paused":
            shown = await self._admin.call(asked.bootstrap, "link.resume", {"name": asked.name})
        if shown is not seen or is_new:  # the answers to creation and changes are incomplete
            shown = await self._shown(asked.bootstrap, asked.name) or shown
        return shown, problem

    def _note_reverse(self, body: Body, there: bool) -> None:
        """Raise _InTurn if the source has, or will have, a link that is not noted in the status yet."""
        if there and not _has_reverse(body):
            self._reporter.forget(body["metadata"]["uid"])  # otherwise status fields would wait for a minute
            raise _InTurn("recording first that the source copies from here too", reverseLink=True)

    async def _shown(self, bootstrap: str, name: str) -> Shown | None:
        """Return the link as the cluster shows it; None if there is no such link."""
        try:
            found: Shown = await self._admin.call(bootstrap, "link.show", {"name": name})
        except KafkaError as error:
            if error.code is not Code.INVALID_REQUEST:
                raise
            if NO_METHOD in str(error):
                raise Unheard(
                    "NotSupported",
                    "the cluster's version does not support links: give the StreamCluster a newer spec.version",
                ) from error
            return None
        return found

    async def _await_stream(self, asked: Asked, body: Body, spec: LinkSpec) -> None:
        """Raise Unheard until a declared Stream exists: a link would create the stream with the source's policy."""
        stream = self._resolver.declared(body)
        if stream is None:
            return
        try:
            await self._admin.call(asked.bootstrap, "stream.show", {"path": spec.target.stream})
        except KafkaError as error:
            if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            of = f"Stream {stream['metadata']['namespace']}/{stream['metadata']['name']}"
            raise Unheard(
                "StreamFirst", f"{of} has to create {spec.target.stream} first: see its conditions"
            ) from error

    async def _create(self, asked: Asked, body: Body, spec: LinkSpec) -> Shown:
        params = {
            **asked.fields,
            "name": asked.name,
            "source_stream": spec.source.stream,
            "stream": spec.target.stream,
            "credentials": dict(asked.given.credentials),
            "if_not_exists": True,
        }
        if asked.reverse.version:
            params["reverse_credentials"] = dict(asked.reverse.credentials)
        async with self._asking_a_source():
            shown: Shown = await self._admin.call(asked.bootstrap, "link.create", params, patience_s=PATIENCE_S)
        self._note_sent(body, asked)
        what = f"{spec.source.stream or 'all topics'} of {','.join(asked.source)}"
        await self._kube.tell(body, reason="LinkCreated", message=f"{what} into {spec.target.stream}")
        return shown

    async def _altered(self, asked: Asked, body: Body, shown: Shown) -> Shown:
        changes = {name: value for name, value in asked.fields.items() if name in shown and shown[name] != value}
        status = body.get("status") or {}
        known, known_reverse = self._sent.get(body["metadata"]["uid"]) or [status.get(name, "") for name in VERSIONS]
        given, reverse = asked.given, asked.reverse
        # A cluster does not send the credentials that it holds to a new address.
        again = "source" in changes and bool(given.credentials)
        if again or known != given.version or sorted(given.credentials) != sorted(shown.get("credentials") or []):
            changes["credentials"] = dict(given.credentials)
        again = bool(changes.keys() & {"bootstrap", "direction"}) and bool(reverse.credentials)
        if asked.both and (again or known_reverse != reverse.version):
            changes["reverse_credentials"] = dict(reverse.credentials)
        if not changes:
            self._note_sent(body, asked)
            return shown
        told = ", ".join(changes)
        if "direction" in changes:
            changes["bootstrap"] = asked.reach
        if changes.keys() & {"source", "credentials", "direction", "topics"} or (
            asked.both and changes.keys() & {"bootstrap", "reverse_credentials"}
        ):
            async with self._asking_a_source():
                changed = await self._admin.call(
                    asked.bootstrap, "link.alter", {"name": asked.name, **changes}, patience_s=PATIENCE_S
                )
        else:
            changed = await self._admin.call(asked.bootstrap, "link.alter", {"name": asked.name, **changes})
        self._note_sent(body, asked)
        await self._kube.tell(body, reason="LinkChanged", message=f"changed at the link: {told}")
        return dict(changed)

    async def _drop_reverse(self, asked: Asked, body: Body, spec: LinkSpec) -> None:
        """Delete the source's link that copies from here. Raises KafkaError if that must be retried, _InTurn."""
        try:
            async with self._asking_a_source():
                left = await self._delete_reverse(asked.source_bootstrap, asked.name, asked.reach, spec)
        except HeadraceError as error:
            code = error.code if isinstance(error, KafkaError) else Code.BROKER_NOT_AVAILABLE
            raise KafkaError(code, f"the source's link {asked.name} still copies from here: {error}") from error
        if left:
            await self._tell_left(body, asked.name, left)

    def _note_sent(self, body: Body, asked: Asked) -> None:
        self._sent[body["metadata"]["uid"]] = asked.given.version, asked.reverse.version
        if len(self._sent) > ROOM + 2 * self._cache.count(self.name):  # some resources disappear without notice
            left = {each["metadata"]["uid"] for each in self._cache.all(self.name)}
            self._sent = {uid: version for uid, version in self._sent.items() if uid in left}
            self._homes = {uid: homes for uid, homes in self._homes.items() if uid in left}

    @asynccontextmanager
    async def _asking_a_source(self) -> AsyncIterator[None]:
        """Count a call that contacts a source. Raises _InTurn if too many run already."""
        if self._asking >= AT_ONCE:
            raise _InTurn("waiting until the sources of other links have answered")
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    async def _stream(self, asked: Asked, body: Body, spec: LinkSpec) -> dict[str, Any]:
        """Set the copy's time to live; return the status fields with the number of its topics, and of those at home
        here.
        """
        shown = await self._admin.call(asked.bootstrap, "stream.show", {"path": spec.target.stream})
        if spec.target.ttl is not None and shown["ttl_ms"] != (ttl_ms := milliseconds(spec.target.ttl)):
            changes = {"path": spec.target.stream, "changes": {"ttl_ms": ttl_ms}}
            await self._admin.call(asked.bootstrap, "stream.alter", changes)
        found = {"topics": shown["topics"]}
        if shown["topics"] <= MAX_COUNTED:
            homes = await self._counted(asked.bootstrap, spec.target.stream)
            found["topicsAtHome"] = homes.here
            uid = body["metadata"]["uid"]
            if (before := self._homes.get(uid)) is not None and (turn := moved(before, homes, spec.target.stream)):
                await self._kube.tell(body, reason=turn.reason, message=turn.message)
            self._homes[uid] = homes
        return found

    async def _counted(self, bootstrap: str, stream: str) -> Homes:
        own = (await self._admin.call(bootstrap, "link.hello", {"version": 1, "stream": stream}))["cluster_id"]
        here = elsewhere = taken = 0
        after: str | None = None
        while True:
            asked = {"version": 1, "stream": stream, "after": after, "limit": MAX_COUNTED}
            page = await self._admin.call(bootstrap, "link.topics", asked)
            at_home = [each["home"][0] for each in page["topics"] if each["home"][1] == own]
            here, elsewhere = here + len(at_home), elsewhere + len(page["topics"]) - len(at_home)
            taken += sum(counter > 0 for counter in at_home)
            after = page["after"]
            if after is None or here + elsewhere > MAX_COUNTED:
                return Homes(here, elsewhere, taken)

    # --- deletion

    async def _unmake(self, bootstrap: str, body: Body, spec: LinkSpec) -> None:
        name = spec.name or body["metadata"]["name"]
        shown = await self._shown(bootstrap, name)
        if shown is not None:
            if (shown["stream"], shown["source_stream"]) != (spec.target.stream, spec.source.stream):
                return  # not this resource's link
            await self._admin.call(bootstrap, "link.delete", {"name": name})
        if spec.mode == "MultiHome" or _has_reverse(body):
            reach = [] if shown is None else list(shown.get("bootstrap") or [])
            await self._end_reverse(reach or addresses(spec.target.bootstrap or bootstrap), name, body, spec)
        self._forget(body)

    async def _end_reverse(self, reach: Sequence[str], name: str, body: Body, spec: LinkSpec) -> None:
        """Try once to delete the source's link: the deletion of the resource does not wait for a silent source."""
        where = None
        if spec.source.cluster_ref is not None:
            try:
                _, _, where = resolve(self._cache, body, spec.source.cluster_ref)
            except Unresolved:
                return  # the cluster is gone, and its links with it
        try:
            left = await self._delete_reverse(where, name, reach, spec)
        except HeadraceError as error:
            left = str(error)
        if left:
            await self._tell_left(body, name, left)

    async def _delete_reverse(self, where: str | None, name: str, target: Sequence[str], spec: LinkSpec) -> str:
        """Delete the source's link that copies from here; return why that is left to a person, or "" if it is gone.
        Raises HeadraceError if the source does not answer, or refuses.
        """
        if where is None:
            return "its address is not known here"
        try:
            shown = await self._shown(where, name)
        except Unheard:  # a version without links
            return ""
        if shown is None:
            return ""
        ends = shown["stream"], shown["source_stream"], list(shown["source"])
        if ends != (spec.source.stream, spec.target.stream, list(target)):
            return "it was changed by somebody else"
        await self._admin.call(where, "link.delete", {"name": name})
        return ""

    async def _tell_left(self, body: Body, name: str, why: str) -> None:
        message = (
            f"the source's link {name}, which copies from here, remains: `headrace link delete {name}` there ({why})"
        )
        mark = f"reverse-{body['metadata']['generation']}"
        await self._kube.tell(body, reason="NotDeleted", message=message, warning=True, mark=mark)

    def _forget(self, body: Body) -> None:
        self._sent.pop(body["metadata"]["uid"], None)
        self._homes.pop(body["metadata"]["uid"], None)


def _has_reverse(body: Body) -> bool:
    """Return whether the source may have a link that copies from here, according to the status."""
    return bool((body.get("status") or {}).get("reverseLink"))


def _failed(error: HeadraceError | None, credentials: Sequence[Mapping[str, str]]) -> list[Condition]:
    """Return the conditions of an error, Reconciled first."""
    text = _without(str(error), credentials)
    if not isinstance(error, KafkaError):
        return [Condition("Reconciled", False, "NoAnswer", text)]
    if error.code in SILENT:
        return [
            Condition("Reconciled", False, "SourceSilent", text),
            Condition("Connected", False, "SourceSilent", text),
        ]
    if error.code is Code.CLUSTER_AUTHORIZATION_FAILED:
        refuses = Condition("Reconciled", False, "SourceRefuses", text)
        return [refuses, replace(refuses, type="Connected")]
    return [Condition("Reconciled", False, "Refused", text)]


def _clean(shown: Shown, credentials: Sequence[Mapping[str, str]]) -> Shown:
    return {**shown, "last_error": _without(str(shown.get("last_error") or ""), credentials)}


def _without(text: str, credentials: Sequence[Mapping[str, str]]) -> str:
    for each in credentials:
        text = without_secrets(text, each)
    return text
