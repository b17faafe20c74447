"""The stored form of a group, from which a restarted node continues with the same generation and assignments.

    GroupSnapshot = group id, generation, protocol type, protocol, leader, [StoredMember]
    StoredMember  = member id, instance id, client id and host, timeouts, protocols with metadata, assignment,
                    default stream

To the catalog, the members are one opaque MessagePack value of arrays without field names: a field may be added at the
end with a default, but never removed or moved.
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
    """A group whose generation is complete (with members), or that is empty (without)."""

    group_id: str
    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    members: tuple[StoredMember, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[StoredMember, ...])


def encode_members(members: tuple[StoredMember, ...]) -> bytes:
    """The members as the catalog stores them."""
    return _encoder.encode(members)


def decode_members(raw: bytes) -> tuple[StoredMember, ...]:
    """The members from their stored form. Raises msgspec.DecodeError (ValidationError) for bytes that are not
    members."""
    return _decoder.decode(raw) if raw else ()
