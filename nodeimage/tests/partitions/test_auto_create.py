"""Topics that are created on first use: by one command, in streams that allow it."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError, StorageFull
from headrace.base.ids import ContainerId, Epoch
from headrace.catalog.names import split
from headrace.catalog.topics import CreateTopics
from headrace.partitions.auto_create import make_topics


class Catalog:
    """A catalog with streams by path, and the given outcome of the command."""

    def __init__(self) -> None:
        self.streams = {
            "/auto": SimpleNamespace(policy=SimpleNamespace(auto_create=True, default_partitions=2, volume="v")),
            "/shut": SimpleNamespace(policy=SimpleNamespace(auto_create=False, default_partitions=2, volume="v")),
        }
        self.submitted: list[CreateTopics] = []
        self.codes: dict[str, Code] = {}
        self.fails: Exception | None = None

    async def query(self, function: Any) -> Any:
        return function(SimpleNamespace(streams=SimpleNamespace(at=self.streams.get)))

    async def submit(self, command: CreateTopics) -> list[Any]:
        self.submitted.append(command)
        if self.fails is not None:
            raise self.fails
        outcomes = []
        for item in command.items:
            code = self.codes.get(item.name, Code.NONE)
            outcomes.append(SimpleNamespace(topic=None if code else object(), code=code, message=f"{item.name} waits"))
        return outcomes


class Placement:
    """Places each partition in its own container; has none in volume `full`."""

    def place(self, count: int, volume: str) -> list[tuple[ContainerId, Epoch]]:
        if volume == "full":
            raise KafkaError(Code.NOT_ENOUGH_REPLICAS, "too few nodes")
        return [(ContainerId(number + 1), Epoch(4)) for number in range(count)]


async def made(catalog: Catalog, *names: str) -> dict[str, KafkaError | None]:
    given: Any = catalog
    placement: Any = Placement()
    return await make_topics([split(name, "/default") for name in names], catalog=given, placement=placement)


async def test_one_command_makes_all_that_may_be_made() -> None:
    catalog = Catalog()
    found = await made(catalog, "/auto:a", "/shut:b", "/none:c", "/auto:d")
    assert found == {"/auto:a": None, "/auto:d": None}
    (command,) = catalog.submitted
    assert [(item.stream, item.name, item.partitions) for item in command.items] == [
        ("/auto", "a", 2),
        ("/auto", "d", 2),
    ]
    assert (command.items[0].container_ids, command.items[0].container_epochs) == ([1, 2], [4, 4])
    assert len({item.topic_id for item in command.items}) == 2


async def test_who_may_not_make_a_topic_hears_so_where_the_stream_would_make_it() -> None:
    catalog, placement = Catalog(), Placement()
    given: Any = catalog
    where: Any = placement
    asked: list[str] = []

    def may_create(full_name: str) -> bool:
        asked.append(full_name)
        return full_name == "/auto:own"

    names = [split(name, "/default") for name in ("/auto:own", "auto..other", "/shut:b", "/none:c")]
    found = await make_topics(names, catalog=given, placement=where, may_create=may_create)
    assert found["/auto:own"] is None
    refused = found["/auto:other"]
    assert refused is not None
    assert refused.code is Code.TOPIC_AUTHORIZATION_FAILED
    assert set(found) == {"/auto:own", "/auto:other"}, "a stream that makes none says so, as to everybody"
    assert asked == ["/auto:own", "/auto:other"], "by the full name"
    assert [item.name for item in catalog.submitted[0].items] == ["own"]


async def test_where_nothing_is_to_be_made_no_command_is_written() -> None:
    catalog = Catalog()
    assert await made(catalog) == {}
    assert await made(catalog, "/shut:b") == {}
    assert catalog.submitted == []


async def test_what_cannot_be_placed_says_why_and_keeps_no_other_from_being_made() -> None:
    catalog = Catalog()
    catalog.streams["/full"] = SimpleNamespace(
        policy=SimpleNamespace(auto_create=True, default_partitions=1, volume="full")
    )
    found = await made(catalog, "/full:a", "/auto:b")
    refused = found.pop("/full:a")
    assert refused is not None
    assert refused.code is Code.NOT_ENOUGH_REPLICAS
    assert found == {"/auto:b": None}


async def test_what_may_be_made_soon_is_told_and_what_was_refused_for_good_is_left_out() -> None:
    catalog = Catalog()
    catalog.codes = {"later": Code.LEADER_NOT_AVAILABLE, "never": Code.INVALID_TOPIC_EXCEPTION}
    found = await made(catalog, "/auto:later", "/auto:never")
    assert list(found) == ["/auto:later"]
    error = found["/auto:later"]
    assert error is not None
    assert (error.code, str(error)) == (Code.LEADER_NOT_AVAILABLE, "later waits")


@pytest.mark.parametrize("error", [StorageFull("the disk is full"), KafkaError(Code.REQUEST_TIMED_OUT)])
async def test_a_command_that_fails_is_an_error_of_each_topic(error: Exception) -> None:
    catalog = Catalog()
    catalog.fails = error
    found = await made(catalog, "/auto:a", "/auto:b")
    assert set(found) == {"/auto:a", "/auto:b"}
    assert all(isinstance(each, KafkaError) for each in found.values())
