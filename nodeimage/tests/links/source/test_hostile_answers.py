"""Answers that no sound source gives: they are refused before they reach the tables, or cost memory."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from headrace.base.addresses import parse_addresses
from headrace.kafka_client.client import Client
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links.source.headrace_source import HeadraceSource
from headrace.security.client_security import Security

ID = b"i" * 16
TOPIC: dict[str, Any] = {
    "name": "t",
    "topic_id": ID,
    "partitions": 1,
    "configs": {},
    "home": [0, "n"],
    "origin": "n",
    "leaders": [1],
}
MEETING: dict[str, Any] = {"home": [1, "n"], "origin": "n", "history": [[1, "n", 5]], "log_start": 0}


class Answering(Client):
    """A client whose server answers whatever the test says."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(parse_addresses(["127.0.0.1:1"]), security=Security())
        self._said = said

    async def admin(self, node: Any, method: str, params: Any, result: Any, **_: Any) -> Any:
        if method == "link.hello":
            return result.decode(
                msgspec.msgpack.encode({"versions": [1, 1], "cluster_id": "n", "nodes": [[1, "h", 1]], "policy": {}})
            )
        return result.decode(msgspec.msgpack.encode(self._said))


def asked(said: Mapping[str, Any], what: str) -> object:
    async def ask() -> object:
        source = HeadraceSource(Answering(said), "/s")
        match what:
            case "topics":
                return await source.topics(after=None, limit=10)
            case "meet":
                return await source.meet(1, [(ID, 0)])  # type: ignore[arg-type,list-item]
            case _:
                return await source.committed_offsets(after=None, limit=10)

    return asyncio.run(ask())


def test_sound_answers_are_read() -> None:
    assert asked({"topics": [TOPIC]}, "topics")
    assert asked({"partitions": [MEETING]}, "meet")
    assert asked({"cursors": [["g", ID, 0, (1 << 63) - 1, "", -1]]}, "cursors")


@pytest.mark.parametrize(
    "wrong",
    [
        {"partitions": 2_000_000_000, "leaders": []},
        {"partitions": 3},
        {"partitions": 0, "leaders": []},
        {"topic_id": b"short"},
        {"home": [1 << 63, "n"]},
        {"home": [-1, "n"]},
        {"origin": "n" * 1000},
    ],
)
def test_topics_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises((msgspec.DecodeError, SourceUnreachable)):
        asked({"topics": [TOPIC | wrong]}, "topics")


@pytest.mark.parametrize(
    "wrong",
    [
        {"history": [[1, "n", (1 << 63)]]},
        {"history": [[1, "n", -5]]},
        {"history": [[1 << 62, "n", 5]]},
        {"log_start": (1 << 63) - 1},
        {"high_watermark": 1 << 63},
    ],
)
def test_meetings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        asked({"partitions": [MEETING | wrong]}, "meet")


def test_committed_offsets_that_cannot_be() -> None:
    for row in (["g", ID, -1, 5, "", 0], ["g", ID, 0, 1 << 63, "", 0], ["g", b"", 0, 5, "", 0]):
        with pytest.raises(msgspec.DecodeError):
            asked({"cursors": [row]}, "cursors")
