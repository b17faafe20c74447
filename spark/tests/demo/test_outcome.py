"""What the demo reads back while leaders move."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace_spark.demo import outcome


class Asked:
    """A consumer that first gets these errors."""

    def __init__(self, *errors: int) -> None:
        self._errors = list(errors)

    def get_watermark_offsets(self, place: TopicPartition, **_: Any) -> tuple[int, int]:
        if self._errors:
            raise KafkaException(KafkaError(self._errors.pop(0)))
        return 3, 7


def test_offsets_are_asked_for_again_where_a_partition_changes_hands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "PAUSE_S", 0.0)
    asked = Asked(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
    assert outcome._bounds(asked, TopicPartition("t", 0)) == (3, 7)


def test_other_errors_and_those_that_do_not_pass_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaException):
        outcome._bounds(Asked(KafkaError.TOPIC_AUTHORIZATION_FAILED), TopicPartition("t", 0))
    monkeypatch.setattr(outcome, "TIMEOUT_S", -1.0)
    with pytest.raises(KafkaException):
        outcome._bounds(Asked(KafkaError.NOT_LEADER_FOR_PARTITION), TopicPartition("t", 0))
