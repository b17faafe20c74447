"""Retriable refusals of batches that are remembered, and the batches that share them."""

import time
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.partitions import refusals as refusals_module
from headrace.partitions.producer_state import Producers
from headrace.partitions.refusals import EARLY_S, REMEMBERED_OF_ANOTHER_LIFE_S, REMEMBERED_S, Refusals, client_error
from headrace.wire.batch import build_batch
from headrace.wire.produce import PartitionRecords

NOBODY = Producers()
LIFE = b"1" * 16
MOVED = KafkaError(Code.NOT_LEADER_OR_FOLLOWER)


def part(sequence: int, *, producer: int = 7, epoch: int = 0, partition: int = 0, records: int = 5) -> PartitionRecords:
    batch = build_batch(
        [(0, None, b"value", [])] * records, producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )
    return PartitionRecords("t", partition, memoryview(batch))


def shared(
    refusals: Refusals,
    batch: PartitionRecords,
    known: Producers,
    topic_id: bytes | None,
    *,
    arrived: float | None = None,
) -> KafkaError | None:
    """The refusal that a batch shares if it arrives now."""
    return refusals.stands(batch, known, topic_id, arrived=time.monotonic() if arrived is None else arrived)


@pytest.fixture
def refusals() -> Refusals:
    """Refusals after the batch at sequence 10 was refused."""
    refusals = Refusals()
    refusals.note(part(10), MOVED, LIFE)
    return refusals


def test_batches_behind_a_refused_one_share_its_refusal(refusals: Refusals) -> None:
    for sequence in (15, 20, 25):
        refusal = shared(refusals, part(sequence), NOBODY, LIFE)
        assert refusal is not None
        assert refusal.code is Code.NOT_LEADER_OR_FOLLOWER


def test_the_refused_batch_itself_may_come_again_and_the_others_after_it(refusals: Refusals) -> None:
    assert shared(refusals, part(15), NOBODY, LIFE) is not None
    assert shared(refusals, part(10), NOBODY, LIFE) is None
    assert shared(refusals, part(15), NOBODY, LIFE) is None
    assert not refusals


@pytest.mark.parametrize(
    "other",
    [
        part(15, producer=8),
        part(15, partition=1),
        part(0, epoch=1),
        part(-1, producer=-1, epoch=-1),
        PartitionRecords("t", 0, None),
        PartitionRecords("t", 0, memoryview(b"no batch")),
    ],
    ids=["another producer", "another partition", "a new epoch", "not idempotent", "nothing", "junk"],
)
def test_nothing_else_shares_it(refusals: Refusals, other: PartitionRecords) -> None:
    assert shared(refusals, other, NOBODY, LIFE) is None


def test_a_batch_that_is_stored_already_shares_no_refusal(refusals: Refusals) -> None:
    """The refused batch, and those behind it, were stored by way of another node; the last answer was lost."""
    stored = Producers()
    for sequence in (10, 15):
        stored.add(producer_id=7, epoch=0, base_sequence=sequence, records=5, base_offset=sequence, timestamp=0, now=0)
    assert shared(refusals, part(15), stored, LIFE) is None
    assert shared(refusals, part(25), stored, LIFE) is not None, "20 has not come yet"
    assert shared(refusals, part(20), stored, LIFE) is None


def test_it_is_remembered_for_a_while(refusals: Refusals, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals.expire()
    assert refusals
    later = time.monotonic() + REMEMBERED_S
    monkeypatch.setattr(refusals_module.time, "monotonic", lambda: later)
    refusals.expire()
    assert not refusals


def test_what_was_noted_last_is_forgotten_last_and_no_other_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that partitions have left remembers one batch for each, and looks for old ones at each request."""
    now = [100.0]
    monkeypatch.setattr(refusals_module.time, "monotonic", lambda: now[0])
    refusals = Refusals()
    for partition in range(1000):
        refusals.note(part(10, partition=partition), MOVED, LIFE)
        refusals.has_grace(part(10, partition=partition), 5)
    now[0] += 1
    refusals.note(part(10, partition=0), MOVED, LIFE)
    refusals.has_grace(part(10, partition=0), 6)
    looked: list[object] = []
    holds = refusals_module._Refused.holds

    def counted(self: Any, topic_id: bytes | None, at: float) -> bool:
        looked.append(self)
        return holds(self, topic_id, at)

    monkeypatch.setattr(refusals_module._Refused, "holds", counted)
    refusals.expire()
    assert len(looked) == 1
    now[0] += REMEMBERED_S - 1
    refusals.expire()
    assert len(looked) == 1 + 1000, "all but the one of later, and that"
    assert refusals
    now[0] += 1
    refusals.expire()
    assert not refusals


def test_it_is_remembered_for_a_while_after_the_last_refusal(
    refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be an old batch, stored by way of another node since: those behind the new one share the refusal, too."""
    began = time.monotonic()
    monkeypatch.setattr(refusals_module.time, "monotonic", lambda: began + REMEMBERED_S - 1)
    refusals.note(part(500), MOVED, LIFE)
    later = began + REMEMBERED_S + 1
    assert shared(refusals, part(505), NOBODY, LIFE, arrived=later) is not None
    assert shared(refusals, part(505), NOBODY, LIFE, arrived=later + REMEMBERED_S) is None


def test_what_counts_is_when_a_batch_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic was not known here when the first batch was refused; the one behind it waited until it was."""
    refusals = Refusals()
    refusals.note(part(10), KafkaError(Code.LEADER_NOT_AVAILABLE), None)
    arrived = time.monotonic()
    monkeypatch.setattr(refusals_module.time, "monotonic", lambda: arrived + 5 * REMEMBERED_OF_ANOTHER_LIFE_S)
    assert shared(refusals, part(15), NOBODY, LIFE, arrived=arrived) is not None
    assert shared(refusals, part(20), NOBODY, LIFE, arrived=arrived) is not None
    assert shared(refusals, part(10), NOBODY, LIFE, arrived=arrived) is None


def test_what_is_refused_in_a_topics_new_life_begins_anew(refusals: Refusals) -> None:
    refusals.note(part(500), MOVED, b"2" * 16)
    later = time.monotonic() + 2 * REMEMBERED_OF_ANOTHER_LIFE_S
    assert shared(refusals, part(505), NOBODY, b"2" * 16, arrived=later) is not None
    assert shared(refusals, part(500), NOBODY, b"2" * 16, arrived=later) is None


def test_of_an_unknown_topic_it_is_remembered_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is deleted and recreated continues at any sequence of its producer."""
    refusals = Refusals()
    refusals.note(part(10), KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION), LIFE)
    assert shared(refusals, part(15), NOBODY, LIFE) is not None
    later = time.monotonic() + REMEMBERED_OF_ANOTHER_LIFE_S
    monkeypatch.setattr(refusals_module.time, "monotonic", lambda: later)
    refusals.expire()
    assert not refusals


def test_of_a_topic_made_again_it_is_remembered_for_a_moment(
    refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch may have been stored in the former topic, by way of another node: then it is never sent again."""
    assert shared(refusals, part(30), NOBODY, b"2" * 16) is not None
    later = time.monotonic() + REMEMBERED_OF_ANOTHER_LIFE_S
    monkeypatch.setattr(refusals_module.time, "monotonic", lambda: later)
    refusals.expire()
    assert shared(refusals, part(30), NOBODY, LIFE) is not None
    assert shared(refusals, part(30), NOBODY, b"2" * 16) is None


def test_a_batch_that_is_the_next_one_shares_nothing(refusals: Refusals) -> None:
    """The refused batch was stored by way of another node, and this one leads again."""
    known = Producers()
    known.add(producer_id=7, epoch=0, base_sequence=10, records=5, base_offset=0, timestamp=0, now=0)
    assert shared(refusals, part(20), known, LIFE) is not None
    assert shared(refusals, part(15), known, LIFE) is None
    assert not refusals


def test_the_first_refused_one_counts(refusals: Refusals) -> None:
    refusals.note(part(15), KafkaError(Code.KAFKA_STORAGE_ERROR), LIFE)
    refusal = shared(refusals, part(15), NOBODY, LIFE)
    assert refusal is not None
    assert refusal.code is Code.NOT_LEADER_OR_FOLLOWER
    assert shared(refusals, part(10), NOBODY, LIFE) is None


def test_sequences_that_wrap_are_in_order() -> None:
    refusals = Refusals()
    refusals.note(part((1 << 31) - 3), MOVED, LIFE)
    assert shared(refusals, part(2), NOBODY, LIFE) is not None


def test_what_a_client_does_not_send_again_is_not_remembered() -> None:
    refusals = Refusals()
    refusals.note(part(10), KafkaError(Code.MESSAGE_TOO_LARGE), LIFE)
    assert not refusals


@pytest.mark.parametrize(
    "code", [Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.REQUEST_TIMED_OUT, Code.NOT_CONTROLLER]
)
def test_the_catalogs_faults_are_told_as_a_leader_that_is_missing(code: Code) -> None:
    assert client_error(KafkaError(code, "why")).code is Code.LEADER_NOT_AVAILABLE
    assert str(client_error(KafkaError(code, "why"))) == "why"


def test_other_faults_are_told_as_they_are() -> None:
    assert client_error(KafkaError(Code.KAFKA_STORAGE_ERROR)).code is Code.KAFKA_STORAGE_ERROR


def test_each_batch_that_is_waited_for_has_a_second_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(refusals_module.time, "monotonic", lambda: now)
    refusals = Refusals()
    assert refusals.has_grace(part(15), 10)
    assert refusals.has_grace(part(15, partition=1), None)
    now += EARLY_S
    assert not refusals.has_grace(part(20), 10)
    assert not refusals.has_grace(part(15, partition=1), None), "nothing came before it"
    assert refusals.has_grace(part(30), 25), (
        "the partition has changed hands once more, and batches were stored between"
    )
    assert refusals.has_grace(part(15, epoch=1), 0)
