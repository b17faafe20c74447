"""Conditions that matter to a plan only if they last: the caller records when each began. Pure.

They are determined in steps, as is a plan (control.plan), and for the same containers: containers at rest have none.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from headrace.base.ids import ContainerId, NodeId
from headrace.control.container_states import CATALOG
from headrace.control.observations import DEFAULT_VOLUME, Condition, Observed, up
from headrace.store.records import ContainerRecord, VolumeRecord

_STEP: Final = 32
"""Containers examined in one step, here or of a plan: about a millisecond."""


def in_steps(containers: Iterable[ContainerId]) -> Iterator[list[ContainerId]]:
    """Yield the containers in small groups."""
    left = iter(containers)
    while step := list(islice(left, _STEP)):
        yield step


def conditions(observed: Observed, now: float) -> set[Condition]:
    """Return the conditions that hold now; the caller records since when."""
    return {condition for found in finding(observed, now) for condition in found}


def finding(observed: Observed, now: float) -> Iterator[list[Condition]]:
    """Yield the conditions that hold now, in steps."""
    inventory = observed.inventory
    yield [set_back(container) for container in inventory.set_back()]
    yield [deleted(container) for container in inventory.deleted]
    for containers in in_steps(observed.active_containers()):
        yield _conditions_of(observed, [observed.containers[each] for each in containers], now)
    able = [node for node in observed.nodes if observed.takes_roles(node, now)]
    yield list(map(up, able))
    alive = [node for node in observed.nodes if observed.is_alive(node, now)]
    for volume in volumes_in_use(observed):
        led = any(inventory.open_led[node, volume.name] > 0 for node in alive)
        lacking = [node for node in able if inventory.open_led[node, volume.name] <= 0]
        yield [openless(node, volume) for node in lacking if not (led and observed.nodes[node].full)]


def _conditions_of(observed: Observed, records: Iterable[ContainerRecord], now: float) -> list[Condition]:
    found = []
    for record in records:
        if not observed.is_alive(record.leader, now):
            continue
        replica = observed.replica(record.leader, record.container_id)
        if (replica is None and observed.is_told(record.leader)) or (replica and replica.role != "primary"):
            found.append(idle(record))
        if record.kind == CATALOG and observed.unheard_by(record.leader, now):
            found.append(apart(record))
    return found


def forgettable(observed: Observed, now: float) -> list[ContainerId]:
    """Return the containers that have been deleted for `forget_after_s`, long enough for every running node to have
    seen that; by id. Their records can be removed."""
    long_ago = now - observed.settings.forget_after_s
    containers = sorted(observed.inventory.deleted)
    return [each for each in containers if observed.since.get(deleted(each), now) <= long_ago]


def volumes_in_use(observed: Observed) -> list[VolumeRecord]:
    """Return the default volume and the volumes with containers, by name. Each node that such a volume admits should
    lead an open container of it."""
    used = observed.inventory.volumes() | {DEFAULT_VOLUME}
    return [observed.volumes.get(name) or VolumeRecord(name) for name in sorted(used)]


# --- the conditions


def idle(record: ContainerRecord) -> Condition:
    """The container's leader is alive but does not lead it."""
    return "idle", record.container_id, str(record.epoch)


def deleted(container: ContainerId) -> Condition:
    """The container is deleted."""
    return "deleted", container, ""


def set_back(container: ContainerId) -> Condition:
    """Some node knows a newer record of the container."""
    return "set back", container, ""


def apart(record: ContainerRecord) -> Condition:
    """The catalog's leader does not hear some node that is not dead."""
    return "apart", record.container_id, str(record.epoch)


def openless(node: NodeId, volume: VolumeRecord) -> Condition:
    """The node leads no open container of the volume."""
    return "openless", node, volume.name
