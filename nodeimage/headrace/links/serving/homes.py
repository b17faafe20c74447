"""Homes of topics that move between clusters: what other clusters announce to this one, and what they ask it to give
up.

`link.announce` says that there is a higher home elsewhere. This cluster records it, and creates a link that copies the
topic from the announcing cluster if there is none. The link comes first, since a cluster that has recorded the home
gets no second announcement. While security is on, announcements are accepted only from a cluster from which a link here
pulls that stream, and the new link uses that link's addresses and credentials, not those in the announcement.

`home.cede` gives a home away; from then on nothing is appended here, so the end of each partition is final once it is
settled for its new home. Both calls may be repeated: a repeat gets the same answer.
"""

import asyncio
import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
import structlog

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import HOMES, Home, Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.link_config import LinkConfig, matches
from headrace.catalog.links import PutLink
from headrace.catalog.names import check_stream
from headrace.catalog.reader import Reader
from headrace.catalog.rows import LinkRow, TopicRow
from headrace.links.serving.params import (
    MAX_ITEMS,
    Cluster,
    Index,
    OfStream,
    Path,
    TopicId,
    Versioned,
    check_call,
    check_version,
)
from headrace.links.serving.topics import Homes, read_homes
from headrace.partitions.admin_params import Method, Methods
from headrace.partitions.admin_rights import ADMIN, On, Target, Targets, on_stream
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.home_check import home_of, is_settled_for
from headrace.partitions.lookups import create_partitions_command, now, submit_within
from headrace.partitions.partition_states import PartitionStates
from headrace.partitions.placement import Placement
from headrace.security.access_rules import Kind

log = structlog.get_logger()

APPLY_WAIT_S: Final = 10.0
"""How long a call waits for the homes it gave away to be settled, in seconds; a repeated call gets the answer later."""
LOOK_S: Final = 0.05
MAX_PATTERNS: Final = 100
"""The maximum number of topics that a link created here names; with more it copies the whole stream."""

Counter = Annotated[int, msgspec.Meta(ge=1, lt=HOMES)]
Start = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Lists = dict[Index, Annotated[list[tuple[Counter, Cluster, Start]], msgspec.Meta(max_length=1000)]]
Address = Annotated[str, msgspec.Meta(max_length=300, pattern=r"^[A-Za-z0-9._:\[\]-]+:[0-9]{1,5}$")]


class Announced(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic's home: its counter and cluster, the cluster that counter 0 means, and each partition's history."""

    topic_id: TopicId
    home: tuple[Counter, Cluster]
    origin: Cluster
    lists: Lists


class Announcement(OfStream, frozen=True):
    items: Annotated[list[Announced], msgspec.Meta(max_length=MAX_ITEMS)]
    cluster: Cluster
    """The announcing cluster."""
    bootstrap: Annotated[list[Address], msgspec.Meta(max_length=100)] = msgspec.field(default_factory=list)
    """Its addresses as reached from here; without them no link is created."""
    source_stream: Path = ""
    """The stream's path in that cluster; empty: the same as here."""


class Demotion(Versioned, frozen=True):
    topic_ids: Annotated[list[TopicId], msgspec.Meta(max_length=MAX_ITEMS)]
    to: Cluster


TAKEN: Final = (Announcement, Demotion)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin/admin_api.py."""


class HomeApis:
    """Answers other clusters' calls about the homes of topics. It works on any node."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        placement: Placement,
        states: PartitionStates,
        authorizer: Authorizer,
        own_cluster: str,
    ) -> None:
        self._authorizer = authorizer
        self._catalog = catalog
        self._placement = placement
        self._states = states
        self._own = own_cluster

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        return {
            "link.announce": Method(Announcement, self.announce, on_stream(ADMIN, "stream")),
            "home.cede": Method(Demotion, self.demote, On(ADMIN, "the topics `topic_ids`", self._ceded)),
        }

    async def _ceded(self, params: Demotion, _caller: Caller) -> Targets:
        """The topics to be given away. A topic that does not exist gets the same answer as one the caller may not
        see."""
        rows = await self._catalog.query(lambda reader: reader.topics.by_ids(set(params.topic_ids)))
        return [
            Target(Kind.TOPIC, "" if (row := rows.get(each)) is None else row.full_name, f"the topic {each.hex()}")
            for each in dict.fromkeys(params.topic_ids)
        ]

    # --- announcements

    async def announce(self, params: Announcement) -> dict[str, object]:
        """Record higher homes, and have their topics copied here; returns one answer for each, in order."""
        check_call(params)
        check_stream(params.source_stream or params.stream)
        own = self._own
        if params.cluster == own:
            raise KafkaError(
                Code.INVALID_REQUEST, "this cluster received its own announcement: one of its links leads to itself"
            )
        peers = await self._peers(params) if self._authorizer.is_on else None
        rows = await self._catalog.query(lambda reader: reader.topics.by_ids({item.topic_id for item in params.items}))
        refused = {
            at: fault
            for at, item in enumerate(params.items)
            if (fault := self._fault(params.stream, rows.get(item.topic_id), item)) is not None
        }
        accepted = [item for at, item in enumerate(params.items) if at not in refused]
        # Also those newly at home here, since records of the former home are still to be copied.
        followed = [
            rows[item.topic_id].name
            for item in accepted
            if item.home[1] != own or home_of(rows[item.topic_id], self._own) < Home(*item.home)
        ]
        if followed and (params.bootstrap or peers):
            await self._follow(params, followed, peers)
        refused |= await self._grow_first(params, rows, refused)
        accepted = [item for at, item in enumerate(params.items) if at not in refused]
        homes = [
            HomeChange(
                item.topic_id,
                *item.home,
                # Also for partitions that do not exist here yet: the topic may grow before its home changes.
                {
                    index: [(counter, cluster, Offset(start)) for counter, cluster, start in starts]
                    for index, starts in item.lists.items()
                },
            )
            for item in accepted
        ]
        codes = iter(await submit_within(self._catalog, SetHome(items=homes), timeout_ms=0) if homes else ())
        answers = []
        for at in range(len(params.items)):
            error = refused.get(at) or _of_code(next(codes))
            answers.append(
                {"error": int(error.code), "message": str(error)} if error else {"error": 0, "message": None}
            )
        return {"items": answers}

    def _fault(self, stream: str, row: TopicRow | None, item: Announced) -> KafkaError | None:
        """Why a home is not recorded; None if it can be, or is already."""
        if row is None or row.stream != stream:
            return KafkaError(Code.UNKNOWN_TOPIC_ID, f"stream {stream} has no topic of the id {item.topic_id.hex()}")
        origin, home = row.origin or self._own, home_of(row, self._own)
        if item.origin != origin:
            return KafkaError(Code.INVALID_REQUEST, f"{row.full_name} began in cluster {origin}, not in {item.origin}")
        if Home(*item.home) < home:
            return KafkaError(
                Code.FENCED_LEADER_EPOCH, f"{row.full_name} has a higher home here: {home.counter} {home.cluster}"
            )
        for index, starts in item.lists.items():
            if any(one[:2] >= other[:2] or one[2] > other[2] for one, other in itertools.pairwise(starts)) or any(
                start[:2] > item.home for start in starts
            ):
                return KafkaError(
                    Code.INVALID_REQUEST,
                    f"the history of {row.full_name} partition {index} does not lead up to its home",
                )
        return None

    async def _grow_first(
        self, params: Announcement, rows: Mapping[bytes, TopicRow], refused: Collection[int]
    ) -> dict[int, KafkaError]:
        """Add a home's missing partitions to topics before the home is recorded: a cluster that learns of the home from
        this one would think that the home lacks these partitions. Returns, by index of the item, why a topic could not
        grow. The new partitions begin as in links/topics/topic_apply.py."""
        faults: dict[int, KafkaError] = {}
        for at, item in enumerate(params.items):
            row, count = rows.get(item.topic_id), len(item.lists)
            if at in refused or row is None or count <= row.partitions or item.lists.keys() != set(range(count)):
                continue
            known = home_of(row, self._own)
            if known == item.home:
                continue
            stream = await self._catalog.query(lambda reader, row=row: reader.streams.at(row.stream))  # type: ignore[misc]
            histories = None
            if known.counter and known.cluster != self._own:
                histories = [
                    (index, *start[:2], Offset(start[2]))
                    for index in range(row.partitions, count)
                    for start in item.lists[index]
                    if start[:2] <= known
                ]
            command = create_partitions_command(
                self._placement,
                row,
                count=count,
                volume="" if stream is None else stream.policy.volume,
                histories=histories,
                home=known,
            )
            try:
                outcome = await submit_within(self._catalog, command, timeout_ms=0)
            except KafkaError as error:
                faults[at] = error
                continue
            if outcome.code is not Code.NONE:
                faults[at] = KafkaError(outcome.code, outcome.message)
        return faults

    async def _peers(self, params: Announcement) -> Sequence[LinkRow]:
        """The links of this stream that pull from the announcing cluster: while security is on, only announcements from
        such clusters count. Raises KafkaError if there are none."""
        links = await self._catalog.query(lambda reader: reader.links.all(params.stream))
        source = (params.cluster, params.source_stream or params.stream)
        found = [each for each in links if (each.config.source_cluster, each.config.source_stream) == source]
        if not found:
            raise KafkaError(
                Code.POLICY_VIOLATION,
                f"cluster {params.cluster} is no peer of stream {params.stream}: while security is on, its "
                f"announcements count only once a link here pulls {params.stream} from it (`headrace link create`, "
                "with credentials for it)",
            )
        return found

    async def _follow(self, params: Announcement, topics: Collection[str], peers: Sequence[LinkRow] | None) -> None:
        """Ensure that a link of this stream pulls these topics from the announcing cluster. `peers`: links that pull
        from it already, whose addresses and credentials the new one gets; None: security is off."""
        links = await self._catalog.query(lambda reader: reader.links.all())
        source_stream = params.source_stream or params.stream
        present = [link for link in links if _pulls(link, params, source_stream)]
        topics = [name for name in topics if not any(matches(link.config.topics, name) for link in present)]
        if not topics:
            return
        back = next((link for link in present if link.name.startswith(f"back-{params.cluster}")), None)
        if back is None:
            names = {link.name for link in links}
            name = f"back-{params.cluster}"
            number = 1
            while name in names:  # taken by a link of another stream
                number += 1
                name = f"back-{params.cluster}-{number}"
            config = LinkConfig(
                source=list(params.bootstrap),
                source_stream=source_stream,
                topics=_patterns(topics),
                source_cluster=params.cluster,
            )
            if peers:
                known = peers[0].config
                config = msgspec.structs.replace(config, source=known.source, credentials=known.credentials)
            command = PutLink(name=name, stream=params.stream, config=config, now=now(), create=True)
            log.info(
                "created a link that pulls topics from their new home",
                link=name,
                stream=params.stream,
                source=params.cluster,
            )
        else:
            config = msgspec.structs.replace(back.config, topics=_patterns([*back.config.topics, *topics]))
            command = PutLink(name=back.name, stream=params.stream, config=config, now=now(), create=False)
        await submit_within(self._catalog, command, timeout_ms=0)

    # --- demotions

    async def demote(self, params: Demotion) -> dict[str, object]:
        """Give the homes of topics to another cluster; returns for each the new home and where its partitions end."""
        check_version(params)
        own = self._own
        if params.to == own:
            raise KafkaError(Code.INVALID_REQUEST, f"cluster {own} cannot give homes to itself")
        ids = list(dict.fromkeys(params.topic_ids))
        homes = await self._catalog.query(lambda reader: read_homes(reader, ids))
        rows = {row.topic_id: row for row in homes.rows.values()}
        behind = await self._behind(homes)
        faults: dict[bytes, KafkaError] = {}
        changes: list[HomeChange] = []
        for topic_id in ids:
            row = rows.get(topic_id)
            if row is None:
                faults[topic_id] = KafkaError(Code.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id.hex()}")
                continue
            home = home_of(row, self._own)
            if home.cluster == params.to and home.counter > 0:
                continue  # a repeated call
            if home.cluster != own:
                faults[topic_id] = KafkaError(
                    Code.POLICY_VIOLATION, f"{row.full_name} is at home in cluster {home.cluster}, not here: ask there"
                )
            elif row.number in behind:
                faults[topic_id] = KafkaError(
                    Code.LEADER_NOT_AVAILABLE,
                    f"{row.full_name} has just moved here, and is not complete yet; try again",
                )
            else:
                changes.append(HomeChange(topic_id, *home.given_to(params.to)))
        if changes:
            log.info("giving homes of topics to another cluster", topics=len(changes), to=params.to)
            for change, code in zip(
                changes, await submit_within(self._catalog, SetHome(items=changes), timeout_ms=0), strict=True
            ):
                if code is not Code.NONE:
                    faults[change.topic_id] = KafkaError(code, "its home has changed meanwhile; try again")
        settled = await self._settled([topic_id for topic_id in ids if topic_id not in faults], params.to)
        return {"topics": [_demoted(faults.get(each), settled.get(each)) for each in params.topic_ids]}

    async def _behind(self, homes: Homes) -> set[int]:
        """Topics, by number, that moved here and still lack records of their former homes."""
        own = self._own
        found: set[int] = set()
        starts: dict[tuple[bytes, int], int] = {}
        for row in homes.rows.values():
            home = home_of(row, self._own)
            if home.cluster != own or home.counter == 0:
                continue
            for index in range(row.partitions):
                place = (row.number, index)
                if not is_settled_for(home, homes.settled.get(place)):
                    found.add(row.number)
                    break
                start = next((each.offset for each in homes.histories.get(place, ()) if each[:2] == home), 0)
                if start:
                    starts[row.topic_id, index] = start
        reached = await self._states.ends(starts)
        numbers = {row.topic_id: row.number for row in homes.rows.values()}
        return found | {numbers[key[0]] for key, start in starts.items() if reached.get(key, -1) < start}

    async def _settled(self, ids: Collection[bytes], to: str) -> dict[bytes, tuple[Home, Sequence[int]]]:
        """By topic id, the new home and where its partitions end, of the topics settled within `APPLY_WAIT_S`.

        Each node applies the home to the partitions that it leads when it learns of it.
        """
        found: dict[bytes, tuple[Home, Sequence[int]]] = {}
        left = list(ids)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + APPLY_WAIT_S
        while left:
            homes = await self._catalog.query(partial(_read_homes, left))
            found |= {row.topic_id: each for row in homes.rows.values() if (each := _ends(row, homes, to)) is not None}
            left = [topic_id for topic_id in left if topic_id not in found]
            if not left or loop.time() >= deadline:
                break
            await asyncio.sleep(LOOK_S)
        return found


def _of_code(code: Code) -> KafkaError | None:
    return None if code is Code.NONE else KafkaError(code, f"the catalog refuses this home: {code.name}")


def _patterns(topics: Collection[str]) -> list[str]:
    found = list(dict.fromkeys(topics))
    return found if len(found) <= MAX_PATTERNS else ["*"]


def _pulls(link: LinkRow, params: Announcement, source_stream: str) -> bool:
    """Whether a link pulls the stream from the announcing cluster. While the cluster id of its source is unknown, the
    addresses decide."""
    config = link.config
    return (
        link.stream == params.stream
        and config.source_stream == source_stream
        and (
            config.source_cluster == params.cluster
            if config.source_cluster
            else bool(set(config.source) & set(params.bootstrap))
        )
    )


def _demoted(fault: KafkaError | None, settled: tuple[Home, Sequence[int]] | None) -> Mapping[str, object]:
    if fault is None and settled is None:
        fault = KafkaError(
            Code.LEADER_NOT_AVAILABLE,
            "its home has been given away, but not all of its partitions have applied that yet; ask again",
        )
    if fault is not None:
        return {"error": int(fault.code), "message": str(fault)}
    assert settled is not None
    return {"error": 0, "message": None, "home": settled[0], "ends": settled[1]}


def _read_homes(ids: Sequence[bytes], reader: Reader) -> Homes:
    return read_homes(reader, ids)


def _ends(row: TopicRow, homes: Homes, to: str) -> tuple[Home, Sequence[int]] | None:
    """A topic's home, and the offsets from which on its partitions belong to it; None if not all are settled for it."""
    home = row.home
    if home is None or home.cluster != to:
        return None
    found = []
    for index in range(row.partitions):
        place = (row.number, index)
        start = next((each.offset for each in homes.histories.get(place, ()) if each[:2] == home), None)
        if homes.settled.get(place) != home or start is None:
            return None
        found.append(start)
    return home, found
