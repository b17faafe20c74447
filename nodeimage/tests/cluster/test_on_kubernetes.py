"""Three nodes with Kubernetes' cluster store, over a toy API server; on a real one they run in e2e."""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from headrace.base.levels import NEWEST
from kit.cluster_clients import Load
from kit.cluster_nodes import HOST, until
from kit.cluster_on_kubernetes import CONTAINERS, NODES, KubernetesCluster
from kit.cluster_targets import busiest_leader
from kit.toy_api import ToyApi, toy_api

STORE = "/api/v1/namespaces/ns/configmaps/c-store"

RENEWED_S = 5.0
"""So long the lease is renewed: it has another version by then."""
HEARD_S = 2.0
"""Within which a controller has heard of all nodes: none of them knows better than what was restored."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def api() -> Iterator[ToyApi]:
    with toy_api() as served:
        yield served


@pytest.fixture
def new(tmp_path: Path, api: ToyApi) -> Iterator[KubernetesCluster]:
    """Not started."""
    cluster = KubernetesCluster(tmp_path / "cluster", api)
    yield cluster
    cluster.close()


@pytest.fixture
def three(new: KubernetesCluster) -> KubernetesCluster:
    new.start()
    new.await_ready()
    new.await_whole()
    return new


def are_ready(cluster: KubernetesCluster, *numbers: int) -> Callable[[], bool]:
    return lambda: all(cluster.http(number, "/readyz")[0] == 200 for number in numbers or cluster.nodes)


def test_a_node_that_is_killed_takes_nothing_with_it(three: KubernetesCluster, api: ToyApi) -> None:
    load = Load(three)
    until("all are ready", are_ready(three))
    victim = busiest_leader(three, load)
    others = [number for number in three.nodes if number != victim]
    written = api.count("PUT", "storagecontainers")
    three.kill(victim)
    load.await_writes(time.monotonic())
    until("the others are ready without it", are_ready(three, *others))
    assert "too few replicas in sync" in three.http(others[0], "/safez")[1]
    three.start(victim)
    three.await_ready(victim)
    three.await_whole()
    until("all are ready", are_ready(three))
    until("each can be spared", lambda: all(three.http(number, "/safez")[0] == 200 for number in three.nodes))
    load.await_writes(time.monotonic())
    load.finish()
    assert api.count("PUT", "storagecontainers") - written < 40 * len(three.containers())
    assert all("status" in api.objects[path] for path in api.objects if path.startswith(CONTAINERS))
    office = 'headrace_controller{node="%d"} 1.0\n'

    def leads() -> list[bool]:
        return [office % node.node_id in three.http(number, "/metrics")[1] for number, node in three.nodes.items()]

    until("one is the controller", lambda: leads().count(True) == 1)


def test_writes_go_on_while_the_api_server_is_away_and_roles_change_when_it_is_back(
    three: KubernetesCluster, api: ToyApi
) -> None:
    load = Load(three)
    three.rotate("second")
    api.away = True
    api.cut_watches()
    until("the nodes notice", lambda: all("roles stay as they are" in node.log() for node in three.nodes.values()))
    load.await_writes(time.monotonic())
    assert are_ready(three)()
    api.away = False
    until("the nodes see it again", lambda: all("store answers again" in node.log() for node in three.nodes.values()))
    victim = busiest_leader(three, load)
    three.kill(victim)
    load.await_writes(time.monotonic(), within_s=15.0)
    three.start(victim)
    three.await_ready(victim)
    three.await_whole()
    load.finish()


def test_all_nodes_start_at_once_while_the_api_server_is_away(new: KubernetesCluster, api: ToyApi) -> None:
    api.away = True
    new.start()
    until("they wait", lambda: all("cluster store" in new.http(number, "/readyz")[1] for number in new.nodes))
    assert all(new.http(number, "/livez")[0] == 200 for number in new.nodes)
    new.terminate(3)  # one that waits obeys
    api.away = False
    new.await_ready(1, 2)
    new.start(3)
    new.await_ready()
    new.await_whole()
    until("all are ready", are_ready(new))
    new.kill(1, 2, 3)
    new.start()
    new.await_ready()
    until("all are ready", are_ready(new))


@pytest.mark.parametrize("lost", ["swallow", "late"])
def test_a_node_that_hears_no_answer_to_its_registration_registers_once(
    lost: str, new: KubernetesCluster, api: ToyApi
) -> None:
    """What it asked for took place, or does later: it left nodes behind that nobody ever met."""
    # One that took place is found there, and not asked for again.
    setattr(api, lost, len(new.nodes) if lost == "swallow" else 6)
    api.loses = "storagenodes"
    new.start()
    until("answers are lost", lambda: getattr(api, lost) == 0)
    new.await_ready()
    api.land()
    new.await_whole()
    assert sum(path.startswith(NODES) for path in api.objects) == len(new.nodes)


def test_a_new_node_passes_over_ids_that_a_store_which_was_set_back_gives_again(
    new: KubernetesCluster, api: ToyApi
) -> None:
    new.start(1, 2)
    new.await_ready(1, 2)
    del api.objects[STORE]["data"]["next.node"]
    new.start(3)
    new.await_ready(3)
    ids = [new.nodes[number].node_id for number in new.nodes]
    assert sorted(ids[:2]) == [1, 2]
    assert ids[2] > 2


def test_clients_from_outside_are_told_what_the_operator_advertises(three: KubernetesCluster, api: ToyApi) -> None:
    def brokers(port: int) -> set[tuple[str, int]]:
        client = AdminClient({"bootstrap.servers": f"{HOST}:{port}"})
        return {(each.host, each.port) for each in client.list_topics(timeout=20).brokers.values()}

    inside = {(HOST, node.port) for node in three.nodes.values()}
    assert brokers(three.nodes[1].port) == inside
    for number, port in three.external.items():
        path, body = three.node_object(number)
        api.put(path, {**body, "spec": {**body["spec"], "advertised": {"external": f"localhost:{port}"}}})
    outside = {("localhost", port) for port in three.external.values()}
    until("they are told", lambda: brokers(three.external[1]) == outside)
    assert brokers(three.nodes[2].port) == inside
    three.kill(2)
    three.start(2)
    three.await_ready(2)
    until("they are told still", lambda: brokers(three.external[2]) == outside)


def test_a_node_hands_over_before_it_stops_and_an_empty_folder_is_another_node_in_its_place(
    three: KubernetesCluster, api: ToyApi
) -> None:
    load = Load(three)
    number = busiest_leader(three, load)
    before = three.nodes[number].node_id
    assert three.http(number, "/hand-over", method="POST") == (200, "ok\n")
    assert all(each.leader != before for each in three.containers())
    three.terminate(number)
    three.wipe(number)
    three.start(number)
    three.await_ready(number)
    after = three.nodes[number].node_id
    assert after != before

    def replaced() -> bool:
        held = [each.replicas for each in three.containers() if each.state != "deleted"]
        return all(before not in each and after in each for each in held)

    until("the former node's replicas are on the new one", replaced)
    three.await_whole()
    load.await_writes(time.monotonic())
    load.finish()


@pytest.mark.parametrize("started_anew", [False, True])
def test_containers_that_are_deleted_by_hand_are_never_made_anew_but_put_back(
    three: KubernetesCluster, api: ToyApi, started_anew: bool
) -> None:
    load = Load(three)
    load.forgive_missing_containers()
    load.await_writes(time.monotonic())
    kept = {path: body for path, body in api.objects.items() if path.startswith(CONTAINERS)}
    for path in kept:
        api.drop(path)
    told = "the cluster store has lost its record"
    until("the controller is refused", lambda: any(told in node.log() for node in three.nodes.values()))
    assert f"{CONTAINERS}/c-1" not in api.objects
    look = partial(three.http, 1, "/recover-store", method="POST")
    until("all see that they are gone", lambda: look()[0] == 200)
    assert {each["container"] for each in json.loads(look()[1])["containers"]} >= {
        body["status"]["containerId"] for body in kept.values() if body["status"]["state"] != "deleted"
    }
    assert f"{CONTAINERS}/c-1" not in api.objects, "it was only asked what would be done"
    if started_anew:
        load.forgive_coordinators_lost_twice()
        three.kill(1, 2, 3)
        three.start()
        until("they wait for the catalog", lambda: all("catalog" in three.http(n, "/readyz")[1] for n in three.nodes))
    three.kill(3)
    assert three.http(1, "/recover-store?apply=1", method="POST")[0] == 409, "one of the nodes does not answer"
    three.start(3)
    put_back = partial(three.http, 2, "/recover-store?apply=1", method="POST")
    until("the records are put back", lambda: put_back()[0] == 200)
    for path, body in kept.items():
        assert api.objects[path]["status"]["epoch"] > body["status"]["epoch"], path
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    assert json.loads(put_back()[1])["containers"] == []
    load.finish()


def test_records_are_not_put_back_while_a_node_has_yet_to_see_that_they_are_gone(
    three: KubernetesCluster, api: ToyApi
) -> None:
    load = Load(three)
    load.forgive_missing_containers()
    load.await_writes(time.monotonic())
    api.deaf = {"storagecontainers"}
    for path in [path for path in api.objects if path.startswith(CONTAINERS)]:
        api.drop(path)
    status, text = three.http(1, "/recover-store?apply=1", method="POST")
    assert (status, "has yet to see that records are gone" in text) == (409, True)
    load.await_writes(time.monotonic())
    api.deaf = set()
    api.cut_watches()
    until("they are put back", lambda: three.http(1, "/recover-store?apply=1", method="POST")[0] == 200)
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    load.finish()


def test_a_restore_of_etcd_that_takes_nothing_back_is_noticed_and_failover_goes_on(
    three: KubernetesCluster, api: ToyApi
) -> None:
    """Its versions fall. A cache that waited for them to be there again would keep all that comes out until then."""
    load = Load(three)
    load.await_writes(time.monotonic())
    backup = api.backup()
    api.write_elsewhere(1000)  # or the lease, which is all that is taken back, might be as new again before all look
    load.write_on_for(RENEWED_S)
    api.restore(backup)
    until("a node is in office", lambda: three.controller() is not None)
    load.await_writes(time.monotonic())
    until(
        "all have noticed",
        lambda: all("the cluster store was set back" in node.log() for node in three.nodes.values()),
    )
    load.write_on_for(HEARD_S)
    victim = busiest_leader(three, load)
    three.kill(victim)
    load.await_writes(time.monotonic())
    three.start(victim)
    three.await_ready(victim)
    three.await_whole()
    load.finish()


@pytest.mark.parametrize(
    ("stale_is_up", "others_write"),
    [(False, 0), (False, 1000), (True, 0)],
    ids=["a node is down", "a node is down and versions have gone on", "all are up"],
)
def test_what_a_restore_of_etcd_took_back_is_not_followed_but_mended(
    three: KubernetesCluster, api: ToyApi, stale_is_up: bool, others_write: int
) -> None:
    """The record names a node in sync that was not, with the epoch that others have: it would cut what they have."""
    assert three.admin("features.upgrade")["level"] == NEWEST
    load = Load(three)
    for member in load.members:
        member.forgives = lambda error: True  # there is no coordinator for a while
    load.forgive_missing_containers()
    load.await_writes(time.monotonic())
    stale = next(number for number in three.nodes if number not in (busiest_leader(three, load), three.controller()))
    node_id = three.nodes[stale].node_id
    backup = api.backup()
    three.kill(stale)
    until("it has left", lambda: all(node_id not in dict(each.in_sync) for each in three.containers()))
    load.await_writes(time.monotonic())
    if stale_is_up:
        three.start(stale)
        three.await_ready(stale)
        three.await_whole()
        load.await_writes(time.monotonic())
    api.restore(backup, others_write=others_write)
    others = [number for number in three.nodes if number != stale]
    until(
        "those who know better stand still",
        lambda: all("a replica stands still" in three.nodes[number].log() for number in others),
    )
    until(
        "the controller says so",
        lambda: any("Bring them back with `headrace recover-store`" in node.log() for node in three.nodes.values()),
    )
    if not stale_is_up:
        three.start(stale)
    shown = until("all see it", lambda: look_at_lost(three))
    assert {each["container"] for each in shown} == {each.container_id for each in three.containers()}
    until("they are put back", lambda: three.http(1, "/recover-store?apply=1", method="POST")[0] == 200)
    three.await_ready()
    load.await_writes(time.monotonic(), within_s=30.0)
    three.await_whole()
    assert look_at_lost(three) == []
    load.finish()


def look_at_lost(cluster: KubernetesCluster) -> list[dict[str, Any]] | None:
    """What `headrace recover-store --pod` shows; None: it cannot yet."""
    status, text = cluster.http(1, "/recover-store", method="POST")
    return json.loads(text)["containers"] if status == 200 else None
