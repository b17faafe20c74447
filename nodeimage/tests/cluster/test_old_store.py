"""The cluster store is an old copy of itself: rebuilt from the nodes' folders, or put back as it was. Or a node's own
folder is."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.cluster_clients import Load
from kit.cluster_nodes import Cluster, until
from kit.cluster_targets import busiest_leader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OLD_COPY = r'container=(\d+) reason=".* it is an old copy'


Fall = Callable[[Cluster, Load], tuple[Path, int]]


def in_sync_sets_shrank(three: Cluster, load: Load) -> tuple[Path, int]:
    """As `all_changed_hands`, but what the stale node did not lead has the epoch that the copy has: counters tell
    nothing there."""
    copy = three.copy_store()
    epochs = {each.container_id: each.epoch for each in three.containers()}
    stale = next(number for number in three.nodes if number not in (busiest_leader(three, load), three.controller()))
    three.kill(stale)
    node_id = three.nodes[stale].node_id
    until("it has left", lambda: all(node_id not in dict(each.in_sync) for each in three.containers()))
    load.await_writes(time.monotonic())
    assert any(each.epoch == epochs.get(each.container_id) for each in three.containers())
    three.kill(*(number for number in three.nodes if number != stale))
    return copy, stale


def all_changed_hands(three: Cluster, load: Load) -> tuple[Path, int]:
    """An old copy of the store, and a node that knows no more than that has. All nodes are down.

    Each container has changed hands since the copy was made, and what was acknowledged since lies on two nodes alone.
    """
    copy = three.copy_store()
    epochs = {each.container_id: each.epoch for each in three.containers()}
    stale = busiest_leader(three, load)
    three.kill(stale)
    for number in three.nodes:
        if number != stale:
            load.await_writes(time.monotonic())
            three.terminate(number)
            three.start(number)
            three.await_ready(number)
    until(
        "each container has changed hands",
        lambda: all(each.epoch > epochs.get(each.container_id, 0) for each in three.containers()),
    )
    load.await_writes(time.monotonic())
    three.kill(*(number for number in three.nodes if number != stale))
    return copy, stale


both = pytest.mark.parametrize("fall", [all_changed_hands, in_sync_sets_shrank], ids=lambda each: each.__name__)


@both
def test_a_store_built_anew_after_it_was_put_back_to_an_old_copy_has_everything(three: Cluster, fall: Fall) -> None:
    load = Load(three)
    load.forgive_coordinators_lost_twice()
    copy, _ = fall(three, load)
    three.put_store(copy)
    three.recover_store()
    three.start()
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    load.finish()


@both
def test_nodes_that_know_better_than_an_old_copy_of_the_store_say_so_and_cut_nothing(
    three: Cluster, fall: Fall
) -> None:
    """The one that does not know leads by it, at epochs that were others' already: it gets no follower."""
    load = Load(three)
    copy, stale = fall(three, load)
    for member in load.members:
        member.forgives = lambda error: True  # there is no coordinator for a while
    known = [number for number in three.nodes if number != stale]
    said = {number: len(three.nodes[number].log()) for number in known}
    three.put_store(copy)
    three.start(stale)
    node_id = three.nodes[stale].node_id
    until("the stale one leads everything", lambda: all(each.leader == node_id for each in three.containers()))
    three.start(*known)
    for number in known:
        until(
            f"node {number} says so of each container",
            lambda number=number: (
                set(re.findall(OLD_COPY, three.nodes[number].log()[said[number] :]))
                == {str(each.container_id) for each in three.containers()}
            ),
        )
    three.kill(*three.nodes)
    three.recover_store()
    three.start()
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    load.finish()


def test_a_node_whose_volume_was_put_back_to_a_snapshot_is_in_sync_no_more_and_catches_up(three: Cluster) -> None:
    """By its record it was in sync, and it led: but what was acknowledged since the snapshot is not there."""
    load = Load(three)
    load.forgive_coordinators_lost_twice()
    victim = three.nodes[busiest_leader(three, load)]
    three.terminate(victim.number)
    snapshot = victim.folder / "snapshot"
    shutil.copytree(victim.data, snapshot)
    three.start(victim.number)
    three.await_ready(victim.number)
    three.await_whole()
    others = [number for number in three.nodes if number != victim.number]
    for other in others:  # the last one has nobody else to hand over to
        three.terminate(other)
    three.start(*others)
    three.await_ready()
    three.await_whole()
    assert any(each.leader == victim.node_id for each in three.containers())
    load.await_writes(time.monotonic())
    three.kill(*three.nodes)
    assert all(victim.node_id in dict(each.in_sync) for each in three.containers())
    formats = {each.container_id: three.format(victim.number, each.container_id) for each in three.containers()}
    shutil.rmtree(victim.data)
    snapshot.rename(victim.data)
    three.start(victim.number)
    until("it says so", lambda: "the data folder is an older copy of itself" in victim.log())
    three.start(*(number for number in three.nodes if number != victim.number))
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    load.finish()
    for each in three.containers():
        if each.container_id in formats:
            assert str(dict(each.in_sync)[victim.node_id]) != formats[each.container_id]
