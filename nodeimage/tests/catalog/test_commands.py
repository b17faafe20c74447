import msgspec
import pytest

from headrace.base.errors import NewerFormat
from headrace.base.ids import Millis
from headrace.catalog.command import CatalogCommand
from headrace.catalog.commands import COMMANDS, decode, encode
from headrace.catalog.groups import DeleteGroups
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream


def test_a_command_is_read_as_it_was_written() -> None:
    command = CreateStream("/s", StreamPolicy(ttl_ms=5, auto_create=False), Millis(7))
    assert decode(encode(command)) == command
    assert decode(memoryview(encode(DeleteGroups(["g"])))) == DeleteGroups(["g"])


def test_a_command_of_a_later_version_is_refused_and_not_skipped() -> None:
    with pytest.raises(NewerFormat, match="unknown to this version"):
        decode(msgspec.msgpack.encode({"type": "MoveStream", "path": "/s"}))


def test_fields_of_a_later_version_are_passed_over() -> None:
    later = msgspec.msgpack.encode({"type": "DeleteGroups", "groups": ["g"], "why": "idle"})
    assert decode(later) == DeleteGroups(["g"])


def test_a_policy_of_an_earlier_version_has_the_volume_that_there_was() -> None:
    earlier = {"type": "CreateStream", "path": "/s", "policy": {"ttl_ms": 5}, "now": 7}
    assert decode(msgspec.msgpack.encode(earlier)) == CreateStream("/s", StreamPolicy(ttl_ms=5), Millis(7))
    assert StreamPolicy().volume == "default"


def test_bytes_that_are_no_command_are_refused() -> None:
    for payload in (b"", b"\xff\xff", b"{}"):
        with pytest.raises(NewerFormat):
            decode(payload)


def test_the_commands_of_every_family_are_found() -> None:
    assert set(COMMANDS.values()) == set(CatalogCommand.__subclasses__())
    renamed = {name: command.__name__ for name, command in COMMANDS.items() if command.__name__ != name}
    assert renamed == {
        "CommitCursors": "CommitOffsets",
        "CopyCursors": "CopyOffsets",
        "DeleteCursors": "DeleteOffsets",
        "ExpireCursors": "ExpireOffsets",
        "ExpireSomeCursors": "ExpireSomeOffsets",
    }
