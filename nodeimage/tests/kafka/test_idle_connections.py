"""Idle connections are closed; when connections are scarce, the longest idle ones go first."""

from typing import Any

import pytest

from headrace.kafka.idle_connections import IdleConnections


class Connection:
    """A connection that has been idle since a given time."""

    def __init__(self, name: str, idle_since: float = 0.0) -> None:
        self.name = name
        self.idle_since = idle_since
        self.heard = False
        self.has_work = False
        self.closed = False

    def drop(self) -> None:
        assert not self.closed
        self.closed = True


def watched(*connections: Connection, scarce: bool = False) -> IdleConnections:
    loop: Any = None
    given: Any = connections
    return IdleConnections(given, loop, idle_s=600, scarce=lambda: scarce)


def test_one_that_was_idle_for_so_long_is_closed() -> None:
    one, other = Connection("a", 0), Connection("b", 1)
    watched(one, other).look(600)
    assert (one.closed, other.closed) == (True, False)


@pytest.mark.parametrize("sign", ["heard", "has_work"])
def test_one_that_is_used_begins_to_be_idle_anew(sign: str) -> None:
    one = Connection("a")
    idle = watched(one)
    setattr(one, sign, True)
    idle.look(600)
    assert not one.closed
    assert (one.idle_since, one.heard) == (600, False)
    one.has_work = False
    idle.look(1199)
    assert not one.closed
    idle.look(1200)
    assert one.closed


def test_where_connections_are_scarce_the_longest_idle_ones_make_way_first() -> None:
    connections = [Connection("a", 30), Connection("b", 10), Connection("c", 20), Connection("d", 40)]
    idle = watched(*connections, scarce=True)
    idle.look(50)
    connections[2].heard = True
    assert idle.drop_longest()
    assert idle.drop_longest()
    assert [each.name for each in connections if each.closed] == ["a", "b"], "c is used again"
    assert idle.drop_longest()
    assert not idle.drop_longest()


def test_where_they_are_not_scarce_none_makes_way() -> None:
    one = Connection("a", 30)
    idle = watched(one)
    idle.look(50)
    assert not idle.drop_longest()
    assert not one.closed
