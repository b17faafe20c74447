"""The cluster's feature level, as it is shown and changed: `headrace features`, and UpdateFeatures of Kafka's tools.

Any node answers. What is asked for stands in the cluster store; the controller raises the level (control.levels). To
Kafka's clients the level is the finalized feature `headrace.version`. It never falls: what a level lets nodes write is
not read by versions below it. So Kafka's safe downgrade is refused for any level that anything may have been written
at, and the unsafe one always, for it would lose records.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.levels import FEATURE, NEWEST, OLDEST
from headrace.partitions.admin_params import Methods, NoParams, Params
from headrace.partitions.caller import Caller
from headrace.store import features
from headrace.wire.api_keys import ApiKey
from headrace.wire.generic_codec import field

if TYPE_CHECKING:
    from headrace.kafka.dispatch import Broker

log = structlog.get_logger()

KafkaHandler = Callable[["Broker", Any, Caller], Awaitable[Mapping[str, object]]]

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
RAISED_S: Final = 30.0
"""So long who asks for a level waits for it, at most; it comes nevertheless."""
LOOK_S: Final = 0.1


# --- Headrace's own calls


class Upgrade(Params, frozen=True):
    level: Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)] | None = None
    """None: the highest that all nodes support."""
    validate_only: bool = False
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = RAISED_S


class Hold(Params, frozen=True):
    level: Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)] | None = None
    """None: where it is."""
    off: bool = False


class Wait(Params, frozen=True):
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=10 * 365 * 86_400)]


async def features_show(broker: "Broker", params: NoParams) -> dict[str, object]:
    """The level, what the nodes support, and what it waits for."""
    record = await broker.store(features.get_features)
    nodes = broker.cluster.nodes()
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
            {"node": node, "oldest_level": oldest, "newest_level": newest} for node, (oldest, newest) in ranges.items()
        ],
    }


async def features_upgrade(broker: "Broker", params: Upgrade) -> dict[str, object]:
    """How things are once the level is raised, or `wait_s` later. Raises KafkaError where it cannot be raised."""
    level = features.common(broker.cluster.nodes()) if params.level is None else params.level
    await raise_to(broker, level, validate_only=params.validate_only, timeout_s=params.wait_s)
    return await features_show(broker, NoParams())


async def features_hold(broker: "Broker", params: Hold) -> dict[str, object]:
    """How things are then. Raises KafkaError for a level below the one that there is."""
    if params.off and params.level is not None:
        raise KafkaError(Code.INVALID_REQUEST, "a hold is taken off, or set at a level: not both")
    present = await broker.store(features.get_features)
    most = None if params.off else present.required if params.level is None else params.level
    await broker.store(lambda store: features.hold(store, most))
    broker.cluster.view.refresh()
    log.info("feature level", held_at=most)
    return await features_show(broker, NoParams())


async def features_wait(broker: "Broker", params: Wait) -> dict[str, object]:
    """How things are with another time before the level is raised by itself."""
    await broker.store(lambda store: features.set_wait(store, params.wait_s))
    broker.cluster.view.refresh()
    return await features_show(broker, NoParams())


async def raise_to(broker: "Broker", level: int, *, validate_only: bool = False, timeout_s: float = RAISED_S) -> None:
    """Have the controller raise the level; returns once it is, or after `timeout_s`. Raises KafkaError."""
    await broker.store(lambda store: features.ask_for(store, level, validate_only=validate_only))
    if validate_only:
        return
    log.info("feature level", wanted=level)
    view = broker.cluster.view
    view.refresh()
    deadline = broker.loop.time() + timeout_s
    while view.features.level < level and broker.loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)  # the view has no event for one record


METHODS: Final[Methods] = {
    "features.show": (NoParams, features_show),
    "features.upgrade": (Upgrade, features_upgrade),
    "features.hold": (Hold, features_hold),
    "features.wait": (Wait, features_wait),
}


# --- Kafka's UpdateFeatures


async def update_features(broker: "Broker", request: Any, session: Caller) -> Mapping[str, object]:
    """UpdateFeatures 1-2 (KIP-584, KIP-778). All are checked before any is changed."""
    updates = list(request.feature_updates)
    timeout_s = field(request, "timeout", int(RAISED_S * 1000)) / 1000
    errors: dict[str, KafkaError | None] = {}
    for update in updates:
        errors[update.feature] = await _fault(broker, update)
    if not any(errors.values()) and not request.validate_only:
        for update in updates:
            try:
                await raise_to(broker, update.max_version_level, timeout_s=min(max(timeout_s, 0.0), RAISED_S))
            except KafkaError as error:
                errors[update.feature] = error
    failed = next(((name, error) for name, error in errors.items() if error is not None), None)
    code, message = Code.NONE, None
    if failed is not None and request.__version__ >= 2:  # from then on there are no results for each
        code = Code(failed[1].code)
        message = f"The update failed for all features since the following feature had an error: {failed[1]}"
    return {
        "error_code": int(code),
        "error_message": message,
        "results": [
            {
                "feature": name,
                "error_code": int(Code.NONE if error is None else error.code),
                "error_message": None if error is None else str(error),
            }
            for name, error in errors.items()
        ],
    }


async def _fault(broker: "Broker", update: Any) -> KafkaError | None:
    """Why an update cannot be made."""
    level, kind = update.max_version_level, update.upgrade_type
    at = (await broker.store(features.get_features)).required
    if update.feature != FEATURE:
        return KafkaError(
            Code.INVALID_UPDATE_VERSION, f"there is no feature {update.feature!r:.80}; there is {FEATURE}"
        )
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return KafkaError(Code.INVALID_REQUEST, f"upgrade type {kind} is none of 1 (upgrade), 2 (safe), 3 (unsafe)")
    if level < at and kind == UPGRADE:
        return KafkaError(
            Code.INVALID_UPDATE_VERSION,
            f"{FEATURE} is {at}: to have it at {level} is a downgrade, which was not asked for",
        )
    if level < at:
        what = (
            "a safe downgrade cannot be: since the level was raised, what was written is not read by older versions"
            if kind == SAFE_DOWNGRADE
            else "an unsafe downgrade would lose records, and is never made"
        )
        return KafkaError(Code.INVALID_UPDATE_VERSION, f"{FEATURE} is {at}: {what}")
    if level > at and kind != UPGRADE:
        return KafkaError(Code.INVALID_UPDATE_VERSION, f"{FEATURE} is {at}: {level} is above it, and no downgrade")
    try:
        await broker.store(lambda store: features.ask_for(store, level, validate_only=True))
    except HeadraceError as error:
        return error if isinstance(error, KafkaError) else KafkaError(Code(error.code), str(error))
    return None


HANDLERS: Final[Mapping[ApiKey, Callable[["Broker", Any, Caller], Awaitable[Mapping[str, object]]]]] = {
    ApiKey.UPDATE_FEATURES: update_features
}
