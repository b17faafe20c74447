"""What the catalog keeps of a group, so that a restarted node goes on with the same generation and assignments.

    GroupSnapshot = group id, generation, protocol type, protocol, leader, [StoredMember]
    StoredMember  = member id, instance id, client id and host, timeouts, protocols with metadata, assignment,
                    default stream

The members are one opaque MessagePack value to the catalog, arrays without field names: a field may be added at the
end with a default, never removed or moved.
"""

import msgspec

from headrace.catalog.names import DEFAULT_STREAM


class StoredMember(msgspec.Struct, frozen=True, array_like=True):
    """A member of a complete generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes
    default_stream: str = DEFAULT_STREAM


class GroupSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A group whose generation is complete (members) or that is empty (none)."""

    group_id: str
    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    members: tuple[StoredMember, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[StoredMember, ...])


def encode_members(members: tuple[StoredMember, ...]) -> bytes:
    """The members as the catalog keeps them."""
    return _encoder.encode(members)


def decode_members(raw: bytes) -> tuple[StoredMember, ...]:
    """The members again. Raises msgspec.DecodeError (ValidationError) on bytes that are none."""
    return _decoder.decode(raw) if raw else ()
