"""After an unclean recovery, the homes of topics that may have lost records are renewed."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import ContainerId, Epoch, Home
from headrace.catalog.homes import SetHome
from headrace.partitions import recovered_homes
from headrace.partitions.recovered_homes import retake_homes

OWN = "south"


class Catalog:
    """Topics, each with one partition that ended in the container, and the home that it is settled for."""

    def __init__(self, *topics: tuple[str, Home | None, Home | None]) -> None:
        self.rows = {
            number: SimpleNamespace(topic_id=name.encode() * 16, number=number, home=home)
            for number, (name, home, _) in enumerate(topics, start=1)
        }
        self._settled = {
            (number, 0): settled for number, (_, _, settled) in enumerate(topics, start=1) if settled is not None
        }
        self.asked: list[tuple[int, int, int]] = []
        self.taken: dict[str, tuple[int, str]] = {}
        self.codes: dict[str, Code] = {}
        self.chains = self.topics = self.homes = self

    # --- the reader

    def open_in(self, container: ContainerId, *, before: int, after: int, limit: int) -> list[Any]:
        self.asked.append((container, before, after))
        return [SimpleNamespace(id=number) for number in self.rows if number > after][:limit]

    def owners(self, partitionlets: list[int]) -> dict[int, Any]:
        return {
            number: SimpleNamespace(topic_id=self.rows[number].topic_id, topic=number, partition=0)
            for number in partitionlets
        }

    def by_ids(self, topic_ids: set[bytes]) -> dict[bytes, Any]:
        return {row.topic_id: row for row in self.rows.values() if row.topic_id in topic_ids}

    def settled(self, topics: set[int]) -> dict[tuple[int, int], Home]:
        return {place: home for place, home in self._settled.items() if place[0] in topics}

    # --- the catalog

    async def query(self, function: Any) -> Any:
        return function(self)

    async def submit(self, command: SetHome) -> list[Code]:
        codes = []
        for item in command.items:
            name = item.topic_id[:1].decode()
            codes.append(self.codes.get(name, Code.NONE))
            self.taken[name] = (item.counter, item.cluster)
        return codes


async def retaken(catalog: Catalog) -> dict[str, tuple[int, str]]:
    container: Any = SimpleNamespace(id=ContainerId(7), recovered_epoch=Epoch(5))
    given: Any = catalog
    await retake_homes(container, catalog=given, own_cluster=OWN)
    return catalog.taken


async def test_a_topic_at_home_here_gets_the_next_home_of_the_same_cluster() -> None:
    catalog = Catalog(("a", None, None), ("b", Home(4, OWN), Home(4, OWN)))
    assert await retaken(catalog) == {"a": (1, OWN), "b": (5, OWN)}
    assert catalog.asked[0] == (7, 5, 0), "of what was opened since the recovery nothing is lost"


@pytest.mark.parametrize(
    ("home", "settled"),
    [
        (Home(4, "north"), Home(4, "north")),
        (Home(5, OWN), Home(4, OWN)),
        (Home(5, OWN), None),
    ],
)
async def test_a_copy_and_a_partition_that_is_not_settled_yet_have_lost_nothing_of_their_home(
    home: Home, settled: Home | None
) -> None:
    assert await retaken(Catalog(("a", home, settled))) == {}


async def test_many_are_gone_through_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovered_homes, "AT_ONCE", 2)
    catalog = Catalog(*((name, None, None) for name in "abcde"))
    assert set(await retaken(catalog)) == set("abcde")
    assert [after for _, _, after in catalog.asked] == [0, 2, 4, 5]


async def test_a_topic_that_has_gone_meanwhile_is_no_error_and_one_that_changed_is() -> None:
    catalog = Catalog(("a", None, None))
    catalog.codes = {"a": Code.UNKNOWN_TOPIC_ID}
    await retaken(catalog)
    catalog.codes = {"a": Code.FENCED_LEADER_EPOCH}
    with pytest.raises(KafkaError) as refused:
        await retaken(catalog)
    assert refused.value.code is Code.FENCED_LEADER_EPOCH
