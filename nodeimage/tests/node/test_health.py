import uuid
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from headrace.base.ids import ContainerId, Epoch, NodeId
from headrace.node.health import why_not_ready, why_not_safe
from headrace.store.records import ContainerRecord

OWN, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)
ALL = {OWN, OTHER, THIRD}
FORMAT = uuid.UUID(int=1)


def container(number: int, leader: NodeId, in_sync: set[NodeId], **more: Any) -> ContainerRecord:
    fields: dict[str, Any] = {"replicas": (OWN, OTHER, THIRD), "min_in_sync": 2, "wanted": 3, **more}
    members = tuple((each, FORMAT) for each in sorted(in_sync))
    return ContainerRecord(ContainerId(number), "data", leader, Epoch(1), members, **fields)


def view(*containers: ContainerRecord) -> Any:
    return SimpleNamespace(containers={each.container_id: each for each in containers})


def ready(*containers: ContainerRecord, led: Collection[int] = (), heard: Collection[NodeId] = ALL) -> str:
    return why_not_ready(view(*containers), OWN, led={ContainerId(each) for each in led}, heard=heard)


def test_a_node_that_is_in_sync_and_leads_what_it_is_to_lead_is_ready() -> None:
    assert ready() == ""
    assert ready(container(1, OWN, ALL), container(2, OTHER, ALL), led={1}) == ""
    assert ready(container(2, OTHER, {OTHER}, replicas=(OTHER, THIRD))) == ""


def test_a_node_that_is_behind_or_has_yet_to_lead_is_not_ready() -> None:
    assert ready(container(2, OTHER, {OTHER, THIRD})) == "is behind in container 2"
    assert ready(container(1, OWN, ALL), container(4, OWN, ALL), led={1}) == "has yet to lead container 4"


def test_nodes_that_start_all_at_once_do_not_wait_for_one_that_does_not_answer() -> None:
    assert ready(container(2, OTHER, {OTHER, THIRD}), heard={OWN, THIRD}) == ""


def test_containers_that_are_deleted_say_nothing() -> None:
    gone = container(2, OTHER, {OTHER}, state="deleted")
    assert ready(gone) == why_not_safe(view(gone), OWN, heard=ALL) == ""


def test_a_node_can_be_spared_where_enough_others_are_in_sync_and_answer() -> None:
    assert why_not_safe(view(container(1, OWN, ALL)), OWN, heard=ALL) == ""
    assert why_not_safe(view(container(1, OTHER, {OTHER, THIRD})), OWN, heard=set()) == ""
    one_left = "container 1 would have too few replicas in sync"
    assert why_not_safe(view(container(1, OWN, {OWN, OTHER})), OWN, heard=ALL) == one_left
    assert why_not_safe(view(container(1, OWN, ALL)), OWN, heard={OWN, OTHER}) == one_left


def test_a_container_that_can_have_no_more_in_sync_is_nothing_to_wait_for() -> None:
    pair = container(1, OWN, {OWN, OTHER}, replicas=(OWN, OTHER))
    assert why_not_safe(view(pair), OWN, heard=ALL) == ""
    all_needed = container(2, OWN, ALL, min_in_sync=3)
    assert why_not_safe(view(all_needed), OWN, heard=ALL) == ""
    alone = container(3, OWN, {OWN}, replicas=(OWN,))
    assert why_not_safe(view(alone), OWN, heard=ALL) == "container 3 would have too few replicas in sync"


def test_a_single_replica_is_nothing_to_wait_for() -> None:
    single = container(1, OWN, {OWN}, replicas=(OWN,), min_in_sync=1, wanted=1)
    assert why_not_safe(view(single), OWN, heard=ALL) == ""
