"""The cluster's level as Kafka's tools change it: upwards, one feature, and never down."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.levels import FEATURE
from headrace.kafka import update_features as module
from headrace.kafka.update_features import SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE, UpdateFeaturesApi
from kit.access import authorization


class Cluster:
    """A cluster at level 1, whose nodes support level 2."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raised: list[tuple[int, float]] = []
        self.fails: KafkaError | None = None
        monkeypatch.setattr(module, "features", SimpleNamespace(get_features=self.get, ask_for=self.ask_for))

    def get(self, store: object) -> Any:
        return SimpleNamespace(required=1)

    def ask_for(self, store: object, level: int, *, validate_only: bool) -> None:
        assert validate_only
        if level > 2:
            raise KafkaError(Code.INVALID_UPDATE_VERSION, f"no node supports {level}")

    async def store(self, function: Any) -> Any:
        return function(None)

    async def raise_to(self, level: int, *, timeout_s: float) -> None:
        if self.fails is not None:
            raise self.fails
        self.raised.append((level, timeout_s))

    async def update(self, *updates: tuple[str, int, int], version: int = 1, **fields: Any) -> Any:
        given: Any = self
        api = UpdateFeaturesApi(features=given, store=self.store, authorization=authorization(on=False))
        request = SimpleNamespace(
            __version__=version,
            feature_updates=[
                SimpleNamespace(feature=name, max_version_level=level, upgrade_type=kind)
                for name, level, kind in updates
            ],
            **{"timeout": 10_000, "validate_only": False, **fields},
        )
        session: Any = None
        return await api.update_features(request, session)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def codes(answer: Any) -> list[int]:
    return [each["error_code"] for each in answer["results"]]


async def test_the_level_is_raised_within_the_time_that_the_client_gives(cluster: Cluster) -> None:
    answer = await cluster.update((FEATURE, 2, UPGRADE))
    assert (answer["error_code"], codes(answer)) == (Code.NONE, [Code.NONE])
    assert [level for level, _ in cluster.raised] == [2]
    assert 0 < cluster.raised[0][1] <= 10


async def test_where_it_is_only_to_be_validated_nothing_is_changed(cluster: Cluster) -> None:
    assert codes(await cluster.update((FEATURE, 2, UPGRADE), validate_only=True)) == [Code.NONE]
    assert cluster.raised == []


@pytest.mark.parametrize(
    ("name", "level", "kind", "code", "said"),
    [
        ("metadata.version", 2, UPGRADE, Code.INVALID_UPDATE_VERSION, "there is no feature"),
        (FEATURE, 2, 9, Code.INVALID_REQUEST, "upgrade type 9"),
        (FEATURE, 0, UPGRADE, Code.INVALID_UPDATE_VERSION, "but an upgrade was requested"),
        (FEATURE, 0, SAFE_DOWNGRADE, Code.INVALID_UPDATE_VERSION, "a safe downgrade is not possible"),
        (FEATURE, 0, UNSAFE_DOWNGRADE, Code.INVALID_UPDATE_VERSION, "would lose records"),
        (FEATURE, 2, SAFE_DOWNGRADE, Code.INVALID_UPDATE_VERSION, "but a downgrade was requested"),
        (FEATURE, 3, UPGRADE, Code.INVALID_UPDATE_VERSION, "no node supports 3"),
    ],
)
async def test_what_cannot_be_is_refused_with_why(
    cluster: Cluster, name: str, level: int, kind: int, code: Code, said: str
) -> None:
    answer = await cluster.update((name, level, kind))
    (result,) = answer["results"]
    assert (result["feature"], result["error_code"]) == (name, code)
    assert said in result["error_message"]
    assert cluster.raised == []


async def test_all_are_checked_before_any_is_changed(cluster: Cluster) -> None:
    answer = await cluster.update((FEATURE, 2, UPGRADE), ("other", 1, UPGRADE))
    assert codes(answer) == [Code.NONE, Code.INVALID_UPDATE_VERSION]
    assert cluster.raised == []


async def test_newer_clients_get_one_error_for_all(cluster: Cluster) -> None:
    cluster.fails = KafkaError(Code.FEATURE_UPDATE_FAILED, "node 2 does not answer")
    old, new = [await cluster.update((FEATURE, 2, UPGRADE), version=version) for version in (1, 2)]
    assert (old["error_code"], codes(old)) == (Code.NONE, [Code.FEATURE_UPDATE_FAILED])
    assert new["error_code"] == Code.FEATURE_UPDATE_FAILED
    assert "node 2 does not answer" in new["error_message"]
