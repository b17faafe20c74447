"""Kafka's APIs for consumer groups: translate requests into calls of the group service, and its results into answers.

Decides nothing about groups itself (`coordination` does). Committed offsets are in `committed_offsets`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.ids import NodeId
from headrace.coordination.messages import Departure, GroupView, Join, JoinResult, Sync, SyncResult
from headrace.coordination.messages import Protocol as Offered
from headrace.coordination.service import GroupService
from headrace.coordination.takeover import Coordination
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.authorized_operations import NOT_ASKED
from headrace.kafka.common_refusals import NO_TRANSACTIONS, check_group_id
from headrace.kafka.connection import Connection
from headrace.partitions.cluster_layout import Layout
from headrace.security.access_rules import Kind
from headrace.security.kafka_acls import AclOperation
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.generic_codec import field

log = structlog.get_logger(__name__)

_GROUP, _TRANSACTION = 0, 1
MAX_REBALANCE_MS: Final = 86_400_000
"""The longest rebalance timeout, in milliseconds. Clients may request 24 days, and some do because a poll may take any
time; the group would wait that long for one member."""
_CLASSIC: Final = "classic"
_MAX_LOGGED: Final = 249
"""Characters of a group id in a log line; Kafka limits an id only by the size of the request."""


class GroupApis:
    """Answers the APIs for membership of consumer groups, and for listing, describing and deleting groups."""

    def __init__(self, *, layout: Layout, coordination: Coordination, authorization: Authorization) -> None:
        self._authorization = authorization
        self._layout = layout
        self._coordination = coordination

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (
            Api(ApiKey.FIND_COORDINATOR, Versions(0, 4), self.find_coordinator),
            Api(ApiKey.JOIN_GROUP, Versions(0, 9), self.join_group),
            Api(ApiKey.SYNC_GROUP, Versions(0, 5), self.sync_group),
            Api(ApiKey.HEARTBEAT, Versions(0, 4), self.heartbeat),
            Api(ApiKey.LEAVE_GROUP, Versions(0, 5), self.leave_group),
            Api(ApiKey.LIST_GROUPS, Versions(0, 5), self.list_groups, has_long_answers=True),
            Api(ApiKey.DESCRIBE_GROUPS, Versions(0, 5), self.describe_groups),
            Api(ApiKey.DELETE_GROUPS, Versions(0, 2), self.delete_groups),
        )

    # --- the coordinator

    async def find_coordinator(self, request: Any, session: Connection) -> Mapping[str, object]:
        """FindCoordinator: the node that leads the catalog, for every group."""
        key_type = field(request, "key_type", _GROUP)
        several = field(request, "coordinator_keys", None)
        keys = [request.key] if several is None else several
        refused = {key: error for key in keys if (error := self._find_refusal(session, key_type, key)) is not None}
        may = len(refused) < len(keys)
        node_id = await self._coordination.find() if key_type == _GROUP and may else None
        found = [
            _no_coordinator(key, refused[key].code, str(refused[key]))
            if key in refused
            else self._coordinator(session, key, key_type, node_id)
            for key in keys
        ]
        return found[0] if several is None else {"coordinators": found}

    def _find_refusal(self, session: Connection, key_type: int, key: str) -> KafkaError | None:
        kind = {_GROUP: Kind.GROUP, _TRANSACTION: Kind.TRANSACTIONAL_ID}.get(key_type)
        try:
            if kind is not None:
                self._authorization.check(session, AclOperation.DESCRIBE, kind, key, api="FindCoordinator")
        except KafkaError as error:
            return error
        return None

    def _coordinator(self, session: Connection, key: str, key_type: int, node_id: NodeId | None) -> dict[str, object]:
        if key_type == _GROUP:
            address = None if node_id is None else self._layout.address(node_id, session.listener)
            if address is not None:
                return {
                    "key": key,
                    "node_id": address.node_id,
                    "host": address.host,
                    "port": address.port,
                    "error_code": int(Code.NONE),
                    "error_message": None,
                }
            code, message = Code.COORDINATOR_NOT_AVAILABLE, "no node leads the catalog at the moment"
        elif key_type == _TRANSACTION:
            # All clients treat this code as final, and show its message if they show any. Java drops the message
            # of TRANSACTIONAL_ID_AUTHORIZATION_FAILED, and librdkafka retries forever after other codes.
            code, message = Code.CLUSTER_AUTHORIZATION_FAILED, NO_TRANSACTIONS
        else:
            code, message = Code.INVALID_REQUEST, f"there are no coordinators of type {key_type}"
        return _no_coordinator(key, code, message)

    # --- membership

    def _check_member(self, session: Connection, group_id: str, *, api: str) -> None:
        """Raises KafkaError for the empty id, or if the client may not be a member of the group."""
        check_group_id(group_id)
        self._authorization.check(session, AclOperation.READ, Kind.GROUP, group_id, api=api)

    async def join_group(self, request: Any, session: Connection) -> Mapping[str, object]:
        """JoinGroup. Version 0 has no rebalance timeout and uses the session timeout instead."""
        version = request.__version__
        session_timeout = field(request, "session_timeout")
        instance_id = field(request, "group_instance_id", None)
        join = Join(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=instance_id,
            client_id=session.client_id or "",
            client_host="/" + session.peer.rpartition(":")[0],
            session_timeout_ms=session_timeout,
            rebalance_timeout_ms=min(max(field(request, "rebalance_timeout", session_timeout), 1), MAX_REBALANCE_MS),
            protocol_type=request.protocol_type,
            protocols=tuple(Offered(each.name, bytes(each.metadata)) for each in request.protocols),
            requires_known_member=version >= 4 and instance_id is None,
            can_skip_assignment=version >= 9,
            reason=field(request, "reason", None),
            default_stream=session.default_stream,
        )
        try:
            self._check_member(session, join.group_id, api="JoinGroup")
            result = await (await self._coordination.service()).join(join)
            self._check_member(session, join.group_id, api="JoinGroup")  # it may have waited for long
        except HeadraceError as error:
            result = JoinResult(code=error.code, member_id=join.member_id)
        if result.other_stream is not None:
            _log_other_names(session, join, result.other_stream)
        return {
            "error_code": int(result.code),
            "generation_id": result.generation,
            "protocol_type": result.protocol_type,
            "protocol_name": result.protocol_name or ("" if version < 7 else None),
            "leader": result.leader,
            "skip_assignment": result.skip_assignment,
            "member_id": result.member_id,
            "members": [
                {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
                for member in result.members
            ],
        }

    async def sync_group(self, request: Any, session: Connection) -> Mapping[str, object]:
        """SyncGroup."""
        sync = Sync(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=field(request, "group_instance_id", None),
            protocol_type=field(request, "protocol_type", None),
            protocol_name=field(request, "protocol_name", None),
            assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
        )
        try:
            self._check_member(session, sync.group_id, api="SyncGroup")
            if request.__version__ >= 5 and (sync.protocol_type is None or sync.protocol_name is None):
                raise KafkaError(Code.INCONSISTENT_GROUP_PROTOCOL, "SyncGroup 5 names the protocol")  # KIP-559
            result = await (await self._coordination.service()).sync(sync)
            self._check_member(session, sync.group_id, api="SyncGroup")  # it may have waited for long
        except HeadraceError as error:
            # As in Kafka: not every client handles COORDINATOR_LOAD_IN_PROGRESS here, but all rejoin after
            # REBALANCE_IN_PROGRESS.
            loads = error.code is Code.COORDINATOR_LOAD_IN_PROGRESS
            result = SyncResult(code=Code.REBALANCE_IN_PROGRESS if loads else error.code)
        return {
            "error_code": int(result.code),
            "protocol_type": result.protocol_type,
            "protocol_name": result.protocol_name,
            "assignment": result.assignment,
        }

    async def heartbeat(self, request: Any, session: Connection) -> Mapping[str, object]:
        """Heartbeat."""
        try:
            self._check_member(session, request.group_id, api="Heartbeat")
            groups = await self._coordination.service()
            code = await groups.heartbeat(
                request.group_id, request.member_id, field(request, "group_instance_id", None), request.generation_id
            )
        except HeadraceError as error:
            # As in Kafka: a loading coordinator regards nobody as gone, and not every client handles its code here.
            code = Code.NONE if error.code is Code.COORDINATOR_LOAD_IN_PROGRESS else error.code
        return {"error_code": int(code)}

    async def leave_group(self, request: Any, session: Connection) -> Mapping[str, object]:
        """LeaveGroup: one member, or a list of members from version 3 on."""
        members = field(request, "members", None)
        if members is None:
            departures = [Departure(request.member_id)]
        else:
            departures = [
                Departure(each.member_id, field(each, "group_instance_id", None), field(each, "reason", None))
                for each in members
            ]
        try:
            self._check_member(session, request.group_id, api="LeaveGroup")
            codes = await (await self._coordination.service()).leave(request.group_id, departures)
        except HeadraceError as error:
            return {"error_code": int(error.code), "members": []}
        return {
            "error_code": int(codes[0] if members is None else Code.NONE),
            "members": [
                {"member_id": each.member_id, "group_instance_id": each.instance_id, "error_code": int(code)}
                for each, code in zip(departures, codes, strict=True)
            ],
        }

    # --- administration

    async def list_groups(self, request: Any, session: Connection) -> Mapping[str, object]:
        """ListGroups: the groups that the client may describe, filtered by states and types. Clients send the request
        to every node; a node that is not the coordinator has no groups."""
        states = {state.lower() for state in field(request, "states_filter", ())}
        types = {each.lower() for each in field(request, "types_filter", ())}
        try:
            groups = [] if self._coordination.elsewhere else await (await self._coordination.service()).listing()
        except HeadraceError as error:
            return {"error_code": int(error.code), "groups": []}
        return {
            "error_code": int(Code.NONE),
            "groups": [
                {
                    "group_id": group_id,
                    "protocol_type": protocol_type,
                    "group_state": state.value,
                    "group_type": _CLASSIC,
                }
                for group_id, protocol_type, state in groups
                if (not states or state.value.lower() in states)
                and (not types or _CLASSIC in types)
                and self._authorization.sees(session, AclOperation.DESCRIBE, Kind.GROUP, group_id)
            ],
        }

    async def describe_groups(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DescribeGroups. A group that does not exist is Dead."""
        described: list[Mapping[str, object]] = []
        with_operations = field(request, "include_authorized_operations", False)
        groups: GroupService | HeadraceError | None = None
        for group_id in request.groups:
            try:
                self._authorization.check(session, AclOperation.DESCRIBE, Kind.GROUP, group_id, api="DescribeGroups")
                groups = groups or await self._service()
                if isinstance(groups, HeadraceError):
                    raise groups
                operations = (
                    self._authorization.operations(session, Kind.GROUP, group_id) if with_operations else NOT_ASKED
                )
                described.append(_described(await groups.describe(group_id), operations))
            except HeadraceError as error:
                described.append({"error_code": int(error.code), "group_id": group_id})
        return {"groups": described}

    async def _service(self) -> GroupService | HeadraceError:
        """The group service, or why there is none; waited for once per request, however many groups it names."""
        try:
            return await self._coordination.service()
        except HeadraceError as error:
            return error

    async def delete_groups(self, request: Any, session: Connection) -> Mapping[str, object]:
        """DeleteGroups: deletes groups without members, with their committed offsets."""
        asked = list(dict.fromkeys(request.groups_names))
        delete = AclOperation.DELETE
        names = [
            name for name in asked if self._authorization.may(session, delete, Kind.GROUP, name, api="DeleteGroups")
        ]
        found = dict.fromkeys(asked, Code.GROUP_AUTHORIZATION_FAILED)
        try:
            codes = await (await self._coordination.service()).delete(names) if names else []
            found.update(zip(names, codes, strict=True))
        except HeadraceError as error:
            found.update(dict.fromkeys(names, Code(error.code)))
        return {"results": [{"group_id": group_id, "error_code": int(code)} for group_id, code in found.items()]}


def _no_coordinator(key: str, code: Code, message: str) -> dict[str, object]:
    return {"key": key, "node_id": -1, "host": "", "port": -1, "error_code": int(code), "error_message": message}


def _described(view: GroupView, operations: int) -> dict[str, object]:
    return {
        "error_code": int(Code.NONE),
        "group_id": view.group_id,
        "group_state": view.state.value,
        "protocol_type": view.protocol_type,
        "protocol_data": view.protocol_name,
        "authorized_operations": operations,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in view.members
        ],
    }


def _log_other_names(session: Connection, join: Join, other_stream: str) -> None:
    """Log a member whose bare topic names mean other topics than those of its group: the code in the answer has other
    meanings too."""
    log.warning(
        "a member names other topics than its group",
        group=join.group_id[:_MAX_LOGGED],
        client=session.client_id,
        peer=session.peer,
        listener=session.listener,
        reason=f"its topic names without a stream mean topics of {join.default_stream} (the default of its listener), "
        f"and those of the group's other members mean topics of {other_stream}: let all members name the stream too, "
        "or stop the other members before this one joins",
    )
