"""librdkafka as the commands use it: its errors in one line, with advice."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.cli import kafka_client
from headrace.cli.kafka_client import (
    MAX_MESSAGE_BYTES,
    KafkaClientError,
    RefusedByPolicy,
    client_config,
    client_errors,
    describe,
    partitions_of,
    producer_config,
)
from headrace.cli.target import plain


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KafkaError._TRANSPORT, "see `headrace status`"),
        (KafkaError._TIMED_OUT, "see `headrace status`"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "headrace topic create"),
        (KafkaError._UNKNOWN_PARTITION, "headrace topic show"),
        (KafkaError.MSG_SIZE_TOO_LARGE, "--max-message"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "an administrator can grant the right"),
        (KafkaError.INVALID_RECORD, "/s:t: "),
    ],
)
def test_an_error_is_one_line_with_what_to_do_next(code: int, said: str) -> None:
    told = str(describe(KafkaError(code), "/s:t"))
    assert told.startswith("/s:t: ")
    assert said in told
    assert "\n" not in told


def test_what_a_policy_refuses_is_told_apart() -> None:
    assert isinstance(describe(KafkaError(KafkaError.POLICY_VIOLATION), "x"), RefusedByPolicy)
    assert not isinstance(describe(KafkaError(KafkaError.INVALID_RECORD), "x"), RefusedByPolicy)
    assert str(describe("queue destroyed", "x")) == "x: queue destroyed"


def test_exceptions_of_the_client_are_ours_and_others_stay() -> None:
    with pytest.raises(KafkaClientError, match="make it with"), client_errors("/s:t"):
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(ValueError, match="other"), client_errors("/s:t"):
        raise ValueError("other")


def test_what_a_command_sets_goes_over_what_all_have() -> None:
    target = plain("h:1")
    config = client_config(target, {"client.id": "mine"})
    assert (config["bootstrap.servers"], config["client.id"]) == ("h:1", "mine")
    assert producer_config(target, {})["message.max.bytes"] == MAX_MESSAGE_BYTES
    assert producer_config(target, {"message.max.bytes": 5})["message.max.bytes"] == 5


class Client:
    """A cluster's successive answers about one topic; the last one repeats."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def list_topics(self, topic: str, timeout: float) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(topics={topic: answer})


def found(*partitions: int, error: int | None = None) -> Any:
    return SimpleNamespace(
        error=None if error is None else KafkaError(error), partitions=dict.fromkeys(partitions, object())
    )


def test_a_topic_that_is_made_on_first_use_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client.time, "sleep", lambda _: None)
    client = Client(found(error=KafkaError.LEADER_NOT_AVAILABLE), found(), found(2, 0, 1))
    assert partitions_of(client, "/s:t") == [0, 1, 2]


def test_a_topic_that_does_not_come_or_cannot_be_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "CREATION_TIMEOUT_S", -1.0)
    with pytest.raises(KafkaClientError):
        partitions_of(Client(found()), "/s:t")
    with pytest.raises(KafkaClientError, match="make it with"):
        partitions_of(Client(found(error=KafkaError.UNKNOWN_TOPIC_OR_PART)), "/s:t")
    with pytest.raises(KafkaClientError, match="/s:t"):
        partitions_of(Client(RuntimeError("bad name")), "/s:t")
