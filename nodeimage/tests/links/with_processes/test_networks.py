"""Networks between clusters that are cut, slow, lossy, narrow or half open: a link continues where it was."""

import random
import statistics
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from kit.cluster_clients import Writer, at
from kit.cluster_nodes import until
from kit.linked_clusters import (
    Linked,
    await_caught_up,
    await_same,
    ends,
    link,
    make,
    shown,
)
from kit.moving_clients import PARTITIONS, Clients
from kit.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "t"
APART = "/apart"
"""A stream that no link copies."""
BREAKS_EACH_S = 3.0
UNHINDERED = 3.0
"""How many times as long as for a topic without a link, on the same nodes and in the same seconds, an acknowledgement
may take while a link has trouble. The comparison makes other load on the machine matter little."""


class Watched:
    """A source under load, and its copy, over a network that is about to fail."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.north, self.south = linked.start("north", "south")
        make(self.north, TOPIC, partitions=PARTITIONS)
        link(self.south, self.north)
        self.clients = Clients(TOPIC)
        self.writers = self.clients.write_at(self.north)
        self.north.admin("stream.create", {"path": APART, "policy": {}})
        make(self.north, f"{APART}:{TOPIC}", partitions=PARTITIONS)
        self.clients_apart = Clients(f"{APART}:{TOPIC}")
        self.writers_apart = self.clients_apart.write_at(self.north)
        await_caught_up(self.south)

    def lasts(self, seconds: float) -> tuple[float, float]:
        """Keep the failure for `seconds`, with writes all the time. Returns the median time of acknowledgements in
        seconds, for the topic that is copied and for the one that is not."""
        since = time.monotonic()
        until("it has lasted", lambda: time.monotonic() > since + seconds, timeout_s=seconds + 10)
        self.clients.await_writes(self.writers, time.monotonic(), timeout_s=10)
        return median_since(since, self.writers), median_since(since, self.writers_apart)

    def heals(self) -> None:
        """Repair the network: the link catches up, and copy and source are the same."""
        self.linked.ways.heal()
        await_caught_up(self.south)
        self.clients.stop(self.writers)
        self.clients_apart.stop(self.writers_apart)
        await_same(self.south, self.north, TOPIC)
        self.clients.check(self.south)
        told = shown(self.south)
        assert (told["state"], told["refused"]) == ("CaughtUp", [])


def median_since(since: float, writers: list[Writer]) -> float:
    return statistics.median(
        each.returned - each.called
        for writer in writers
        for each in list(writer.writes)
        if since < each.called and each.returned < float("inf")
    )


def cut(linked: Linked) -> None:
    linked.cut("north", "south")


def half_open(linked: Linked) -> None:
    linked.silence("north", "south")


def delay(linked: Linked) -> None:
    linked.slow("north", "south", 0.3)


def narrow(linked: Linked) -> None:
    linked.narrow("north", "south", 125_000)


def lossy(linked: Linked) -> None:
    chance = random.Random(1)
    for near, far in linked.between("north", "south"):
        linked.ways.lose(near, far, 0.05, chance)


@pytest.mark.parametrize("trouble", [cut, half_open, delay, narrow, lossy], ids=lambda each: each.__name__)
def test_a_link_goes_on_where_it_was_and_the_source_is_not_held_back(
    linked: Linked, trouble: Callable[[Linked], None]
) -> None:
    watched = Watched(linked)
    trouble(linked)
    took, took_apart = watched.lasts(4.0)
    print(f"acknowledged after {took * 1000:.1f} ms, without a link {took_apart * 1000:.1f} ms")
    assert took < UNHINDERED * took_apart + 0.02
    watched.heals()


def test_ways_that_break_again_and_again_in_the_middle_of_batches(linked: Linked) -> None:
    """They break long before a fetch of the usual size is complete: shorter ones get through."""
    north, south = linked.start("north", "south")
    make(north, TOPIC, partitions=1)
    producer = Producer({**at(north.bootstrap), "batch.size": 100_000, "linger.ms": 20})
    chance = random.Random(1)
    for _ in range(500):  # at the rate below enough for three breaks, even if no byte is sent twice
        producer.produce(TOPIC, chance.randbytes(20_000), partition=0)
    assert producer.flush(60) == 0
    (end,) = ends(north, TOPIC)
    linked.narrow("north", "south", 1_000_000)
    link(south, north)
    breaks = 0
    deadline = time.monotonic() + 100 * PATIENCE
    while ends(south, TOPIC) != [end]:
        assert time.monotonic() < deadline, f"{ends(south, TOPIC)} of {end}, after {breaks} breaks: {shown(south)}"
        began = time.monotonic()
        until("the way breaks", lambda began=began: time.monotonic() > began + BREAKS_EACH_S)
        linked.drop("north", "south")
        breaks += 1
    assert breaks > 2
    linked.ways.heal()
    await_caught_up(south)
    await_same(south, north, TOPIC)
    print(f"{breaks} breaks")
