"""Admin calls that show and change the cluster's feature level (`headrace features`).

Any node answers. The requested level is stored in the cluster store; the controller raises the level (control.levels).
The level never falls, since older versions cannot read what nodes may write at a higher level. Kafka's tools use
UpdateFeatures (kafka.update_features).
"""

import asyncio
from typing import Annotated, Final

import msgspec
import structlog

from headrace.base.errors import Code, KafkaError
from headrace.base.levels import NEWEST, OLDEST
from headrace.base.runtime import Runtime
from headrace.partitions.admin_params import Method, Methods, NoParams, Params
from headrace.partitions.admin_rights import CLUSTER_ADMIN
from headrace.partitions.cluster_client import ClusterClient
from headrace.store import features
from headrace.store.protocol import StoreCall

log = structlog.get_logger()

RAISED_S: Final = 30.0
"""How long a caller waits for the requested level by default, in seconds; the level is raised later anyway."""
LOOK_S: Final = 0.1


class Upgrade(Params, frozen=True):
    level: Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)] | None = None
    """None means the highest level that all nodes support."""
    validate_only: bool = False
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = RAISED_S


class Hold(Params, frozen=True):
    level: Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)] | None = None
    """None means the present level."""
    off: bool = False


class Wait(Params, frozen=True):
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=10 * 365 * 86_400)]


TAKEN: Final = (Upgrade, Hold, Wait)
_DECODERS: Final = [msgspec.msgpack.Decoder(params) for params in TAKEN]
"""Decoders built as this module is loaded; see admin_api."""


class FeatureCalls:
    """The admin calls on the cluster's feature level."""

    def __init__(self, *, runtime: Runtime, cluster: ClusterClient, store: StoreCall) -> None:
        self._runtime = runtime
        self._cluster = cluster
        self._store = store

    def methods(self) -> Methods:
        """By method name: its parameters, its handler, and the right that it requires."""
        return {
            "features.show": Method(NoParams, self._show, CLUSTER_ADMIN),
            "features.upgrade": Method(Upgrade, self._upgrade, CLUSTER_ADMIN),
            "features.hold": Method(Hold, self._hold, CLUSTER_ADMIN),
            "features.wait": Method(Wait, self._wait, CLUSTER_ADMIN),
        }

    async def _show(self, params: NoParams) -> dict[str, object]:
        """The level, what the nodes support, and what the level waits for."""
        return await self._shown()

    async def _shown(self) -> dict[str, object]:
        record = await self._store(features.get_features)
        nodes = self._cluster.nodes()
        ranges = {node.node_id: features.range_of(node) for node in nodes}
        return {
            "level": record.level,
            "raising": record.raising if record.raising > record.level else None,
            "wanted": record.wanted if record.wanted > record.level else None,
            "held_at": record.most,
            "supported_by_all": features.common(nodes),
            "raised_by_itself_after_s": record.wait_s,
            "able_since_ms": record.able_since or None,
            "epoch": record.epoch,
            "this_version": [int(OLDEST), int(NEWEST)],
            "nodes": [
                {"node": node, "oldest_level": oldest, "newest_level": newest}
                for node, (oldest, newest) in ranges.items()
            ],
        }

    async def _upgrade(self, params: Upgrade) -> dict[str, object]:
        """The state once the level is raised, or `wait_s` seconds later. Raises KafkaError if it cannot be raised."""
        level = features.common(self._cluster.nodes()) if params.level is None else params.level
        await self.raise_to(level, validate_only=params.validate_only, timeout_s=params.wait_s)
        return await self._shown()

    async def _hold(self, params: Hold) -> dict[str, object]:
        """Set or remove the hold, and return the state. Raises KafkaError for a level below the present one."""
        if params.off and params.level is not None:
            raise KafkaError(Code.INVALID_REQUEST, "a hold is either removed or set at a level, not both")
        present = await self._store(features.get_features)
        most = None if params.off else present.required if params.level is None else params.level
        await self._store(lambda store: features.hold(store, most))
        self._cluster.view.refresh()
        log.info("feature level", held_at=most)
        return await self._shown()

    async def _wait(self, params: Wait) -> dict[str, object]:
        """Set the time after which the level is raised automatically, and return the state."""
        await self._store(lambda store: features.set_wait(store, params.wait_s))
        self._cluster.view.refresh()
        return await self._shown()

    async def raise_to(self, level: int, *, validate_only: bool = False, timeout_s: float = RAISED_S) -> None:
        """Have the controller raise the level; returns when it is raised, or after `timeout_s`. Raises KafkaError."""
        await self._store(lambda store: features.ask_for(store, level, validate_only=validate_only))
        if validate_only:
            return
        log.info("feature level", wanted=level)
        view = self._cluster.view
        view.refresh()
        deadline = self._runtime.loop.time() + timeout_s
        while view.features.level < level and self._runtime.loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # the view has no event for one record
