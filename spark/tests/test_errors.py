"""Errors between Spark and the cluster: they can be pickled, and name codes as Kafka does."""

import pickle

from headrace.base.errors import Code
from headrace_spark.errors import RETRIABLE, BrokerError, SourceError, code_name


def test_a_code_has_kafkas_name_or_its_number() -> None:
    assert code_name(3) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert code_name(30_000) == "error 30000"


def test_an_error_of_a_task_comes_to_the_driver_whole() -> None:
    error = pickle.loads(pickle.dumps(BrokerError(Code.POLICY_VIOLATION, "it is a copy")))
    assert isinstance(error, SourceError)
    assert (type(error), error.code, str(error)) == (BrokerError, Code.POLICY_VIOLATION, "it is a copy")


def test_what_will_never_succeed_is_not_tried_again() -> None:
    final = {Code.POLICY_VIOLATION, Code.OFFSET_OUT_OF_RANGE, Code.MESSAGE_TOO_LARGE, Code.INVALID_RECORD}
    assert not final & RETRIABLE
    assert Code.NONE not in RETRIABLE
