"""UpdateFeatures: to Kafka's tools, the cluster's feature level is the finalized feature `headrace.version`.

The level never falls (admin.feature_levels). So every downgrade is refused: a safe one because older versions cannot
read what may have been written since the level was raised, an unsafe one because it would lose records.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.admin.feature_levels import RAISED_S, FeatureCalls
from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.base.levels import FEATURE
from headrace.kafka.api import Api
from headrace.kafka.authorization import Authorization
from headrace.kafka.connection import Connection
from headrace.security.kafka_acls import AclOperation
from headrace.store import features
from headrace.store.protocol import StoreCall
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.generic_codec import field

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class UpdateFeaturesApi:
    """Answers UpdateFeatures."""

    def __init__(self, *, features: FeatureCalls, store: StoreCall, authorization: Authorization) -> None:
        self._features = features
        self._store = store
        self._authorization = authorization

    @property
    def apis(self) -> Sequence[Api]:
        """The APIs that this module answers."""
        return (Api(ApiKey.UPDATE_FEATURES, Versions(1, 2), self.update_features),)

    async def update_features(self, request: Any, session: Connection) -> Mapping[str, object]:
        """UpdateFeatures (KIP-584, KIP-778). All updates are checked before any is applied."""
        try:
            self._authorization.check(session, AclOperation.ALTER, api="UpdateFeatures")
        except KafkaError as error:
            return {"error_code": int(error.code), "error_message": str(error), "results": ()}
        updates = list(request.feature_updates)
        timeout_s = field(request, "timeout", int(RAISED_S * 1000)) / 1000
        errors: dict[str, KafkaError | None] = {}
        for update in updates:
            errors[update.feature] = await self._fault(update)
        if not any(errors.values()) and not request.validate_only:
            for update in updates:
                try:
                    await self._features.raise_to(
                        update.max_version_level, timeout_s=min(max(timeout_s, 0.0), RAISED_S)
                    )
                except KafkaError as error:
                    errors[update.feature] = error
        failed = next(((name, error) for name, error in errors.items() if error is not None), None)
        code, message = Code.NONE, None
        if failed is not None and request.__version__ >= 2:  # since this version there are no results per feature
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

    async def _fault(self, update: Any) -> KafkaError | None:
        """The error of an update that cannot be applied, else None."""
        level, kind = update.max_version_level, update.upgrade_type
        at = (await self._store(features.get_features)).required
        if update.feature != FEATURE:
            return KafkaError(
                Code.INVALID_UPDATE_VERSION, f"there is no feature {update.feature!r:.80}; there is {FEATURE}"
            )
        if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
            return KafkaError(Code.INVALID_REQUEST, f"upgrade type {kind} is none of 1 (upgrade), 2 (safe), 3 (unsafe)")
        if level < at and kind == UPGRADE:
            return KafkaError(
                Code.INVALID_UPDATE_VERSION,
                f"{FEATURE} is {at}: setting it to {level} would be a downgrade, but an upgrade was requested",
            )
        if level < at:
            what = (
                "a safe downgrade is not possible: older versions cannot read what was written since the level was "
                "raised"
                if kind == SAFE_DOWNGRADE
                else "an unsafe downgrade would lose records, and is never done"
            )
            return KafkaError(Code.INVALID_UPDATE_VERSION, f"{FEATURE} is {at}: {what}")
        if level > at and kind != UPGRADE:
            return KafkaError(
                Code.INVALID_UPDATE_VERSION,
                f"{FEATURE} is {at}: setting it to {level} would be an upgrade, but a downgrade was requested",
            )
        try:
            await self._store(lambda store: features.ask_for(store, level, validate_only=True))
        except HeadraceError as error:
            return error if isinstance(error, KafkaError) else KafkaError(Code(error.code), str(error))
        return None
