"""The content of the cluster store as this node last saw it, on the event loop.

Two daemon threads read the store: one waits for changes all the time, the other reads at once when requested. Each
hands its result to the loop, which alone changes the view and runs callbacks. While the store is unavailable the view
stays as it was; `reachable_at` shows how old it may be.

An old state is never shown after a newer one. A read returns all changes between the view's revision and the one that
it reached, so a read that ends no later than the view's current revision is dropped as a whole; this node's own put,
which may be ahead of all reads, is only replaced by higher versions. If the store itself was restored to an old copy,
that copy is shown, as a whole: code that acts on it checks what it must not be used for (store.lineage).
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
"""Seconds for which a read waits for changes."""
AGAIN_S = 0.2
"""Seconds before the next read after a failed one."""
WHOLE_S = 30.0
"""Seconds between two reads of everything: if the store was restored to an old copy and has passed the last seen
revision before the next read, only records with older versions show it."""
PUTS_S = 30.0
"""Seconds after a restore of the store for which an earlier put may still be reported, with a version that is no longer
valid."""


@dataclass(slots=True)
class Changed:
    """The records that a read found created, replaced or removed."""

    containers: set[ContainerId] = field(default_factory=set)
    nodes: set[NodeId] = field(default_factory=set)
    volumes: set[str] = field(default_factory=set)
    lease: bool = False
    cluster: bool = False
    balance: bool = False
    features: bool = False
    counters: bool = False
    """A counter is below its highest value seen; other changes of counters are not reported."""

    def __bool__(self) -> bool:
        settings = self.cluster or self.balance or self.features or self.counters
        return bool(self.containers or self.nodes or self.volumes or self.lease or settings)


class ClusterView:
    """The store's records by id. Used only on the loop that ran `start`; the mappings are not to be modified."""

    def __init__(self, store: ClusterStore) -> None:
        self.cluster: ClusterRecord | None = None
        self.nodes: dict[NodeId, NodeRecord] = {}
        self.containers: dict[ContainerId, ContainerRecord] = {}
        self.versions: dict[ContainerId, int] = {}
        self.deleted = DeletedContainers()
        """Deleted containers that no longer have a record."""
        self.volumes: dict[str, VolumeRecord] = {}
        self.lease: LeaseRecord | None = None
        self.lease_version: int | None = None
        self.balance = BalanceRecord()
        self.features = FeaturesRecord()
        self.counters: dict[str, int] = {}
        """The next id of each counter, by key."""
        self.highest: dict[str, int] = {}
        """The highest value seen of each counter, by key: the counters of a store restored to an old copy are below it.
        """
        self.undeleted: set[ContainerId] = set()
        """Containers that were deleted, but are not deleted in the old copy to which the store was restored."""
        self.revision = 0
        self.reachable_at = float("-inf")
        """Loop time of the last read that succeeded."""
        self.fell_at = float("-inf")
        """Loop time at which this node last saw that the store had been restored to an old copy."""
        self._generation = 0
        self._store = store
        self._known: dict[str, int] = {}
        """Version of every record shown, by key."""
        self._callbacks: list[Callable[[Changed], None]] = []
        self._started = asyncio.Event()
        self._closed = threading.Event()
        self._asked = threading.Event()

    async def start(self) -> None:
        """Begin to follow the store; return after the first complete read, which waits while the store is
        unavailable."""
        self._loop = asyncio.get_running_loop()
        for name, target in (("store-watch", self._watch), ("store-look", self._look_when_asked)):
            threading.Thread(target=target, name=name, daemon=True).start()
        await self._started.wait()

    async def close(self) -> None:
        """Stop reading; no callback runs afterwards. A thread that is waiting for the store soon ends by itself."""
        self._closed.set()
        self._asked.set()

    def on_change(self, callback: Callable[[Changed], None]) -> None:
        """Call `callback` on the loop after each change of the view from now on. What the view shows already is
        reported only to callbacks that are registered before `start`."""
        self._callbacks.append(callback)

    def may(self, level: int) -> bool:
        """Return whether data of a feature level may be written (store.features)."""
        return self.features.level >= level

    def is_deleted(self, container: ContainerId) -> bool:
        """Return whether a container is known to be deleted. A container without a record may have lost it."""
        record = self.containers.get(container)
        return container in self.deleted if record is None else record.state == "deleted"

    def refresh(self) -> None:
        """Read the store at once, independently of the watch."""
        self._asked.set()

    def put_seen(self, record: ContainerRecord, version: int) -> None:
        """Show a record that this node's own `put_container` has just written, without a read."""
        if self._loop.time() - self.fell_at < PUTS_S:
            self.refresh()
            return
        key = f"{records.CONTAINER_PREFIX}{record.container_id}"
        if version > self._known.get(key, 0):
            self._known[key] = version
            self.containers[record.container_id] = record
            self.versions[record.container_id] = version
            self._notify(Changed(containers={record.container_id}))

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
                log.exception("reading the cluster store failed unexpectedly")
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
                continue  # the watch reports it, and reads again
            except Exception:
                log.exception("reading the cluster store failed unexpectedly")

    def _look(self, timeout_s: float, *, whole: bool = False) -> None:
        """Read the changes, or everything, and wait until the loop has processed them: the next read begins where this
        one ended."""
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
            self.revision = 0  # the read began at a revision from before the restore: read everything next
            self.refresh()
        elif changes.generation > self._generation or self._is_from_restored_copy(changes):
            self._show_restored_copy(changes, changed)
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
        self._notify(changed)

    def _is_from_restored_copy(self, changes: Changes) -> bool:
        """Return whether the content at this revision cannot descend from the content shown by this view.

        That is so if a record has an older version, if a record is older than the view's revision but was not there
        then, or, if nothing else was written, if a record is missing.
        """
        if not (changes.whole and changes.one_count) or changes.generation < self._generation:
            return False
        if any(each.version < self._known.get(each.key, 0) <= changes.revision for each in changes.records):
            return True
        if changes.revision < self.revision:
            return False  # this read began before another one
        if any(self._known.get(each.key, 0) < each.version <= self.revision for each in changes.records):
            return True
        listed = {each.key for each in changes.records}
        return changes.revision == self.revision and any(
            key not in listed and version <= self.revision for key, version in self._known.items()
        )

    def _show_restored_copy(self, changes: Changes, changed: Changed) -> None:
        """Replace all that was shown by the present content."""
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

    def _notify(self, changed: Changed) -> None:
        if changed:
            for callback in tuple(self._callbacks):
                try:
                    callback(changed)
                except Exception:
                    log.exception("a callback for changed records of the cluster failed")

    def _show(self, key: str, value: bytes | None, version: int, changed: Changed) -> None:
        """Show a record, or remove it from the view (None). A record that cannot be read stays as it was."""
        try:
            self._place(key, value, version, changed)
        except CorruptLog as error:
            log.error("a record of the cluster store is ignored", key=key, error=str(error))
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
                if self._started.is_set():  # the first read reports everything anyway
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
