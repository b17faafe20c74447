"""What the cluster store holds, as this node last saw it, on the event loop.

Two daemon threads look at the store: one waits for changes all the time, the other looks at once when it is asked to.
Each hands what it found to the loop, where alone the view changes and callbacks run. While the store is away the view
stays as it was; `reachable_at` tells how old it may be.

An old state is never shown after a newer one. A look tells all that changed between the revision that the view stood at
and the one that it reached, so a look that ends no later than the view already stands is dropped whole; and one's own
put, which may be ahead of all looks, gives way to higher versions only. Where the store itself was set back to an old
copy, that copy is shown, as a whole: who goes by it sees to what must not be done by it (store.lineage).
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from headrace.base.errors import CorruptLog
from headrace.base.ids import ContainerId, NodeId
from headrace.store import records
from headrace.store.protocol import Changes, ClusterStore, StoreUnavailable
from headrace.store.records import (
    BalanceRecord,
    ClusterRecord,
    ContainerRecord,
    DeletedContainers,
    FeaturesRecord,
    LeaseRecord,
    NextId,
    NodeRecord,
    ProducerIdBlock,
    R,
    VolumeRecord,
)

K = TypeVar("K")
V = TypeVar("V")

log = structlog.get_logger()

WATCH_S = 1.0
AGAIN_S = 0.2
"""After a look that failed."""
WHOLE_S = 30.0
"""So often everything is looked at: a store that was set back, and went on past the revision that was seen last before
anybody looked again, is known only by what it has in an older version."""
PUTS_S = 30.0
"""So long after the store was set back a put of before may be told of, with a version that is no more."""


@dataclass(slots=True)
class Changed:
    """What a look found other than before: made, replaced or removed."""

    containers: set[ContainerId] = field(default_factory=set)
    nodes: set[NodeId] = field(default_factory=set)
    volumes: set[str] = field(default_factory=set)
    lease: bool = False
    cluster: bool = False
    balance: bool = False
    features: bool = False
    counters: bool = False
    """One fell; that one rises is told to nobody."""

    def __bool__(self) -> bool:
        settings = self.cluster or self.balance or self.features or self.counters
        return bool(self.containers or self.nodes or self.volumes or self.lease or settings)


class ClusterView:
    """The store's records by id. Only the loop that ran `start` may use it; the mappings are read, never written."""

    def __init__(self, store: ClusterStore) -> None:
        self.cluster: ClusterRecord | None = None
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.containers: dict[ContainerId, ContainerRecord] = {}
        self.versions: dict[ContainerId, int] = {}
        self.deleted = DeletedContainers()
        """Those that have no record any more."""
        self.volumes: dict[str, VolumeRecord] = {}
        self.lease: LeaseRecord | None = None
        self.lease_version: int | None = None
        self.balance = BalanceRecord()
        self.features = FeaturesRecord()
        self.counters: dict[str, int] = {}
        """Of ids, by key: the next one."""
        self.highest: dict[str, int] = {}
        """The same, as they were when they were highest: a store that was set back falls behind it."""
        self.undeleted: set[ContainerId] = set()
        """Containers that were deleted, and are not by the old copy that the store was set back to."""
        self.revision = 0
        self.reachable_at = float("-inf")
        """Loop time of the last look that succeeded."""
        self.fell_at = float("-inf")
        """Loop time at which the store was seen to have been set back, last."""
        self._generation = 0
        self._store = store
        self._known: dict[str, int] = {}
        """Version by key, of every record shown."""
        self._callbacks: list[Callable[[Changed], None]] = []
        self._started = asyncio.Event()
        self._closed = threading.Event()
        self._asked = threading.Event()

    async def start(self) -> None:
        """Look on from now on; returns after the first whole read, for which it waits if the store is away."""
        self._loop = asyncio.get_running_loop()
        for name, target in (("store-watch", self._watch), ("store-look", self._look_when_asked)):
            threading.Thread(target=target, name=name, daemon=True).start()
        await self._started.wait()

    async def close(self) -> None:
        """Look no longer; no callback runs afterwards. A thread that waits for the store ends by itself soon."""
        self._closed.set()
        self._asked.set()

    def on_change(self, callback: Callable[[Changed], None]) -> None:
        """Call it on the loop after each change, with the view as it is then. The first one tells everything."""
        self._callbacks.append(callback)

    def may(self, level: int) -> bool:
        """Whether what belongs to a feature level may be written (store.features)."""
        return self.features.level >= level

    def is_deleted(self, container: ContainerId) -> bool:
        """Whether a container is known to be deleted. One that merely has no record may have lost it."""
        record = self.containers.get(container)
        return container in self.deleted if record is None else record.state == "deleted"

    def refresh(self) -> None:
        """Look at once, whatever the watch is about."""
        self._asked.set()

    def put_seen(self, record: ContainerRecord, version: int) -> None:
        """One's own `put_container` gave this version: show it without a look."""
        if self._loop.time() - self.fell_at < PUTS_S:
            self.refresh()
            return
        key = f"{records.CONTAINER_PREFIX}{record.container_id}"
        if version > self._known.get(key, 0):
            self._known[key] = version
            self.containers[record.container_id] = record
            self.versions[record.container_id] = version
            self._tell(Changed(containers={record.container_id}))

    # --- the threads

    def _watch(self) -> None:
        failing = False
        whole_at = time.monotonic() + WHOLE_S
        while not self._closed.is_set():
            try:
                if time.monotonic() >= whole_at:
                    whole_at = time.monotonic() + WHOLE_S
                    self._look(0, whole=True)
                self._look(WATCH_S if self._started.is_set() else 0)
            except StoreUnavailable as error:
                if not failing and not self._closed.is_set():
                    log.warning("the cluster store does not answer; roles stay as they are", error=str(error))
                failing = True
                self._closed.wait(AGAIN_S)
            except Exception:  # without this thread the node would never see a change again
                log.exception("looking at the cluster store went wrong")
                self._closed.wait(AGAIN_S)
            else:
                if failing:
                    log.info("the cluster store answers again")
                failing = False

    def _look_when_asked(self) -> None:
        while not self._closed.is_set():
            self._asked.wait()
            self._asked.clear()
            if self._closed.is_set():
                return
            try:
                self._look(0)
            except StoreUnavailable:
                continue  # the watch says so, and looks again
            except Exception:
                log.exception("looking at the cluster store went wrong")

    def _look(self, timeout_s: float, *, whole: bool = False) -> None:
        """One look, at what has changed or at all that there is; it waits until the loop has taken it in: the next one
        begins where it ended.
        """
        changes = self._store.watch("", since=0 if whole else self.revision, timeout_s=timeout_s)
        taken = threading.Event()
        try:
            self._loop.call_soon_threadsafe(self._take, changes, taken)
        except RuntimeError:  # the loop has ended without `close`
            self._closed.set()
            return
        while not taken.wait(WATCH_S):
            if self._closed.is_set() or self._loop.is_closed():
                return

    # --- the loop

    def _take(self, changes: Changes, taken: threading.Event) -> None:
        if self._closed.is_set():
            taken.set()
            return
        self.reachable_at = self._loop.time()
        changed = Changed()
        if changes.generation > self._generation and not changes.whole:
            self.revision = 0  # it was asked for what came after a revision of before: all of it is looked at next
            self.refresh()
        elif changes.generation > self._generation or self._is_of_another_line(changes):
            self._fall(changes, changed)
        elif changes.generation == self._generation and changes.revision > self.revision:
            removed = dict(changes.removed)
            if changes.whole:
                gone = self._known.keys() - {each.key for each in changes.records} - removed.keys()
                removed |= dict.fromkeys(gone, changes.revision)
            for key, version in removed.items():
                if 0 < self._known.get(key, 0) <= version:
                    self._show(key, None, 0, changed)
            for each in changes.records:
                if each.version > self._known.get(each.key, 0):
                    self._show(each.key, each.value, each.version, changed)
            self.revision = changes.revision
        taken.set()
        self._started.set()
        self._tell(changed)

    def _is_of_another_line(self, changes: Changes) -> bool:
        """Whether what the store has by that revision cannot have come of what it had by the one that this view stands
        at: a record in an older version, one of before that was not there then, or, where nothing else was written, one
        less."""
        if not (changes.whole and changes.one_count) or changes.generation < self._generation:
            return False
        if any(each.version < self._known.get(each.key, 0) <= changes.revision for each in changes.records):
            return True
        if changes.revision < self.revision:
            return False  # a look that began before another
        if any(self._known.get(each.key, 0) < each.version <= self.revision for each in changes.records):
            return True
        listed = {each.key for each in changes.records}
        return changes.revision == self.revision and any(
            key not in listed and version <= self.revision for key, version in self._known.items()
        )

    def _fall(self, changes: Changes, changed: Changed) -> None:
        """Show what there is now, in place of all that was shown."""
        self._generation = changes.generation
        if self._started.is_set():
            self.fell_at = self._loop.time()
            log.error("the cluster store was set back to an old copy", revision=changes.revision, before=self.revision)
        deleted, before = {key for key in self.containers if self.is_deleted(key)}, self.deleted
        for key in self._known.keys() - {each.key for each in changes.records}:
            self._show(key, None, 0, changed)
        for each in changes.records:
            self._show(each.key, each.value, each.version, changed)
        deleted.update(before.beyond(self.deleted))
        self.undeleted |= {each for each in deleted if not self.is_deleted(each)}
        self.revision = changes.revision

    def _tell(self, changed: Changed) -> None:
        if changed:
            for callback in tuple(self._callbacks):
                try:
                    callback(changed)
                except Exception:
                    log.exception("a change of the cluster's records was not taken up")

    def _show(self, key: str, value: bytes | None, version: int, changed: Changed) -> None:
        """Show a record, or (None) show it no longer. One that cannot be read stays as it was."""
        try:
            self._place(key, value, version, changed)
        except CorruptLog as error:
            log.error("a record of the cluster store is left aside", key=key, error=str(error))
        if value is None:
            self._known.pop(key, None)
        else:
            self._known[key] = version

    def _place(self, key: str, value: bytes | None, version: int, changed: Changed) -> None:
        kind, _, name = key.partition("/")
        match kind:
            case "container" if name.isdecimal():
                container = ContainerId(int(name))
                _set(self.containers, container, _read(value, ContainerRecord, key))
                _set(self.versions, container, None if value is None else version)
                changed.containers.add(container)
            case "node" if name.isdecimal():
                node = NodeId(int(name))
                _set(self.nodes, node, _read(value, NodeRecord, key))
                changed.nodes.add(node)
            case "volume":
                _set(self.volumes, name, _read(value, VolumeRecord, key))
                changed.volumes.add(name)
            case records.LEASE_KEY:
                self.lease = _read(value, LeaseRecord, key)
                self.lease_version = None if value is None else version
                changed.lease = True
            case records.CLUSTER_KEY:
                self.cluster = _read(value, ClusterRecord, key)
                changed.cluster = True
            case records.DELETED_KEY:
                before, self.deleted = self.deleted, _read(value, DeletedContainers, key) or DeletedContainers()
                if self._started.is_set():  # the first look is at everything anyway
                    changed.containers.update(self.deleted.beyond(before))
            case records.BALANCE_KEY:
                self.balance = _read(value, BalanceRecord, key) or BalanceRecord()
                changed.balance = True
            case records.PRODUCER_IDS_KEY:
                self._count(key, _read(value, ProducerIdBlock, key), changed)
            case "next":
                self._count(key, _read(value, NextId, key), changed)
            case records.FEATURES_KEY:
                self.features = _read(value, FeaturesRecord, key) or FeaturesRecord()
                changed.features = True

    def _count(self, key: str, counter: ProducerIdBlock | NextId | None, changed: Changed) -> None:
        at = 0 if counter is None else counter.next
        self.counters[key] = at
        self.highest[key] = max(self.highest.get(key, 0), at)
        changed.counters |= at < self.highest[key]


def _read(value: bytes | None, type_: type[R], key: str) -> R | None:
    return None if value is None else records.decode(value, type_, key)


def _set(mapping: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        mapping.pop(key, None)
    else:
        mapping[key] = value
