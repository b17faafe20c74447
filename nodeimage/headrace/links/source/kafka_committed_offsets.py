"""Consumer groups' committed offsets on an Apache Kafka cluster, by ListGroups on all nodes and OffsetFetch on the
coordinators.

Kafka does not report new commits, so all groups are scanned at a pace that bounds the cost. A group whose committed
offsets have another fingerprint than at the last scan is reported as changed as a whole (no topic id, partition -1).

Listing committed offsets fails while a coordinator is not ready, since its groups would otherwise be missed. A scan for
changes leaves out the groups of such a coordinator and reports them as changed once it is ready.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import structlog

from headrace.base.errors import Code, KafkaError, code_of
from headrace.base.ids import Millis, NodeId, Offset
from headrace.kafka_client.client import Client
from headrace.links.source.kafka_topics import MIN_SCAN_S, KafkaTopics, pace_s
from headrace.links.source.source import NOT_READY, CommittedOffsetKey, CommittedOffsetPage, SourceCommittedOffset
from headrace.wire.api_keys import ApiKey, Versions

log = structlog.get_logger()

UNKNOWN_TIME: Final = Millis(-1)
GROUPS: Final = 100
"""The maximum number of groups in one OffsetFetch request."""
_LIST_GROUPS: Final = Versions(0, 5)
_OFFSET_FETCH: Final = Versions(8, 9)
"""Versions of OffsetFetch; from version 8 on one request can name several groups."""


def whole_group(group: str) -> CommittedOffsetKey:
    """The key that means all committed offsets of a group."""
    return CommittedOffsetKey(group, b"", -1)


class KafkaCommittedOffsets:
    """The committed offsets on the topics of `topics`."""

    def __init__(self, client: Client, topics: KafkaTopics) -> None:
        self._client = client
        self._topics = topics
        self._coordinators: dict[str, NodeId] = {}
        self._fingerprints: dict[str, int] = {}
        self._refused: dict[str, Code] = {}
        """Why a group was refused, as last logged."""
        self._looked_at = float("-inf")
        self._seen = 0
        """How many committed offsets the last scan found."""

    async def page(self, *, after: CommittedOffsetKey | None, limit: int) -> CommittedOffsetPage:
        """As `Source.committed_offsets`: whole groups, until there are `limit` committed offsets. Raises KafkaError
        while a coordinator is not ready."""
        await self._topics.refresh_if_older(MIN_SCAN_S)
        if after is None or not self._coordinators:
            await self._find_groups()
        coordinators = self._coordinators  # `changed` may replace them meanwhile
        groups = sorted(group for group in coordinators if after is None or group > after.group)
        found: list[SourceCommittedOffset] = []
        for begin in range(0, len(groups), GROUPS):
            some = groups[begin : begin + GROUPS]
            found += await self._of_groups({group: coordinators[group] for group in some})
            if len(found) >= limit and begin + GROUPS < len(groups):
                return CommittedOffsetPage(found, whole_group(some[-1]))
        return CommittedOffsetPage(found, None)

    async def of_keys(self, keys: Sequence[CommittedOffsetKey]) -> Sequence[SourceCommittedOffset]:
        """As `Source.committed_offsets_of`; also takes keys of whole groups. Raises KafkaError while a coordinator is
        not ready."""
        await self._topics.refresh_if_older(MIN_SCAN_S)
        wanted = set(keys)
        groups = sorted({key.group for key in keys})
        if any(group not in self._coordinators for group in groups):
            await self._find_groups()
        known = {group: self._coordinators[group] for group in groups if group in self._coordinators}
        return [
            committed_offset
            for committed_offset in await self._of_groups(known)
            if committed_offset.key in wanted or whole_group(committed_offset.key.group) in wanted
        ]

    async def changed(self) -> list[CommittedOffsetKey]:
        """Keys of the groups whose committed offsets differ from those of the last scan; empty if a scan is not yet
        due.

        The first scan returns nothing: its caller begins by listing everything.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._looked_at + pace_s(self._seen):
            return []
        first = self._looked_at == float("-inf")
        await self._find_groups(require_all=False)
        seen: dict[str, int] = dict.fromkeys(self._coordinators, 0)
        committed_offsets = await self._of_groups(self._coordinators, require_all=False)
        for committed_offset in committed_offsets:
            # Summed, since their order is not defined.
            seen[committed_offset.key.group] += hash(
                (committed_offset.key, committed_offset.offset, committed_offset.metadata)
            )
        before, self._fingerprints = self._fingerprints, seen
        self._looked_at, self._seen = loop.time(), len(committed_offsets)
        return (
            []
            if first
            else [whole_group(group) for group, fingerprint in seen.items() if before.get(group) != fingerprint]
        )

    async def _find_groups(self, *, require_all: bool = True) -> None:
        """Find all groups and their coordinators. `require_all`: raise KafkaError if a node does not list its
        groups."""
        found: dict[str, NodeId] = {}
        for broker in await self._client.nodes():
            node = NodeId(broker.node_id)
            answer = await self._client.ask(node, ApiKey.LIST_GROUPS, _LIST_GROUPS, {"states_filter": []})
            code = code_of(answer.error_code)
            if code is Code.NONE:
                found.update((each.group_id, node) for each in answer.groups if each.protocol_type in ("", "consumer"))
            elif require_all:
                raise KafkaError(code, f"{self._client.name}: node {node} does not list its groups: {code.name}")
        self._coordinators = found

    async def _of_groups(
        self, groups: Mapping[str, NodeId], *, require_all: bool = True
    ) -> list[SourceCommittedOffset]:
        """The committed offsets of groups, given with their coordinators. `require_all`: raise KafkaError if one is not
        ready."""
        by_node: dict[NodeId, list[str]] = {}
        for group, node in groups.items():
            by_node.setdefault(node, []).append(group)
        found: list[SourceCommittedOffset] = []
        for node, here in by_node.items():
            for begin in range(0, len(here), GROUPS):
                request = {
                    "groups": [{"group_id": group, "topics": None} for group in here[begin : begin + GROUPS]],
                    "require_stable": False,
                }
                answer = await self._client.ask(node, ApiKey.OFFSET_FETCH, _OFFSET_FETCH, request)
                for group in answer.groups:
                    code = code_of(group.error_code)
                    if code is Code.NONE:
                        self._refused.pop(group.group_id, None)
                        found += self._committed_offsets(group)
                    elif code not in NOT_READY:
                        self._note_refused(group.group_id, code)
                    elif require_all:
                        self._coordinators = {}  # so that all are looked up again
                        raise KafkaError(code, f"{self._client.name}: group {group.group_id} is not ready: {code.name}")
        return sorted(found, key=lambda each: each.key)

    def _note_refused(self, group: str, code: Code) -> None:
        """Log, once for each reason, that a group's committed offsets cannot be read, and so are not copied."""
        if self._refused.get(group) is not code:
            self._refused[group] = code
            log.warning(
                "a group's committed offsets are not copied", source=self._client.name, group=group, reason=code.name
            )

    def _committed_offsets(self, group: Any) -> Iterable[SourceCommittedOffset]:
        for topic in group.topics:
            known = self._topics.by_name.get(topic.name)
            if known is None:
                continue
            for each in topic.partitions:
                if not each.error_code and each.committed_offset >= 0:
                    key = CommittedOffsetKey(group.group_id, known.topic_id, each.partition_index)
                    yield SourceCommittedOffset(key, Offset(each.committed_offset), each.metadata or "", UNKNOWN_TIME)
