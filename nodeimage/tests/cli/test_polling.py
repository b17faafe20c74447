from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.errors import KafkaError
from headrace.cli.connect import NoAnswer
from headrace.cli.polling import Polled
from headrace.cli.target import plain
from kit.own_ports import own_port


@pytest.fixture
def polled(cluster: Any) -> Iterator[Polled]:
    with Polled(plain(f"127.0.0.1:{own_port()},{cluster.bootstrap}")) as made:
        yield made


def connections(cluster: Any) -> int:
    return int(cluster.admin("status")["clients"]["connections_since_start"])


def test_a_node_is_connected_to_once(polled: Polled, cluster: Any) -> None:
    assert polled.admin("status")["node"] == 1
    before = connections(cluster)
    for _ in range(5):
        assert polled.admin("cluster.status")["nodes"]
        assert polled.each([cluster.bootstrap], "status")[0]["node"] == 1
        assert polled.groups() is not None
    assert connections(cluster) == before + 1  # the connection of this call itself


def test_a_refusal_is_an_answer_and_the_connection_is_kept(polled: Polled, cluster: Any) -> None:
    with pytest.raises(KafkaError, match="nothing-here"):
        polled.admin("stream.show", {"path": "/nothing-here"})
    before = connections(cluster)
    assert polled.each([cluster.bootstrap], "stream.show", {"path": "/nothing-here"}) == [None]
    assert connections(cluster) == before + 1


def test_a_node_that_does_not_answer_is_none(polled: Polled, cluster: Any) -> None:
    gone = f"127.0.0.1:{own_port()}"
    answers = polled.each([gone, cluster.bootstrap], "status")
    assert answers[0] is None
    assert answers[1]["node"] == 1


def test_a_node_that_was_started_again_is_asked_again(new_cluster: Any) -> None:
    cluster = new_cluster()
    with Polled(plain(cluster.bootstrap)) as polled:
        assert polled.admin("status")["node"] == 1
        cluster.restart()
        assert polled.admin("status")["node"] == 1
        cluster.stop()
        with pytest.raises(NoAnswer, match="headrace status"):
            polled.admin("status")
