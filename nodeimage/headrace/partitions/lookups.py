"""Steps that the admin APIs share: commands with a time limit, look-ups of many topics, and yielding to the loop."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import Millis, Offset
from headrace.catalog.catalog import Catalog
from headrace.catalog.command import CatalogCommand
from headrace.catalog.commands import encode
from headrace.catalog.names import TopicName, split
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.reader import Reader
from headrace.catalog.rows import StreamRow, TopicRow
from headrace.catalog.topics import CreatePartitions
from headrace.partitions.caller import Caller
from headrace.partitions.cluster_client import ClusterClient
from headrace.partitions.partition import Partition
from headrace.partitions.partitions import Partitions
from headrace.partitions.placement import Placement
from headrace.partitions.topics import Topic, Topics
from headrace.store.records import VolumeRecord

K = TypeVar("K")
T = TypeVar("T")
Item = TypeVar("Item")

TURN: Final = 256
"""Items of a long request that are handled before other connections get their turn on the loop."""


MAX_COMMAND_BYTES: Final = 8 * 1024 * 1024
"""Limit of one command's size: a command is one frame of the catalog's log, and is held in memory as a whole."""
COMMAND_ITEMS: Final = 500
"""Limit of items (topics, log starts, or the like) in one command, which delays the commands behind it by some 10 ms
while it is applied."""
MAX_WAIT_S: Final = 600.0
"""Limit of seconds to wait for a command to be committed and applied, whatever timeout the client sets."""


def batched(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split items into runs of COMMAND_ITEMS, in order."""
    for index in range(0, len(items), COMMAND_ITEMS):
        yield items[index : index + COMMAND_ITEMS]


def batched_groups(groups: Mapping[K, Sequence[T]]) -> Iterator[Mapping[K, Sequence[T]]]:
    """Split groups of items into runs of at most COMMAND_ITEMS items, in order, each group whole in one run."""
    run: dict[K, Sequence[T]] = {}
    size = 0
    for key, items in groups.items():
        if run and size + len(items) > COMMAND_ITEMS:
            yield run
            run, size = {}, 0
        run[key] = items
        size += len(items)
    if run:
        yield run


async def submit_within(catalog: Catalog, command: CatalogCommand[T], *, timeout_ms: int) -> T:
    """Submit a command and return its outcome. A timeout of 0 or less means MAX_WAIT_S, which also limits all others;
    a command usually takes one sync.

    Raises KafkaError as decided when the command is applied, POLICY_VIOLATION for a command over MAX_COMMAND_BYTES, or
    REQUEST_TIMED_OUT, after which the change may still happen.
    """
    if len(encode(command)) > MAX_COMMAND_BYTES:
        raise KafkaError(Code.POLICY_VIOLATION, "the request is too large; split it into several")
    try:
        wait_s = min(timeout_ms / 1000, MAX_WAIT_S) if timeout_ms > 0 else MAX_WAIT_S
        async with asyncio.timeout(wait_s):
            return await catalog.submit(command)
    except TimeoutError:
        raise KafkaError(Code.REQUEST_TIMED_OUT, f"not committed within {wait_s:g} s; it may still happen") from None


async def submit_groups(
    catalog: Catalog,
    groups: Mapping[K, Sequence[Item]],
    command: Callable[[list[Item]], CatalogCommand[T]],
    applied: Callable[[Iterable[K], list[Item], T], None],
) -> Mapping[K, HeadraceError]:
    """Submit the items of groups, each group whole in one command, until a command fails: later ones would fail too,
    each after its timeout. `applied` gets the groups of each command, their items and the outcome.

    Returns by group why it was not applied.
    """
    left = dict(groups)
    for run in batched_groups(groups):
        items = [item for of_group in run.values() for item in of_group]
        try:
            outcome = await submit_within(catalog, command(items), timeout_ms=0)  # as long as is allowed
        except HeadraceError as error:
            return dict.fromkeys(left, error)
        applied(run, items, outcome)
        for key in run:
            del left[key]
    return {}


async def topic_rows(
    catalog: Catalog,
    names: Sequence[str],
    *,
    default_stream: str,
    refused: Mapping[str, KafkaError] = MappingProxyType({}),
) -> list[TopicRow | KafkaError]:
    """The catalog's rows of the topics of these names, in order; an error for each illegal or unknown name. Creates no
    topic.

    `default_stream`: the stream of bare names. `refused`: names that are not looked up, and the errors to return for
    them.
    """
    parsed: list[TopicName | KafkaError] = []
    wanted: dict[str, set[str]] = {}
    for index, name in enumerate(names):
        if name in refused:
            parsed.append(refused[name])
            continue
        try:
            topic = split(name, default_stream)
        except KafkaError as error:
            parsed.append(error)
        else:
            parsed.append(topic)
            wanted.setdefault(topic.stream, set()).add(topic.topic)
        await yield_to_loop(index)
    full = {topic.full for topic in parsed if isinstance(topic, TopicName)}
    found = await look_up_all(catalog, full, lambda reader: rows_by_name(reader, wanted))
    return [
        topic
        if isinstance(topic, KafkaError)
        else found.get(topic.full) or KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        for name, topic in zip(names, parsed, strict=True)
    ]


async def stream_rows(catalog: Catalog, paths: Collection[str]) -> dict[str, StreamRow | KafkaError]:
    """By path, the rows of those streams that exist, or the error where that cannot be determined."""

    def look(reader: Reader) -> dict[str, StreamRow]:
        return {path: row for path in paths if (row := reader.streams.at(path)) is not None}

    return await look_up_all(catalog, paths, look)


async def look_up_all(
    catalog: Catalog, wanted: Collection[K], look: Callable[[Reader], Mapping[K, T]]
) -> dict[K, T | KafkaError]:
    """What `look` finds of `wanted`. Includes everything that was created before the call, on any node; an error takes
    the place of a key for which that cannot be guaranteed."""
    if not wanted:
        return {}
    found: Mapping[K, T] = await catalog.query(look)
    missing = set(wanted) - found.keys()
    if not missing:
        return dict(found)
    try:
        await catalog.catch_up()
    except HeadraceError as error:
        return {**found, **dict.fromkeys(missing, KafkaError(Code(error.code), str(error)))}
    return dict(await catalog.query(look))


async def look_up_one(catalog: Catalog, look: Callable[[Reader], T | None]) -> T | None:
    """As `look_up_all`, for one object; None if it does not exist. Raises HeadraceError if it cannot be determined."""
    found = await catalog.query(look)
    if found is None:
        await catalog.catch_up()
        found = await catalog.query(look)
    return found


def rows_by_name(reader: Reader, wanted: Mapping[str, Collection[str]]) -> dict[str, TopicRow]:
    """[blocking] The existing ones of these topics, by full name. `wanted`: topics' names by stream."""
    return {
        row.full_name: row for stream, names in wanted.items() for row in reader.topics.named(stream, names).values()
    }


async def leaders(
    wanted: Sequence[tuple[str, int]],
    caller: Caller,
    *,
    topics: Topics,
    partitions: Partitions,
    refused: Mapping[str, KafkaError] = MappingProxyType({}),
) -> list[Partition | KafkaError]:
    """The leaders' states of these partitions (topic's name, index), or the error for each that has none here.
    `refused`: as in `topic_rows`."""
    names = list(dict.fromkeys(name for name, _ in wanted if name not in refused))
    by_name = {**refused, **dict(zip(names, await topics.resolve(names, caller), strict=True))}
    found: list[Partition | KafkaError | None] = []
    known: list[tuple[Topic, int]] = []
    for name, index in wanted:
        topic = by_name[name]
        if isinstance(topic, KafkaError):
            found.append(topic)
        elif not 0 <= index < topic.partition_count:
            found.append(KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has no partition {index}"))
        else:
            known.append((topic, index))
            found.append(None)
    loaded = iter(await partitions.leaders(known))
    return [next(loaded) if each is None else each for each in found]


def create_partitions_command(
    placement: Placement,
    row: TopicRow,
    *,
    count: int,
    volume: str,
    histories: list[tuple[int, int, str, Offset]] | None = None,
    home: tuple[int, str] | None = None,
) -> CreatePartitions:
    """The command that increases a topic's partitions to `count`, with the new ones placed in containers of the volume.

    Raises KafkaError as `Placement.place`.
    """
    places = placement.place(count - row.partitions, volume)
    return CreatePartitions(
        topic_id=row.topic_id,
        count=count,
        container_ids=[container for container, _ in places],
        container_epochs=[epoch for _, epoch in places],
        now=now(),
        histories=histories,
        home=home,
    )


def replicas(cluster: ClusterClient, volume: str) -> int:
    """The number of replicas that a new topic's partitions get: that of the volume's open containers, 1 without any."""
    return max((len(record.replicas) for record in cluster.open_data(volume=volume)), default=1)


def volume_of(cluster: ClusterClient, policy: StreamPolicy) -> VolumeRecord:
    """The volume of a stream, as this node last saw it."""
    return cluster.view.volumes.get(policy.volume) or VolumeRecord(policy.volume)


async def yield_to_loop(index: int) -> None:
    """Yield to other tasks after every `TURN` items of a long loop."""
    if index % TURN == TURN - 1:
        await asyncio.sleep(0)


def refusal(error: HeadraceError) -> dict[str, object]:
    """An error as the fields of most of Kafka's answers."""
    return {"error_code": int(error.code), "error_message": str(error)}


def now() -> Millis:
    """The wall-clock time, for commands."""
    return Millis(int(time.time() * 1000))
