"""The cluster's feature level: which nodes allow it to be raised, and in which steps; an older version is recognized by
its process incarnation."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from headrace.base.errors import Code, FolderRefused, KafkaError, NewerFormat
from headrace.base.ids import Millis, NodeId
from headrace.base.levels import NEWEST, Level, format_of
from headrace.store import features, records
from headrace.store.protocol import ClusterStore
from headrace.store.records import CLUSTER_KEY, FEATURES_KEY, ClusterRecord, FeaturesRecord, NodeRecord, SupportedLevels
from headrace.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ClusterStore]:
    """The store of a cluster that was created by a version of level 0."""
    opened = SqliteStore(tmp_path / "store.sqlite")
    opened.put(CLUSTER_KEY, msgspec.json.encode(ClusterRecord("c" * 22, 7, secret="0" * 32)), None)
    yield opened
    opened.close()


def register(store: ClusterStore, number: int, newest: int | None = NEWEST) -> NodeRecord:
    """Register a node, started by a version that supports levels up to `newest`; None: by one that does not know
    levels."""
    run = uuid.uuid4()
    known = records.get_node(store, NodeId(number))
    return records.register_node(
        store,
        node_id=NodeId(number),
        new=known is None,
        format=uuid.UUID(int=number),
        run=run,
        host="127.0.0.1",
        port=number,
        supports=None if newest is None else SupportedLevels(run, 0, newest),
    )


def test_a_new_cluster_is_at_the_newest_level_from_its_first_record_on(tmp_path: Path) -> None:
    opened = SqliteStore(tmp_path / "new.sqlite")
    assert records.ensure_cluster(opened).format_version == format_of(NEWEST)
    assert features.get_features(opened) == FeaturesRecord(level=NEWEST, epoch=1)
    opened.close()


def test_a_cluster_of_before_is_at_level_0_and_its_record_is_as_it_was(store: ClusterStore) -> None:
    assert records.ensure_cluster(store).format_version == 1
    assert features.get_features(store) == FeaturesRecord()
    assert store.get(FEATURES_KEY) is None


def test_a_cluster_whose_record_somebody_else_makes_begins_at_the_level_of_its_format(store: ClusterStore) -> None:
    """The operator creates it for a cluster with security, which has users from its first node on."""
    records.ensure_cluster(store)
    present = store.get(CLUSTER_KEY)
    assert present is not None
    made = msgspec.json.decode(present.value) | {"format_version": format_of(Level.SECURED)}
    store.put(CLUSTER_KEY, msgspec.json.encode(made), present.version)
    records.ensure_cluster(store)
    assert features.get_features(store) == FeaturesRecord(level=Level.SECURED, epoch=1)


def test_a_range_counts_for_the_run_that_published_it(store: ClusterStore) -> None:
    """On Kubernetes, an older version keeps the range that a newer process incarnation published."""
    record = register(store, 1)
    assert features.range_of(record) == (0, NEWEST)
    assert features.range_of(structs.replace(record, run=uuid.uuid4())) == (0, 0)
    assert features.range_of(register(store, 1, None)) == (0, 0)


def test_a_level_is_raised_in_two_steps_each_of_which_may_be_repeated(store: ClusterStore) -> None:
    for number in (1, 2):
        register(store, number)
    epochs = [features.ask_for(store, 1).epoch]
    for _ in range(2):
        begun = features.begin_raising(store, 1)
        assert (begun.level, begun.raising) == (0, 1)
    epochs.append(begun.epoch)
    for _ in range(2):
        features.refuse_older(store, 1)
        assert records.ensure_cluster(store).format_version == 2
    for _ in range(2):
        done = features.finish_raising(store, 1)
        assert (done.level, done.raising, done.wanted) == (1, 0, 0)
    epochs.append(done.epoch)
    assert epochs == [1, 2, 3]


@pytest.mark.parametrize("step", [features.ask_for, features.begin_raising, features.finish_raising])
def test_no_step_is_taken_past_a_node_that_does_not_support_it(store: ClusterStore, step: object) -> None:
    register(store, 1)
    register(store, 2, None)
    why = r"level 1 is not supported by node 2 \(0 to 0\): upgrade these first"
    with pytest.raises(KafkaError, match=why) as refused:
        step(store, 1)  # type: ignore[operator]
    assert refused.value.code is Code.FEATURE_UPDATE_FAILED
    assert features.get_features(store) == FeaturesRecord()


def test_a_hold_keeps_it_down_and_nothing_lowers_it(store: ClusterStore) -> None:
    register(store, 1)
    features.hold(store, 0)
    with pytest.raises(KafkaError, match="held at 0"):
        features.ask_for(store, 1)
    features.hold(store, None)
    features.begin_raising(store, 1)
    with pytest.raises(KafkaError, match="1 already, and is not lowered"):
        features.hold(store, 0)
    with pytest.raises(KafkaError, match="is not lowered"):
        features.ask_for(store, 0)
    with pytest.raises(KafkaError, match=f"supports the levels 0 to {NEWEST:d}"):
        features.ask_for(store, NEWEST + 1)


def test_a_wish_that_is_only_checked_changes_nothing(store: ClusterStore) -> None:
    register(store, 1)
    features.ask_for(store, 1, validate_only=True)
    assert features.get_features(store) == FeaturesRecord()


@pytest.mark.parametrize("field", ["level", "raising"])
def test_a_level_that_this_version_does_not_support_is_refused_in_one_line(field: str) -> None:
    told = structs.replace(FeaturesRecord(), **{field: NEWEST + 1})
    why = f"level is {NEWEST + 1:d}, this version supports 0 to {NEWEST:d}; use a newer headrace"
    with pytest.raises(NewerFormat, match=why):
        features.check_level(told)
    features.check_level(FeaturesRecord(level=NEWEST))


def test_an_older_version_refuses_the_cluster_as_soon_as_the_level_is_about_to_be_raised(
    store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(store, 1)
    features.begin_raising(store, 1)
    features.refuse_older(store, 1)
    monkeypatch.setattr(records, "FORMAT_VERSION", 1)  # as in 523cdbc
    with pytest.raises(FolderRefused, match="the cluster has format 2, this version reads 1; use a newer headrace"):
        records.ensure_cluster(store)


def test_a_range_that_an_older_version_dropped_is_published_again(store: ClusterStore) -> None:
    record = register(store, 1)
    dropped = structs.replace(record, supports=None)
    found = store.get("node/1")
    assert found is not None
    store.put("node/1", msgspec.json.encode(dropped), found.version)
    assert record.supports is not None
    features.publish_range(store, NodeId(1), record.supports)
    assert records.get_node(store, NodeId(1)) == record
    other = register(store, 1, None)
    features.publish_range(store, NodeId(1), record.supports)
    assert records.get_node(store, NodeId(1)) == other, "another run has taken over"


def test_since_when_all_are_able_is_noted_without_a_new_epoch(store: ClusterStore) -> None:
    features.set_wait(store, 60)
    noted = features.note_able(store, Millis(5))
    assert (noted.able_since, noted.wait_s, noted.epoch) == (5, 60, 1)
