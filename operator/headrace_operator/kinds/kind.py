"""The reconcile that Volumes, Streams, Topics, StreamUsers and ReplicationLinks share, by the cluster's admin calls.

All follow the same steps: find the cluster, read the present state, create or change it, report the outcome. A resource
that is deleted with `reclaimPolicy: Delete` is deleted in the cluster too, by a finalizer that gives up when the
cluster is gone.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace_operator.admin import Calls
from headrace_operator.engine import Body, Cache, Key
from headrace_operator.kinds.finalizers import is_ending, is_leaving, keep_finalizer
from headrace_operator.kinds.index import Index
from headrace_operator.kinds.permissions import PermissionStep
from headrace_operator.kinds.references import Unresolved, check_oldest, cluster_key, invalid, resolve
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.kube import Kube
from headrace_operator.routes import Routes
from headrace_operator.specs import FINALIZER, LinkSpec, Spec, StreamSpec, TopicSpec, UserSpec, VolumeSpec
from headrace_operator.status import Condition

AGAIN_S: Final = 15.0
"""Seconds to the next reconcile after a failure, or while the result is not usable."""
FIGURES_AGAIN_S: Final = 60.0
"""Seconds to the next reconcile after a success or a final refusal: refreshes the figures."""
END_AGAIN_S: Final = 5.0
EARLY_S: Final = 2.0
ENDING_S: Final = 3.0
"""Seconds for the deletion in the cluster when the resource's namespace is being deleted, which leaves little time
(kinds.finalizers).
"""
AGAIN_EACH_S: Final = 0.05
FIGURES_EACH_S: Final = 0.3
"""With n resources of a kind the delay is at least about n times this, so that the operator stays nearly idle."""
TYPES: Final = ("Reconciled", "Usable")
FINAL: Final = frozenset(
    {
        Code.INVALID_CONFIG,
        Code.INVALID_PARTITIONS,
        Code.INVALID_REQUEST,
        Code.INVALID_TOPIC_EXCEPTION,
        Code.POLICY_VIOLATION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Error codes that the same request would get again."""

S = TypeVar("S", VolumeSpec, StreamSpec, TopicSpec, LinkSpec, UserSpec)
Figures = Mapping[str, Any]
Wake = Callable[[Collection[Key]], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a reconcile. `problem`: why the result is not usable yet, though it is as asked."""

    figures: Figures
    problem: str = ""
    conditions: Sequence[Condition] = ()
    """Conditions in addition to those that all kinds have."""


class Kind(ABC, Generic[S]):
    """One kind of resource in a cluster. A subclass says how it is created and deleted there."""

    name: ClassVar[str]
    types: ClassVar[Sequence[str]] = TYPES
    aside: ClassVar[Sequence[str]] = ()
    """Those of `types` that Ready does not depend on."""
    spec: type[S]

    def __init__(
        self,
        *,
        kube: Kube,
        admin: Calls,
        reporter: Reporter,
        cache: Cache,
        index: Index,
        wake: Wake = lambda _keys: None,
        routes: Routes | None = None,
    ) -> None:
        """`wake`: called with resources that waited for what was created. `routes`: how `admin` reaches clusters."""
        self._routes = routes
        self._wake = wake
        self._kube = kube
        self._admin = admin
        self._reporter = reporter
        self._cache = cache
        self._index = index
        self._permissions = PermissionStep(admin=admin)

    async def reconcile(self, key: Key, body: Body | None) -> float | None:
        """See engine.Reconcile."""
        if body is None:
            return None
        try:
            spec = msgspec.convert(body["spec"], self.spec)
        except msgspec.ValidationError as error:
            await keep_finalizer(self._kube, self._cache, body, wanted=False)
            if not body["metadata"].get("deletionTimestamp"):
                await self._report(body, [invalid(error)], {})
            return None
        if body["metadata"].get("deletionTimestamp") or is_ending(self._cache, key.namespace):
            return await self._end(body, spec)
        if self._is_early(body, spec):
            return EARLY_S
        await keep_finalizer(self._kube, self._cache, body, wanted=self._deletes(spec))
        conditions, figures, again = await self._advance(body, spec)
        await self._report(body, conditions, figures)
        return again

    async def _report(self, body: Body, conditions: Sequence[Condition], figures: Figures) -> None:
        await self._reporter.report(body, conditions, figures, types=self.types, aside=self.aside)

    async def _advance(self, body: Body, spec: S) -> tuple[list[Condition], Figures, float | None]:
        try:
            _, _, bootstrap = resolve(self._cache, body, spec.cluster_ref)
            check_oldest(self._cache, self._index, body)
            made: Outcome = await self._make(bootstrap, body, spec)
        except Unresolved as error:
            return [error.condition], {}, None  # the index triggers a reconcile when that changes
        except KafkaError as error:
            again = self._again(FIGURES_AGAIN_S, FIGURES_EACH_S) if error.code in FINAL else AGAIN_S
            return [Condition("Reconciled", False, "Refused", str(error))], {}, again
        except HeadraceError as error:
            again = self._again(AGAIN_S, AGAIN_EACH_S)
            return [Condition("Reconciled", False, "NoAnswer", str(error))], {}, again
        usable = (
            Condition("Usable", False, "Impossible", made.problem)
            if made.problem
            else Condition("Usable", True, "Usable")
        )
        again = AGAIN_S if made.problem else self._again(FIGURES_AGAIN_S, FIGURES_EACH_S)
        return [Condition("Reconciled", True, "AsAsked"), usable, *made.conditions], made.figures, again

    def _is_early(self, body: Body, spec: S) -> bool:
        """Return whether it is not known yet, since the operator started, how the cluster is reached."""
        key = cluster_key(body, spec.cluster_ref)
        found = self._cache.get(key)
        if self._routes is None or found is None or found["metadata"].get("deletionTimestamp"):
            return False
        security = (found.get("spec") or {}).get("security") or {}
        return bool(security.get("enabled")) and not self._routes.is_known(key.namespace, key.name)

    # --- per kind

    @abstractmethod
    async def _make(self, bootstrap: str, body: Body, spec: S) -> Outcome:
        """Create or change the object in the cluster. Raises HeadraceError, and Unresolved for faults that a retry does
        not change.
        """

    async def _unmake(self, bootstrap: str, body: Body, spec: S) -> None:
        """Delete the object in the cluster. Raises HeadraceError."""

    # --- internals

    def _deletes(self, spec: Spec) -> bool:
        return getattr(spec, "reclaim_policy", "Retain") == "Delete"

    def _again(self, least_s: float, each_s: float) -> float:
        return max(least_s, each_s * self._cache.count(self.name)) * random.uniform(0.9, 1.1)

    async def _end(self, body: Body, spec: S) -> float | None:
        if FINALIZER in (body["metadata"].get("finalizers") or []):
            wanted = self._deletes(spec) and not is_leaving(self._cache)
            why = await self._delete_in_cluster(body, spec) if wanted else ""
            if why and is_ending(self._cache, body["metadata"]["namespace"]):
                await self._kube.tell(body, reason="NotDeleted", message=f"left in the cluster: {why}", warning=True)
            elif why:
                hint = "; with reclaimPolicy Retain it is left as it is" if hasattr(spec, "reclaim_policy") else ""
                await self._report(body, [Condition("Reconciled", False, "NotDeleted", why + hint)], {})
                return END_AGAIN_S
            await keep_finalizer(self._kube, self._cache, body, wanted=False)
        self._reporter.forget(body["metadata"]["uid"])
        return None

    async def _delete_in_cluster(self, body: Body, spec: S) -> str:
        """Delete the object in the cluster; return why that must be retried, or "" if it is gone or cannot be deleted
        by anybody.
        """
        ending = is_ending(self._cache, body["metadata"]["namespace"])
        try:
            _, _, bootstrap = resolve(self._cache, body, spec.cluster_ref)
            check_oldest(self._cache, self._index, body)
            async with asyncio.timeout(ENDING_S if ending else None):
                await self._unmake(bootstrap, body, spec)
        except TimeoutError:
            return f"no answer within {ENDING_S:g} s"
        except Unresolved:
            return ""  # the cluster is gone, or an older resource owns the object: nothing to delete
        except KafkaError as error:
            if error.code not in FINAL:
                return str(error)
            if error.code is not Code.UNKNOWN_TOPIC_OR_PARTITION:
                await self._kube.tell(body, reason="NotDeleted", message=f"left in the cluster: {error}", warning=True)
        except HeadraceError as error:
            return str(error)
        return ""
