"""The lag of consumer groups: committed offsets against the ends of partitions.

Lag is Kafka's: the partition's high watermark minus the committed offset. Committed offsets and ends are read at
slightly different moments, so a lag that would be negative is 0. A node that does not coordinate groups refuses with
NOT_COORDINATOR.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import CommittedOffsetRow
from headrace.coordination.messages import GroupState
from headrace.coordination.takeover import Coordination
from headrace.partitions.admin_params import Method, Methods, NoParams, Params
from headrace.partitions.admin_rights import ANY, Anybody, on_group
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.partitions.partition_states import PartitionStates
from headrace.security.access_rules import Kind


class OneGroup(Params, frozen=True):
    group: str


TAKEN: Final = (OneGroup,)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""

Ends = Mapping[tuple[bytes, int], int]


class GroupCalls:
    """The admin calls on consumer groups."""

    def __init__(
        self, *, catalog: Catalog, coordination: Coordination, states: PartitionStates, authorizer: Authorizer
    ) -> None:
        self._authorizer = authorizer
        self._catalog = catalog
        self._coordination = coordination
        self._states = states

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        listed = Anybody("lists the groups on which the caller has any permission")
        return {
            "groups.list": Method(NoParams, self._list, listed, of_caller=True),
            "groups.show": Method(OneGroup, self._show, on_group(ANY), of_caller=True),
        }

    async def _list(self, params: NoParams, caller: Caller) -> list[dict[str, object]]:
        """The groups that the caller may see, in order of name, with state and lag, which covers only the topics that
        the caller may see."""
        groups = sorted(
            each
            for each in await self._coordination.present.listing()
            if self._authorizer.sees(caller, ANY, Kind.GROUP, each[0])
        )
        found = await self._catalog.query(lambda reader: _committed_offsets_of(reader, [name for name, _, _ in groups]))
        committed_offsets = {name: self._seen(rows, caller) for name, rows in found.items()}
        end_of = await self._states.ends(
            (row.topic_id, row.partition) for rows in committed_offsets.values() for row in rows
        )
        return [
            {
                "group": name,
                "state": state.value,
                "protocol_type": protocol_type,
                "partitions": len(committed_offsets[name]),
                "lag": sum(_lag(row, end_of) for row in committed_offsets[name]),
            }
            for name, protocol_type, state in groups
        ]

    def _seen(self, rows: Sequence[CommittedOffsetRow], caller: Caller) -> list[CommittedOffsetRow]:
        """The committed offsets on topics that the caller may see."""
        return [row for row in rows if self._authorizer.sees(caller, ANY, Kind.TOPIC, f"{row.stream}:{row.name}")]

    async def _show(self, params: OneGroup, caller: Caller) -> dict[str, object]:
        """One group: its members, and its lag on each partition of the topics that the caller may see.

        Raises KafkaError (GROUP_ID_NOT_FOUND).
        """
        group = params.group
        view = await self._coordination.present.describe(group)
        committed_offsets = await self._catalog.query(lambda reader: reader.groups.committed_offsets(group))
        if view.state is GroupState.DEAD and not committed_offsets:
            raise KafkaError(
                Code.GROUP_ID_NOT_FOUND,
                f"there is no group {group[:100]!r}; `headrace groups list` shows those that exist",
            )
        committed_offsets = self._seen(committed_offsets, caller)
        end_of = await self._states.ends((row.topic_id, row.partition) for row in committed_offsets)
        return {
            "group": group,
            "state": view.state.value,
            "protocol_type": view.protocol_type,
            "protocol": view.protocol_name,
            "lag": sum(_lag(row, end_of) for row in committed_offsets),
            "members": [
                {
                    "member": member.member_id,
                    "client": member.client_id,
                    "host": member.client_host,
                    "instance": member.instance_id,
                }
                for member in view.members
            ],
            "partitions": [
                {
                    "topic": f"{row.stream}:{row.name}",
                    "partition": row.partition,
                    "cursor": row.offset,
                    "end": end_of.get((row.topic_id, row.partition)),
                    "lag": _lag(row, end_of),
                    "committed_ms": row.committed_at,
                }
                for row in committed_offsets
            ],
        }


def _committed_offsets_of(reader: Reader, groups: Sequence[str]) -> dict[str, list[CommittedOffsetRow]]:
    """[blocking] The committed offsets of these groups, by group."""
    return {group: reader.groups.committed_offsets(group) for group in groups}


def _lag(committed_offset: CommittedOffsetRow, end_of: Ends) -> int:
    return max(
        0,
        end_of.get((committed_offset.topic_id, committed_offset.partition), committed_offset.offset)
        - committed_offset.offset,
    )
