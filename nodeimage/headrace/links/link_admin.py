"""The admin calls on links and homes, used by the command line and the operator. Any node answers them.

Each change is one catalog command, so that after a repeat or a crash a link either exists or does not. What is shown is
collected from all nodes; a node that does not answer is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import DeleteLink, PutLink, SetLinkState
from headrace.catalog.names import check_stream
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.reader import Reader
from headrace.catalog.rows import PAUSED, RUNNING, LinkRow, TopicRow
from headrace.links.config import (
    BOTH,
    PULL,
    check_link_name,
    checked_config,
    credential_names,
    seal,
    short_name,
    unseal,
)
from headrace.links.failover.failover import Failover
from headrace.links.failover.name_clash import NameClashes
from headrace.links.links import UNKNOWN, LinkReport, Links
from headrace.links.pull.lag import CATCHING_UP, CAUGHT_UP, CONNECTING, FAILED, combined
from headrace.links.reverse_link import ReverseLinks, call_source
from headrace.links.source.source import Hello
from headrace.links.topics.topic_apply import TopicApplier
from headrace.links.topics.topic_plan import DIVERGED, source_problem
from headrace.partitions.admin_params import Method, Methods, NoParams, Params
from headrace.partitions.admin_rights import ADMIN, Anybody, On, Target, Targets, on_stream
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.lookups import look_up_one, now
from headrace.partitions.new_streams import new_stream
from headrace.partitions.partition_states import PartitionStates
from headrace.partitions.stream_policies import PolicyFields, policy_from
from headrace.security.access_rules import Kind, Permission
from headrace.security.client_security import files_named

__all__ = ["LinkAdmin"]

log = structlog.get_logger(__name__)

PAGE: Final = 5_000
MAX_SHOWN: Final = 1_000
"""The maximum number of refused or diverged topics that are shown of one link."""
MOVE_TIMEOUT_MS: Final = 540_000
"""How long another cluster may take to move homes, in milliseconds."""


class NewLink(Params, frozen=True):
    source: list[str]
    source_stream: str
    stream: str
    name: str = ""
    topics: list[str] = msgspec.field(default_factory=lambda: ["*"])
    direction: str = PULL
    bootstrap: list[str] = msgspec.field(default_factory=list)
    forward_writes: bool = False
    throttle: int = 0
    credentials: dict[str, str] = msgspec.field(default_factory=dict)
    reverse_credentials: dict[str, str] | None = None
    """Credentials of the reverse link; see `ReverseLinks.check`."""
    if_not_exists: bool = False


class OneLink(Params, frozen=True):
    name: str


class LinkChange(Params, frozen=True):
    name: str
    source: list[str] | None = None
    topics: list[str] | None = None
    direction: str | None = None
    bootstrap: list[str] | None = None
    forward_writes: bool | None = None
    throttle: int | None = None
    credentials: dict[str, str] | None = None
    reverse_credentials: dict[str, str] | None = None


class ClashResolution(Params, frozen=True):
    name: str
    topics: list[str] | None = None


class Move(Params, frozen=True):
    stream: str
    topics: list[str] | None = None
    to: str | None = None
    force: bool = False


TAKEN: Final = (NewLink, OneLink, LinkChange, ClashResolution, Move)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin/admin_api.py."""


class LinkAdmin:
    """Answers the admin calls on links and homes."""

    def __init__(
        self,
        links: Links,
        *,
        catalog: Catalog,
        states: PartitionStates,
        applier: TopicApplier,
        clashes: NameClashes,
        authorizer: Authorizer,
        own_cluster: str,
    ) -> None:
        self._authorizer = authorizer
        self._links = links
        self._catalog = catalog
        self._states = states
        self._own = own_cluster
        self._clashes = clashes
        self._reverse = ReverseLinks(secret=links.secret, is_secured=lambda: authorizer.is_on)
        self._failover = Failover(
            catalog=catalog,
            states=states,
            applier=applier,
            own_cluster=own_cluster,
            links=self._links_of,
            source=links.open_source,
            behind=self._behind,
        )

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        listed = Anybody("lists the links of streams on which the caller has `admin`")
        of_link = On(ADMIN, "the stream of the link `name`", self._stream_of)
        return {
            "link.create": Method(NewLink, self._create, on_stream(ADMIN, "stream"), of_caller=True),
            "link.list": Method(
                NoParams,
                self._list,
                listed,
                of_caller=True,
            ),
            "link.show": Method(OneLink, self._show, of_link),
            "link.alter": Method(LinkChange, self._alter, of_link, of_caller=True),
            "link.pause": Method(OneLink, self._pause, of_link),
            "link.resume": Method(OneLink, self._resume, of_link),
            "link.delete": Method(OneLink, self._delete, of_link),
            "link.adopt": Method(ClashResolution, self._resolve_clash, of_link),
            "home.move": Method(Move, self._move, on_stream(ADMIN, "stream")),
        }

    async def _stream_of(self, params: OneLink | LinkChange | ClashResolution, _caller: Caller) -> Targets:
        """The stream of a link. A link that does not exist gets the same answer as one that the caller may not see."""
        row = await look_up_one(self._catalog, lambda reader: reader.links.named(params.name))
        return [Target(Kind.STREAM, "" if row is None else row.stream, f"the stream of the link {params.name[:100]!r}")]

    # --- create and change

    async def _create(self, params: NewLink, caller: Caller) -> dict[str, Any]:
        self._check_files(params.credentials, caller, "link.create")
        name = params.name or short_name(params.source, params.source_stream)
        check_link_name(name)
        config = checked_config(
            LinkConfig(
                source=params.source,
                source_stream=params.source_stream,
                topics=params.topics,
                direction=params.direction,
                forward_writes=params.forward_writes,
                throttle=params.throttle,
                bootstrap=params.bootstrap,
                credentials=seal(params.credentials, self._links.secret),
            ),
            stream=params.stream,
        )
        present = await look_up_one(self._catalog, lambda reader: reader.links.named(name))
        if present is not None:
            if params.if_not_exists and self._is_same(present, config, params.stream):
                return await self._shown(present)
            is_own = self._authorizer.sees(caller, ADMIN, Kind.STREAM, present.stream)
            what = f", into {present.stream}; change it with `headrace link alter {name}`"
            raise KafkaError(
                Code.INVALID_REQUEST,
                f"there is a link {name} "
                f"already{what if is_own else ', on a stream that you do not administer: choose another name'}",
            )
        self._reverse.check(params.stream, config, params.reverse_credentials)
        hello = await self._greet(config)
        await self._make_stream(params.stream, hello.policy, caller)
        config = msgspec.structs.replace(config, source_cluster=hello.cluster_id)
        if config.direction == BOTH:
            await self._reverse.make(name, params.stream, config, params.reverse_credentials)
        outcome = await self._catalog.submit(
            PutLink(name=name, stream=params.stream, config=config, now=now(), create=True)
        )
        log.info("link created", link=name, stream=params.stream, source=config.source)
        return await self._shown(outcome.link)

    def _is_same(self, present: LinkRow, config: LinkConfig, stream: str) -> bool:
        """Whether the existing link has this configuration. Credentials are compared unsealed: each sealing differs."""
        secret = self._links.secret
        same_credentials = unseal(present.config.credentials, secret) == unseal(config.credentials, secret)
        alike = msgspec.structs.replace(
            config, credentials=present.config.credentials, source_cluster=present.config.source_cluster
        )
        return same_credentials and present.stream == stream and present.config == alike

    async def _greet(self, config: LinkConfig) -> Hello:
        """The source's answer to hello. Raises HeadraceError if the source cannot be copied from."""
        source = self._links.open_source(LinkRow(0, "", "", config, RUNNING, now()))
        try:
            hello = await source.hello()
        except KafkaError as error:
            if error.code not in (Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED):
                raise
            raise KafkaError(error.code, f"the source refuses the link: {error}") from error
        finally:
            await source.close()
        problem = source_problem(
            cluster_id=hello.cluster_id,
            expected=config.source_cluster,
            own_cluster=self._own,
            problem=hello.problem,
        )
        if problem is not None:
            raise problem
        return hello

    async def _make_stream(self, path: str, policy: Mapping[str, Any], caller: Caller) -> None:
        """Create the stream that is copied into, unless it exists: with the source's policy, on the default volume, and
        owned by the caller while security is on."""
        check_stream(path)
        if await self._catalog.query(lambda reader: reader.streams.at(path)) is not None:
            return
        known = {name: value for name, value in policy.items() if name in StreamPolicy.__struct_fields__}
        known.pop("volume", None)
        try:
            wanted = policy_from(msgspec.convert(known, PolicyFields))
        except (KafkaError, msgspec.ValidationError):
            wanted = StreamPolicy()
        owner = caller.principal.user if self._authorizer.is_on else None
        await self._catalog.submit(new_stream(path, wanted, access={}, owner=owner, now=now()))

    def _check_files(self, credentials: Mapping[str, str], caller: Caller, method: str) -> None:
        """Only an administrator of the cluster may have nodes read files or present their certificates. Raises
        KafkaError."""
        files = files_named(credentials)
        if files and not self._authorizer.allows(caller, Permission.ADMIN, api=method):
            raise KafkaError(
                Code.CLUSTER_AUTHORIZATION_FAILED,
                f"{', '.join(files)}: only administrators of the cluster may have links use files of the nodes; give "
                "the content instead, as ssl.ca.pem, ssl.certificate.pem and ssl.key.pem",
            )

    async def _alter(self, params: LinkChange, caller: Caller) -> dict[str, Any]:
        self._check_files(params.credentials or {}, caller, "link.alter")
        link = await self._link(params.name)
        given = {
            name: value
            for name in ("source", "topics", "direction", "bootstrap", "forward_writes", "throttle")
            if (value := getattr(params, name)) is not None
        }
        if params.credentials is not None:
            given["credentials"] = seal(params.credentials, self._links.secret)
        config = checked_config(msgspec.structs.replace(link.config, **given), stream=link.stream)
        if params.credentials is None:
            _check_trusted(link.config, config)
        self._reverse.check(link.stream, config, params.reverse_credentials, before=link.config)
        if params.source is not None or params.credentials is not None:
            await self._greet(config)
        if config.direction == BOTH:
            if link.config.direction != BOTH:
                await self._reverse.make(link.name, link.stream, config, params.reverse_credentials)
            else:
                await self._reverse.change(link.name, link.config, config, params.reverse_credentials)
        outcome = await self._catalog.submit(
            PutLink(name=link.name, stream=link.stream, config=config, now=now(), create=False)
        )
        return await self._shown(outcome.link)

    async def _pause(self, params: OneLink) -> dict[str, Any]:
        return await self._set_state(params.name, PAUSED)

    async def _resume(self, params: OneLink) -> dict[str, Any]:
        return await self._set_state(params.name, RUNNING)

    async def _set_state(self, name: str, state: str) -> dict[str, Any]:
        await self._link(name)
        outcome = await self._catalog.submit(SetLinkState(name=name, state=state))
        return await self._shown(outcome.link)

    async def _delete(self, params: OneLink) -> dict[str, Any]:
        link = await self._link(params.name)
        await self._catalog.submit(DeleteLink(name=link.name))
        log.info("link deleted", link=link.name, stream=link.stream)
        return {"deleted": link.name}

    async def _link(self, name: str) -> LinkRow:
        row = await look_up_one(self._catalog, lambda reader: reader.links.named(name))
        if row is None:
            raise KafkaError(
                Code.INVALID_REQUEST, f"there is no link {name[:100]!r}; `headrace link list` shows those that exist"
            )
        return row

    async def _links_of(self, stream: str) -> Sequence[LinkRow]:
        return await self._catalog.query(lambda reader: reader.links.all(stream))

    # --- show

    async def _list(self, _params: NoParams, caller: Caller) -> list[dict[str, Any]]:
        found = await self._catalog.query(lambda reader: reader.links.all())
        rows = [row for row in found if self._authorizer.sees(caller, ADMIN, Kind.STREAM, row.stream)]
        reports = await self._links.reports([row.name for row in rows])
        streams = await self._catalog.query(partial(_partitions, paths={row.stream for row in rows}))
        return [
            self._as_json(row, [each[row.name] for each in reports if row.name in each], streams.get(row.stream, 0))
            for row in rows
        ]

    async def _show(self, params: OneLink) -> dict[str, Any]:
        row = await self._link(params.name)
        reports = await self._reports(row)
        aside = {"blocked": await self._blocked(reports), "diverged": await self._diverged(row.stream)}
        return {**await self._shown(row, reports), **aside}

    async def _shown(self, row: LinkRow, reports: Sequence[LinkReport] | None = None) -> dict[str, Any]:
        streams = await self._catalog.query(partial(_partitions, paths={row.stream}))
        return self._as_json(row, await self._reports(row) if reports is None else reports, streams.get(row.stream, 0))

    async def _reports(self, row: LinkRow) -> list[LinkReport]:
        """What each node reports about the link."""
        return [each[row.name] for each in await self._links.reports([row.name]) if row.name in each]

    def _as_json(self, row: LinkRow, reports: Sequence[LinkReport], partitions: int) -> dict[str, Any]:
        figures = combined(each.figures for each in reports if each.figures is not None)
        syncing = next((each for each in reports if each.kept), LinkReport())
        failed = next((each.failed for each in reports if each.failed), None)
        errors = [(syncing.last_error_ms or 0, syncing.last_error)]
        if figures is not None:
            errors.append((figures.last_error_ms or 0, figures.reason or None))
        at, error = max(errors, key=lambda each: (each[1] is not None, each[0]))
        state = CONNECTING if figures is None else figures.state
        if state == CAUGHT_UP and any(each.settling for each in reports):
            state = CATCHING_UP
        if failed is not None and row.state == RUNNING:
            state, error, at = FAILED, failed, int(now())
        if row.state == PAUSED:
            state = "Paused"
        lag = None if figures is None else figures.lag
        return {
            "name": row.name,
            "stream": row.stream,
            "source": row.config.source,
            "source_stream": row.config.source_stream,
            "source_cluster": row.config.source_cluster or syncing.source_cluster or None,
            "topics": row.config.topics,
            "direction": row.config.direction,
            "bootstrap": row.config.bootstrap,
            "forward_writes": row.config.forward_writes,
            "throttle": row.config.throttle,
            "state": state,
            "since_ms": None if figures is None else int(now() - figures.state_s * 1000),
            "lag_records": None if lag is None else lag.records,
            "lag_bytes": None if lag is None else lag.bytes,
            "lag_seconds": None if lag is None else lag.seconds,
            "groups": {} if figures is None else msgspec.to_builtins(figures.groups),
            "partitions": partitions,
            "lagging": None if lag is None else lag.partitions,
            "last_error": error,
            "last_error_ms": at or None if error is not None else None,
            "refused": [
                {"topic": name, "reason": reason} for name, reason in sorted(syncing.refused.items())[:MAX_SHOWN]
            ],
            "credentials": credential_names(row.config.credentials, self._links.secret),
        }

    async def _blocked(self, reports: Sequence[LinkReport]) -> list[dict[str, Any]]:
        """Some of the partitions that cannot be pulled at present, with the reasons."""
        figures = combined(each.figures for each in reports if each.figures is not None)
        blocked = [] if figures is None else figures.blocked
        rows = await self._catalog.query(lambda reader: reader.topics.by_ids(list({each.topic_id for each in blocked})))
        return [
            {"topic": rows[each.topic_id].name, "partition": each.partition, "reason": each.reason}
            for each in blocked
            if each.topic_id in rows
        ]

    async def _diverged(self, stream: str) -> list[dict[str, Any]]:
        """The quarantined records that a stream still has, by partition."""
        rows: list[TopicRow] = []
        after = ""
        while len(rows) < MAX_SHOWN:
            page = await self._catalog.query(partial(_page, stream=stream, after=after))
            rows += [row for row in page if row.name.endswith(DIVERGED)]
            if len(page) < PAGE:
                break
            after = page[-1].name
        starts = await self._catalog.query(lambda reader: reader.chains.log_starts([row.number for row in rows]))
        places = [(row, index) for row in rows for index in range(row.partitions)]
        reached = await self._states.ends(((row.topic_id, index) for row, index in places))
        found = [
            {
                "topic": row.name.removesuffix(DIVERGED),
                "partition": index,
                "records": reached.get((row.topic_id, index), 0) - starts.get((row.number, index), Offset(0)),
                "into": row.full_name,
            }
            for row, index in places
        ]
        return [each for each in found if each["records"]][:MAX_SHOWN]

    async def _behind(self, stream: str) -> Callable[[bytes], int | None]:
        """A function that returns how many records of a topic this cluster lacks, by what the nodes last heard from the
        source; None where that is unknown."""
        links = await self._links_of(stream)
        reports = await self._links.reports([row.name for row in links], behind=True)
        heard = bool(links) and all(row.name in node and node[row.name].heard for node in reports for row in links)
        found: dict[bytes, int] = {}
        for node in reports:
            for each in node.values():
                for topic_id, records in each.behind.items():
                    before = found.get(topic_id, 0)
                    found[topic_id] = UNKNOWN if UNKNOWN in (records, before) else before + records

        def behind(topic_id: bytes) -> int | None:
            records = found.get(topic_id, 0)
            return records if heard and records != UNKNOWN else None

        return behind

    # --- homes

    async def _resolve_clash(self, params: ClashResolution) -> list[dict[str, Any]]:
        link = await self._link(params.name)
        source = self._links.open_source(link)
        try:
            return await self._clashes.resolve_to_source(source, link, params.topics)
        finally:
            await source.close()

    async def _move(self, params: Move) -> Any:
        check_stream(params.stream)
        if params.to in (None, "", self._own):
            return await self._failover.move_here(params.stream, params.topics, force=params.force)
        links = await look_up_one(self._catalog, partial(_leading, stream=params.stream, to=params.to))
        if links is None:
            raise KafkaError(
                Code.INVALID_REQUEST,
                f"no link of {params.stream} leads to cluster {params.to}: run this at that cluster, without --to",
            )
        asked = {"stream": links[0].config.source_stream, "topics": params.topics, "force": params.force}
        try:
            return await call_source(
                links[0].config, "home.move", asked, secret=self._links.secret, wait_ms=MOVE_TIMEOUT_MS
            )
        except HeadraceError as error:
            raise KafkaError(error.code, f"cluster {params.to} was asked to become home: {error}") from error


def _check_trusted(before: LinkConfig, config: LinkConfig) -> None:
    """Check that stored credentials are not sent to new addresses: someone who may alter a link need not know its
    credentials. Raises KafkaError."""
    new = [each for each in config.source if each not in before.source]
    if before.credentials and new:
        raise KafkaError(
            Code.INVALID_REQUEST,
            f"the link's credentials were not given for {', '.join(new)}: give them again, with --credentials",
        )


def _leading(reader: Reader, *, stream: str, to: str | None) -> list[LinkRow] | None:
    """[blocking] The stream's links whose source is the cluster `to`, or None if there are none."""
    return [row for row in reader.links.all(stream) if row.config.source_cluster == to] or None


def _partitions(reader: Reader, *, paths: set[str]) -> dict[str, int]:
    """[blocking] The number of partitions of each existing stream, by path."""
    return {path: row.partitions for path in paths if (row := reader.streams.at(path)) is not None}


def _page(reader: Reader, *, stream: str, after: str) -> list[TopicRow]:
    """[blocking] One page of a stream's topics, after the name `after`."""
    return reader.topics.page(stream, after=after, limit=PAGE)
