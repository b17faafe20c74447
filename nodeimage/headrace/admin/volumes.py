"""Headrace's own admin calls on volumes. Any node answers them.

A volume is changed in the cluster store; the controller's plan then changes its containers.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import structlog
from msgspec import UNSET, UnsetType, structs

from headrace.admin.cluster_rules import DELETED, refused
from headrace.base.errors import HeadraceError
from headrace.catalog.rows import StreamRow
from headrace.partitions.admin_params import Method, Methods, NoParams, Params
from headrace.partitions.admin_rights import CLUSTER_ADMIN
from headrace.partitions.cluster_client import ClusterClient, ControllerLink
from headrace.partitions.placement import may_hold, volume_fault, volume_warning
from headrace.storage.volume_limits import VolumeLimits
from headrace.store import records
from headrace.store.protocol import StoreCall
from headrace.store.record_types import default_min_in_sync
from headrace.store.records import ContainerRecord, NodeRecord, VolumeRecord

log = structlog.get_logger()


class OneVolume(Params, frozen=True):
    name: str


class VolumeFields(Params, frozen=True):
    """The given fields of a volume; the others stay as they are, or get their defaults."""

    name: str
    replicas: int | UnsetType = UNSET
    min_in_sync: int | UnsetType = UNSET
    spread: str | UnsetType = UNSET
    zones: tuple[str, ...] | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    size_limit: int | UnsetType = UNSET
    durability: str | UnsetType = UNSET


TAKEN: Final = (OneVolume, VolumeFields)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class VolumeCalls:
    """The admin calls on volumes, and the checks of the volumes that streams name."""

    def __init__(
        self, *, cluster: ClusterClient, store: StoreCall, controller: ControllerLink, volume_limits: VolumeLimits
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._controller = controller
        self._volume_limits = volume_limits

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        return {
            "volume.list": Method(NoParams, self._list, CLUSTER_ADMIN),
            "volume.show": Method(OneVolume, self._show, CLUSTER_ADMIN),
            "volume.create": Method(VolumeFields, self._create, CLUSTER_ADMIN),
            "volume.alter": Method(VolumeFields, self._alter, CLUSTER_ADMIN),
        }

    async def _list(self, params: NoParams) -> list[dict[str, object]]:
        """All volumes, each with its problem, such as more replicas wanted than there are nodes."""
        view = self._cluster.view
        nodes, containers = list(view.nodes.values()), list(view.containers.values())
        held = await self._volume_limits.by_volume()
        return [
            volume_shown(each, nodes, containers, held=held.get(name, 0)) for name, each in sorted(view.volumes.items())
        ]

    async def _show(self, params: OneVolume) -> dict[str, object]:
        """One volume."""
        view = self._cluster.view
        volume = await self._volume(params.name)
        held = (await self._volume_limits.by_volume()).get(volume.name, 0)
        return volume_shown(volume, list(view.nodes.values()), list(view.containers.values()), held=held)

    async def _create(self, params: VolumeFields) -> dict[str, object]:
        """Create a volume and return it. By default it has as many replicas as the default volume, and the larger half
        must be in sync."""
        if params.name in self._cluster.view.volumes:
            raise refused(f"volume {params.name!r} exists; change it with `headrace volume alter {params.name}`")
        default = self._cluster.view.volumes.get("default") or VolumeRecord("default")
        replicas = default.replicas if isinstance(params.replicas, UnsetType) else params.replicas
        draft = VolumeRecord(params.name, replicas=replicas, min_in_sync=default_min_in_sync(replicas))

        def decide(present: VolumeRecord | None) -> VolumeRecord:
            if present is not None:
                raise refused(f"volume {params.name!r} exists; change it with `headrace volume alter {params.name}`")
            return _with_fields(draft, params)

        return await self._put(_with_fields(draft, params), decide)

    async def _alter(self, params: VolumeFields) -> dict[str, object]:
        """Change a volume and return it. Its containers follow: replicas are created or removed gradually."""
        present = await self._volume(params.name)

        def decide(found: VolumeRecord | None) -> VolumeRecord:
            if found is None:
                raise self._unknown(params.name)
            return _with_fields(found, params)

        return await self._put(_with_fields(present, params), decide)

    async def _put(
        self, wanted: VolumeRecord, decide: Callable[[VolumeRecord | None], VolumeRecord]
    ) -> dict[str, object]:
        records.check_volume(wanted)
        view = self._cluster.view
        nodes = list(view.nodes.values())
        fault = volume_fault(wanted, nodes)
        if fault is not None:
            raise refused(fault)
        made = await self._store(lambda store: records.change_volume(store, wanted.name, decide))
        view.refresh()
        log.info("volume", **msgspec.to_builtins(made))
        held = (await self._volume_limits.by_volume()).get(made.name, 0)
        return volume_shown(made, nodes, list(view.containers.values()), held=held)

    async def _volume(self, name: str) -> VolumeRecord:
        volume = self._cluster.view.volumes.get(name)
        if volume is None:  # another node may have created it a moment ago
            volume = await self._store(lambda store: records.get_volume(store, name))
        if volume is None:
            raise self._unknown(name)
        return volume

    def _unknown(self, name: str) -> HeadraceError:
        known = ", ".join(sorted(self._cluster.view.volumes)) or "none"
        return refused(f"there is no volume {name!r:.80}; there are: {known}; `headrace volume create` creates one")

    async def for_stream(self, name: str) -> None:
        """Ensure that a volume that a stream names exists, and has a container. Raises KafkaError."""
        volume = await self._volume(name)
        if self._cluster.open_data(volume=name):
            return
        nodes = self._cluster.nodes()
        fault = volume_fault(volume, nodes)
        if fault is not None:
            raise refused(fault)
        able = [node.node_id for node in nodes if may_hold(node, volume)]
        first = self._cluster.node_id if self._cluster.node_id in able else able[0]
        await self._controller.create(first=first, volume=volume)

    def warning_of(self, row: StreamRow) -> str | None:
        """Why the stream's volume cannot be used at present, or None."""
        volume = self._cluster.view.volumes.get(row.policy.volume)
        if volume is None:
            return f"its volume {row.policy.volume!r} no longer exists"
        return volume_fault(volume, self._cluster.nodes())


def _with_fields(volume: VolumeRecord, params: VolumeFields) -> VolumeRecord:
    said = {
        name: value
        for name, value in structs.asdict(params).items()
        if name != "name" and not isinstance(value, UnsetType)
    }
    return structs.replace(volume, **said)


def volume_shown(
    volume: VolumeRecord, nodes: list[NodeRecord], containers: list[ContainerRecord], *, held: int
) -> dict[str, object]:
    used = [each for each in containers if each.volume == volume.name and each.state != DELETED]
    return {
        "volume": volume.name,
        "replicas": volume.replicas,
        "min_in_sync": volume.min_in_sync,
        "spread": volume.spread,
        "zones": list(volume.zones),
        "labels": volume.labels,
        "size_limit_bytes": volume.size_limit or None,
        "durability": volume.durability,
        "containers": len(used),
        "held_bytes": held,
        "problem": (volume_fault(volume, nodes) or _over_limit(volume, held) or volume_warning(volume, nodes)),
    }


def _over_limit(volume: VolumeRecord, held: int) -> str | None:
    if not volume.size_limit or held < volume.size_limit:
        return None
    return f"volume {volume.name!r} holds {held} bytes of at most {volume.size_limit}: it accepts no records"
