"""Which connections are admitted, and which make way; and that a plan leaves descriptors for files."""

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from headrace.base.admission import LOCAL, LOG_EVERY_S, NEW_S, Admission, Place
from headrace.base.descriptor_plan import descriptor_plan


class Port:
    """Connections that end as soon as they are dropped."""

    def __init__(
        self, *, most: int = 4, most_of_address: int = 3, descriptors: int = 1000, most_new: int | None = None
    ) -> None:
        self.now = 100.0
        self.ended: list[str] = []
        self.idle: list[Place] = []
        self.admission = Admission(
            kind="clients",
            most=most,
            most_of_address=most_of_address,
            descriptors=descriptors,
            time=lambda: self.now,
            drop_idle=self.drop_idle,
            most_new=most_new,
        )

    def drop_idle(self) -> bool:
        if not self.idle:
            return False
        place = self.idle.pop(0)
        place.leave()
        place.drop()
        return True

    def come(self, address: str, *, name: str = "", descriptor: int = 10) -> Place | None:
        return self.admission.admit(address, descriptor, self.ends(name))

    def ends(self, name: str) -> Callable[[], None]:
        return lambda: self.ended.append(name)

    def known(self, address: str) -> Place:
        place = self.come(address)
        assert place is not None
        place.proven()
        return place


def test_the_new_connection_that_came_first_makes_way() -> None:
    port = Port()
    for name in "abcd":
        assert port.come(name, name=name) is not None
    port.known("e")
    port.known("f")
    assert port.ended == ["a", "b"]
    assert len(port.admission) == 4
    assert port.admission.made_way == 2


def test_there_may_be_fewer_new_ones_than_connections() -> None:
    port = Port(most=10, most_of_address=10, most_new=2)
    known = port.come("a", name="known")
    assert known is not None
    known.proven()
    for name in ("1", "2", "3", "4"):
        assert port.come("a", name=name) is not None
    assert port.ended == ["1", "2"]
    assert len(port.admission) == 3


def test_one_that_has_proven_something_is_let_go_only_when_idle() -> None:
    port = Port()
    places = [port.known(address) for address in "abcd"]
    assert port.come("e") is None
    port.idle = [places[2]]
    assert port.come("e") is not None
    assert len(port.admission) == 4
    assert (port.admission.refused, port.admission.made_way) == (1, 1)


def test_one_address_cannot_have_all() -> None:
    port = Port(most=10)
    for name in "123":
        port.come("a", name=name)
    port.come("b", name="other")
    assert port.come("a", name="4") is not None
    assert port.ended == ["1"]
    for _ in range(3):
        port.known("a")
    assert port.ended == ["1", "2", "3", "4"]
    assert port.come("a") is None
    assert port.come("c") is not None


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    port = Port(most=10)
    for host in "123":
        port.come(f"2001:db8:1:2::{host}", name=host)
    port.come("2001:db8:1:3::1", name="other")
    assert port.come("2001:db8:1:2:ffff::4", name="4") is not None
    assert port.ended == ["1"]
    for host in "567":
        port.known(f"2001:db8:1:2::{host}")
    assert port.ended == ["1", "2", "3", "4"]
    with capture_logs() as logs:
        assert port.come("2001:db8:1:2::8") is None
    assert [(each["last"], each["limit"]) for each in logs] == [
        ("2001:db8:1:2::8", "3 connections from 2001:db8:1:2::/64")
    ]
    assert port.come("2001:db8:1:3::2") is not None
    for host in "1234":  # the form of IPv4 addresses on a socket that listens on `::`
        port.known(f"::ffff:10.0.0.{host}")
    assert len(port.admission) == 9


def test_the_machine_itself_has_places_beyond_the_limit() -> None:
    port = Port(most=2, most_of_address=100)
    port.known("a")
    port.known("b")
    assert port.come("c") is None
    for address in ("127.0.0.1", "::1"):
        assert port.known(address) is not None
    for _ in range(LOCAL - 2):
        port.known("127.0.0.9")
    assert port.come("127.0.0.1") is None


def test_the_last_descriptors_are_for_files() -> None:
    port = Port(descriptors=50)
    port.known("a")
    assert port.come("b", descriptor=49) is not None
    assert port.come("c", name="c", descriptor=50) is not None  # it replaces b
    assert len(port.admission) == 2
    port.admission.drop_silent(-1)
    assert port.come("d", descriptor=51) is None


def test_who_says_nothing_goes_after_a_time() -> None:
    port = Port()
    port.known("a")
    port.come("b", name="b")
    port.now += NEW_S - 1
    port.come("c", name="c")
    port.admission.drop_silent()
    assert port.ended == []
    port.now += 1
    port.admission.drop_silent()
    assert port.ended == ["b"]
    assert port.admission.timed_out == 1


def test_a_place_is_given_back_once() -> None:
    port = Port(most=2)
    first, second = port.known("a"), port.come("a")
    assert second is not None
    for _ in range(2):
        first.leave()
        second.leave()
        second.proven()
    assert len(port.admission) == 0
    assert port.admission._count_of == {}
    assert port.admission._new_of == {}
    assert port.known("a") is not None


def test_refusals_are_logged_now_and_then_with_their_number() -> None:
    port = Port(most=1)
    port.known("a")
    with capture_logs() as logs:
        for _ in range(1000):
            port.come("b")
        port.now += LOG_EVERY_S
        port.come("c")
    assert [each["count"] for each in logs] == [1, 1000]
    assert port.admission.refused == 1001


@pytest.mark.parametrize("limit", [256, 600, 1024, 4096, 20_000, 65_536, 1 << 20, 1 << 30])
def test_a_plan_leaves_files_their_reserve(limit: int) -> None:
    plan = descriptor_plan(limit)
    assert plan.clients >= 16
    assert plan.reserve >= 96
    assert plan.clients + plan.peers + plan.http + 2 * plan.chunks + plan.reserve <= limit
    assert plan.clients + plan.chunks < 65_530


def test_a_tiny_limit_still_lets_somebody_in() -> None:
    assert descriptor_plan(64).clients == 16
