"""How far consumer groups are behind: cursors against the ends of partitions.

Lag is Kafka's: the partition's high watermark less the cursor. Cursors and ends are of slightly different moments, so
a lag that would be negative is 0. A node that does not coordinate groups refuses with NOT_COORDINATOR.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.catalog.catalog import Catalog
from headrace.catalog.reader import Reader
from headrace.catalog.rows import CursorRow
from headrace.coordination.messages import GroupState
from headrace.coordination.takeover import Coordination
from headrace.partitions.admin_params import Methods, NoParams, Params
from headrace.partitions.partition_states import PartitionStates


class OneGroup(Params, frozen=True):
    group: str


TAKEN: Final = (OneGroup,)
_KNOWN: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Learnt by msgspec as this module is loaded; see admin_api."""

Ends = Mapping[tuple[bytes, int], int]


class GroupCalls:
    """The calls on consumer groups."""

    def __init__(self, *, catalog: Catalog, coordination: Coordination, states: PartitionStates) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._states = states

    def methods(self) -> Methods:
        """By name: what a method takes, and what runs it."""
        return {
            "groups.list": (NoParams, self._list),
            "groups.show": (OneGroup, self._show),
        }

    async def _list(self, params: NoParams) -> list[dict[str, object]]:
        """Every group in order of name, with its state and its lag over all partitions."""
        groups = sorted(await self._coordination.present.listing())
        cursors = await self._catalog.query(lambda reader: _cursors_of(reader, [name for name, _, _ in groups]))
        end_of = await self._states.ends((row.topic_id, row.partition) for rows in cursors.values() for row in rows)
        return [
            {
                "group": name,
                "state": state.value,
                "protocol_type": protocol_type,
                "partitions": len(cursors[name]),
                "lag": sum(_lag(row, end_of) for row in cursors[name]),
            }
            for name, protocol_type, state in groups
        ]

    async def _show(self, params: OneGroup) -> dict[str, object]:
        """One group: members, and its lag on each partition. Raises KafkaError (GROUP_ID_NOT_FOUND)."""
        group = params.group
        view = await self._coordination.present.describe(group)
        cursors = await self._catalog.query(lambda reader: reader.groups.cursors(group))
        if view.state is GroupState.DEAD and not cursors:
            raise KafkaError(
                Code.GROUP_ID_NOT_FOUND,
                f"there is no group {group[:100]!r}; `headrace groups list` shows those that exist",
            )
        end_of = await self._states.ends((row.topic_id, row.partition) for row in cursors)
        return {
            "group": group,
            "state": view.state.value,
            "protocol_type": view.protocol_type,
            "protocol": view.protocol_name,
            "lag": sum(_lag(row, end_of) for row in cursors),
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
                for row in cursors
            ],
        }


def _cursors_of(reader: Reader, groups: Sequence[str]) -> dict[str, list[CursorRow]]:
    """[blocking]"""
    return {group: reader.groups.cursors(group) for group in groups}


def _lag(cursor: CursorRow, end_of: Ends) -> int:
    return max(0, end_of.get((cursor.topic_id, cursor.partition), cursor.offset) - cursor.offset)
