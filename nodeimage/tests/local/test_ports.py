import os
import socket

import pytest

from headrace.local.ports import DEFAULT_PORT, HIGHEST_PORT, Ports, PortTaken
from headrace.local.processes import FREE_PORTS, free_port, port_is_free

HOST = "127.0.0.1"


def run_of_free_ports(count: int) -> int:
    """The first of `count` consecutive free ports."""
    for _ in range(100):
        first = free_port(HOST)
        if all(port_is_free(HOST, port) for port in range(first, first + count)):
            return first
    raise AssertionError("no free ports in a row")


def test_a_port_that_is_asked_for_is_followed_by_the_next_ones() -> None:
    first = run_of_free_ports(3)
    assert Ports(HOST).choose([None, None, None], first) == (first, first + 1, first + 2)


def test_port_0_is_a_free_port_for_each_node() -> None:
    chosen = Ports(HOST).choose([None] * 20, 0)
    assert len(set(chosen)) == 20
    assert all(port in FREE_PORTS for port in chosen)


def test_of_the_ports_that_are_asked_for_none_may_be_taken() -> None:
    first = run_of_free_ports(3)
    with socket.create_server((HOST, first + 1)), pytest.raises(PortTaken, match=f"{first + 1}.*pid {os.getpid()}"):
        Ports(HOST).choose([None, None, None], first)


def test_ports_above_the_highest_are_refused() -> None:
    with pytest.raises(PortTaken, match="lower --port"):
        Ports(HOST).choose([None, None], HIGHEST_PORT)


def test_a_new_cluster_starts_at_kafkas_port_or_says_why_not() -> None:
    ports = Ports(HOST)
    was_free = port_is_free(HOST, DEFAULT_PORT)
    (chosen,) = ports.choose([None], None)
    assert (chosen == DEFAULT_PORT) == was_free
    assert bool(ports.notices) != was_free


def test_the_ports_of_the_last_start_are_kept_and_new_nodes_come_after_them() -> None:
    first = run_of_free_ports(3)
    assert Ports(HOST).choose([first + 1, first, None], None) == (first + 1, first, first + 2)


def test_a_kept_port_that_is_taken_gives_way_alone() -> None:
    first = run_of_free_ports(2)
    with socket.create_server((HOST, first)):
        ports = Ports(HOST)
        chosen = ports.choose([first, first + 1], None)
        assert chosen[0] in FREE_PORTS
        assert chosen[0] != first
        assert chosen[1] == first + 1
        assert str(first) in ports.notices[0]


def test_one_more_node_gets_the_next_port_or_a_free_one() -> None:
    first = run_of_free_ports(2)
    assert Ports(HOST).next_to(first) == first + 1
    with socket.create_server((HOST, first + 1)):
        assert Ports(HOST).next_to(first) not in (first, first + 1)
