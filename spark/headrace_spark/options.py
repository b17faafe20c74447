"""The options of `format("headrace")`, parsed and checked together.

Defines names, defaults and error messages of options, and the relation between a topic's name within a stream and its
full name. Knows nothing about Spark's session or the network.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from headrace.base.errors import HeadraceError
from headrace.security.client_security import Security, of_security, security_of
from headrace.wire.compression import NAMES
from headrace_spark.errors import BadOption

EARLIEST: Final = -2
LATEST: Final = -1
"""Kafka's special values for the first (-2) and the next (-1) offset of a partition, in startingOffsets as in
ListOffsets.
"""
DEFAULT_STREAM: Final = "/default"
"""The stream of topics with a bare name in a Headrace cluster, unless its listener has another default."""
MIB = 1 << 20
LARGEST_INT32: Final = 2**31 - 1
LARGEST_INT64: Final = 2**63 - 1
LONGEST_S: Final = 1e9
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Partition = tuple[str, int]
"""(full topic name, partition number)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading starts or ends: a mark or a time for all partitions, or an offset for each.

    `each` holds offsets, EARLIEST or LATEST by partition; `mark` applies to partitions that `each` leaves out, or is
    None if every partition must be named. `time` is in milliseconds since 1970.
    """

    mark: Literal[-2, -1] | None = None
    time: int | None = None
    each: tuple[tuple[Partition, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the cluster, for reading and writing alike."""

    bootstrap: tuple[tuple[str, int], ...]
    timeout_s: float
    """Seconds for which a request is retried, with backoff, before the query fails."""
    security: Security = field(default_factory=Security)
    """Credentials and trusted authorities from options. No repr shows its secrets."""
    properties_file: str = ""
    """A file with the security settings instead, on the driver and on each executor; "" if there is none."""


@dataclass(frozen=True, slots=True)
class Naming:
    """Maps topic names in the query (bare names in a stream) to those in the cluster (full names)."""

    stream: str | None

    def full(self, topic: str) -> str:
        """Return the cluster's name of a topic: `/path:topic` for a bare name in a stream."""
        if self.stream is None or topic.startswith("/"):
            return topic
        return f"{self.stream}:{topic}"

    def shown(self, topic: str) -> str:
        """Return the name for the column `topic`: bare if the query names the stream."""
        if self.stream is not None and topic.startswith(f"{self.stream}:"):
            return topic[len(self.stream) + 1 :]
        return topic


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a query reads."""

    connection: Connection
    naming: Naming
    topics: tuple[str, ...]
    """Full names; empty with a pattern."""
    pattern: str | None
    starting: Place
    ending: Place
    max_bytes_per_trigger: int | None
    max_offsets_per_trigger: int | None
    include_headers: bool
    group: str | None
    fail_on_data_loss: bool
    read_committed: bool
    min_partitions: int
    bytes_per_task: int
    default_stream: str = DEFAULT_STREAM
    """The stream of bare names in the cluster's listing."""

    def matched(self, listed: str) -> str | None:
        """Return the name under which the pattern matches a topic of the cluster's listing; None if it does not match.

        The listing has topics of the default stream by their bare names. If no stream is given, the bare name is
        matched first, then the full name.
        """
        assert self.pattern is not None, "topics are named, or matched"
        full = listed if listed.startswith("/") else f"{self.default_stream}:{listed}"
        if self.naming.stream is None:
            return next((name for name in (listed, full) if re.fullmatch(self.pattern, name)), None)
        name = self.naming.shown(full)
        return full if name != full and re.fullmatch(self.pattern, name) else None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a query writes to."""

    connection: Connection
    naming: Naming
    topic: str | None
    """Full name, for rows without a column `topic`."""
    compression: str
    max_batch_bytes: int
    query: str | None
    """The name of a batch write, set by its author so that a repeated job writes once."""
    batch: int
    """The rising number of a named batch write within a series, such as those of foreachBatch."""


def connection_options(raw: Mapping[str, str]) -> Connection:
    """Return the options that say where the cluster is, and the credentials. Raises BadOption."""
    return _connection(_lowered(raw))


def read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read. Raises BadOption."""
    options = _lowered(raw)
    connection, naming = _connection(options), _naming(options)
    topics, pattern = options.get("topics"), options.get("topicpattern")
    if topics is None and pattern is None and naming.stream is not None:
        pattern = ".*"
    if (topics is None) == (pattern is None):
        raise BadOption(
            "give either the option topics (names, separated by commas) or topicPattern, or stream alone for all of "
            "its topics"
        )
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadOption(f"the option topicPattern is not a regular expression: {error}") from None
    names = tuple(sorted({naming.full(name.strip()) for name in (topics or "").split(",") if name.strip()}))
    if topics is not None and not names:
        raise BadOption("the option topics names no topic")
    max_bytes, max_offsets = _count(options, "maxBytesPerTrigger"), _count(options, "maxOffsetsPerTrigger")
    if max_bytes is not None and max_offsets is not None:
        raise BadOption("give either maxBytesPerTrigger or maxOffsetsPerTrigger, not both")
    isolation = options.get("isolation", "read_committed")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise BadOption(f"the option isolation is read_committed or read_uncommitted, not {isolation!r}")
    return ReadOptions(
        connection=connection,
        naming=naming,
        topics=names,
        pattern=pattern,
        starting=_place(options, "startingOffsets", naming=naming),
        ending=_place(options, "endingOffsets", naming=naming),
        max_bytes_per_trigger=max_bytes,
        max_offsets_per_trigger=max_offsets,
        include_headers=_flag(options, "includeHeaders", default=False),
        group=options.get("group"),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        read_committed=isolation == "read_committed",
        min_partitions=_count(options, "minPartitions") or os.cpu_count() or 1,
        bytes_per_task=_count(options, "maxBytesPerTask") or 128 * MIB,
        default_stream=_path(options.get("defaultstream"), "defaultStream") or DEFAULT_STREAM,
    )


def write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Return the options of a write. Raises BadOption."""
    options = _lowered(raw)
    naming = _naming(options)
    topic = options.get("topic") or options.get("topics")
    if topic is not None and "," in topic:
        raise BadOption("a write takes one topic as option; for several give each row a column topic")
    compression = options.get("compression", "none")
    if compression not in NAMES:
        raise BadOption(f"unknown compression {compression!r}: use one of {', '.join(NAMES)}")
    return WriteOptions(
        connection=_connection(options),
        naming=naming,
        topic=None if topic is None else naming.full(topic.strip()),
        compression=compression,
        max_batch_bytes=_count(options, "maxBatchBytes") or 64 * MIB,
        query=options.get("queryname"),
        batch=_batch(options),
    )


def _batch(options: Mapping[str, str]) -> int:
    text = options.get("batchid")
    if text is None:
        return 0
    number = _number(text)
    if number is None or number > LARGEST_INT32 or not options.get("queryname"):
        raise BadOption(f"the option batchId is a number up to {LARGEST_INT32}, and goes with queryName")
    return number


def _lowered(raw: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in raw.items()}


def _connection(options: Mapping[str, str]) -> Connection:
    text = options.get("bootstrap") or options.get("kafka.bootstrap.servers")
    if not text:
        raise BadOption("the option bootstrap is missing: give host:port of one node or more, separated by commas")
    addresses = []
    for part in text.split(","):
        host, _, port = part.strip().rpartition(":")
        number = _number(port)
        if not host or number is None or not 0 < number < 65_536:
            raise BadOption(f"the option bootstrap is host:port,host:port, not {text!r}")
        addresses.append((host.strip("[]"), number))
    seconds = options.get("timeout", "60")
    try:
        timeout_s = float(seconds.removesuffix("s"))
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s <= LONGEST_S:
        raise BadOption(f"the option timeout is a number of seconds, not {seconds!r}")
    security, file = _security(options), options.get("propertiesfile", "")
    if file and security != Security():
        raise BadOption("the options propertiesFile and kafka.security.protocol exclude each other")
    return Connection(bootstrap=tuple(addresses), timeout_s=timeout_s, security=security, properties_file=file)


def _security(options: Mapping[str, str]) -> Security:
    """Return the security settings from options named like those of Spark's own connector, `kafka.` before the names of
    Kafka's clients. Raises BadOption.
    """
    named = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    try:
        return security_of(of_security(named))
    except HeadraceError as error:
        raise BadOption(f"the options kafka.security, kafka.sasl and kafka.ssl: {error}") from None


def _naming(options: Mapping[str, str]) -> Naming:
    return Naming(_path(options.get("stream"), "stream"))


def _path(stream: str | None, name: str) -> str | None:
    """Return the path in the option `name`; None if it is not given."""
    if stream and (not stream.startswith("/") or stream.endswith("/") or ":" in stream):
        raise BadOption(f"the option {name} is a path such as /factory/sensors, not {stream!r}")
    return stream or None


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise BadOption(f"the option {name} is true or false, not {text!r}")
    return text == "true"


_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def _count(options: Mapping[str, str], name: str) -> int | None:
    """Return a positive number, with an optional unit in Spark's form (64m, 1g)."""
    text = options.get(name.lower())
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]+)\s*([a-z]*)\s*", text.lower())
    number = _number(match[1]) if match is not None and match[2] in _UNITS else None
    count = 0 if match is None or number is None else number * _UNITS[match[2]]
    if not 0 < count <= LARGEST_INT64:
        raise BadOption(f"the option {name} is a positive number such as 1000 or 64m, not {text!r}")
    return count


def _number(text: str) -> int | None:
    """Return a number of ASCII digits that fits into 64 bits; None for any other text."""
    if not re.fullmatch(r"0*[0-9]{1,19}", text) or int(text[-20:]) > LARGEST_INT64:
        return None
    return int(text[-20:])


def _place(options: Mapping[str, str], name: str, *, naming: Naming) -> Place:
    """Parse earliest, latest, milliseconds since 1970, an ISO 8601 time, or {"topic": {"0": offset}} as JSON."""
    starting = name == "startingOffsets"
    text = options.get(name.lower(), "earliest" if starting else "latest").strip()
    if text.lower() in ("earliest", "latest"):
        if text.lower() == "earliest" and not starting:
            raise BadOption("the option endingOffsets cannot be earliest")
        return Place(mark=EARLIEST if text.lower() == "earliest" else LATEST)
    if (millis := _number(text)) is not None:
        return Place(time=millis)
    if text.startswith("{"):
        return _each(text, name, naming=naming)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"the option {name} is earliest, latest, a time (2026-01-31T12:00:00Z or milliseconds since 1970) "
            f'or {{"topic": {{"0": offset}}}}, not {text!r}'
        ) from None
    since = when.replace(tzinfo=UTC) - EPOCH - (when.utcoffset() or timedelta(0))
    if since < timedelta(0):  # negative times are special values in Kafka's protocol
        raise BadOption(f"the option {name} is a time before 1970, which cannot be looked up; use earliest")
    # Rounded up: records of the millisecond itself may be earlier.
    return Place(time=-(-since // timedelta(milliseconds=1)))


def _each(text: str, name: str, *, naming: Naming) -> Place:
    starting = name == "startingOffsets"
    try:
        topics = json.loads(text)
        each = {
            (naming.full(topic), _whole(partition)): _whole(offset)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise BadOption(f'the option {name} is not JSON of the form {{"topic": {{"0": offset}}}}: {error}') from None
    lowest = EARLIEST if starting else LATEST
    for (topic, partition), offset in each.items():
        if not 0 <= partition <= LARGEST_INT32 or offset > LARGEST_INT64:
            raise BadOption(f"the option {name} gives {offset} for {topic}/{partition}, which no partition can have")
        if offset < lowest:
            raise BadOption(f"the option {name} gives {offset} for {topic}/{partition}; use an offset or {lowest}")
    return Place(mark=EARLIEST if starting else LATEST, each=tuple(sorted(each.items())))


def _whole(given: object) -> int:
    """Return a whole number, given in JSON as number or as text. Raises ValueError."""
    if isinstance(given, str) and re.fullmatch(r"-?[0-9]{1,19}", given):
        return int(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise ValueError(f"{given!r} is not a whole number")
