"""What was given up does not land late, and nothing else is refused."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.catalog.attempts import Arrivals, Attempt, Attempts
from headrace.errors import Code, KafkaError
from headrace.ids import Epoch

ONE, TWO = Epoch(1), Epoch(2)


def is_admitted(arrivals: Arrivals, attempt: Attempt, led: Epoch = ONE) -> bool:
    try:
        arrivals.admit(attempt, led=led)
    except KafkaError as error:
        return error.code is not Code.NOT_CONTROLLER
    return True


def test_what_was_given_up_is_refused_once_a_later_one_has_arrived() -> None:
    here, other, arrivals = Attempts("a"), Attempts("b"), Arrivals()
    with here.one(ONE) as given_up:
        pass
    with other.one(ONE) as theirs, here.one(ONE) as repeat:
        assert is_admitted(arrivals, repeat)
        assert not is_admitted(arrivals, given_up)
        assert is_admitted(arrivals, theirs)
    assert is_admitted(arrivals, repeat), "nobody has said yet that it is not waited for"


def test_what_was_sent_to_the_primary_of_another_epoch_is_refused() -> None:
    """The seed 161142: the same node led again, epochs later."""
    here, arrivals = Attempts("a"), Arrivals()
    with here.one(ONE) as late:
        assert not is_admitted(arrivals, late, led=TWO)
    with here.one(TWO) as ahead:
        assert not is_admitted(arrivals, ahead, led=ONE), "the node has yet to hear that it leads again"
        assert is_admitted(arrivals, ahead, led=TWO)


def test_a_node_of_the_version_before_says_nothing_and_is_not_refused() -> None:
    assert is_admitted(Arrivals(), Attempt())


def test_what_is_known_of_processes_is_of_one_epoch() -> None:
    arrivals = Arrivals()
    for run in range(100):
        with Attempts(str(run)).one(ONE) as attempt:
            assert is_admitted(arrivals, attempt)
    with Attempts("a").one(TWO) as attempt:
        assert is_admitted(arrivals, attempt, led=TWO)
    assert len(arrivals._oldest) == 1


@given(data=st.data())
def test_whatever_the_order_only_what_nobody_waits_for_is_refused(data: st.DataObject) -> None:
    here, arrivals = Attempts("a"), Arrivals()
    waiting: dict[int, tuple[Attempt, ExitStack]] = {}
    given_up: list[Attempt] = []
    told = 0
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(["begin", "arrive", "end", "late"])):
            case "begin":
                stack = ExitStack()
                attempt = stack.enter_context(here.one(ONE))
                assert attempt.number > max(waiting, default=0)
                assert attempt.oldest == min(waiting, default=attempt.number)
                waiting[attempt.number] = attempt, stack
            case "arrive" if waiting:
                attempt, _ = waiting[data.draw(st.sampled_from(sorted(waiting)))]
                assert is_admitted(arrivals, attempt)
                told = max(told, attempt.oldest)
            case "end" if waiting:
                attempt, stack = waiting.pop(data.draw(st.sampled_from(sorted(waiting))))
                stack.close()
                given_up.append(attempt)
            case "late" if given_up:
                attempt = data.draw(st.sampled_from(given_up))
                assert is_admitted(arrivals, attempt) == (attempt.number >= max(told, attempt.oldest))
                told = max(told, attempt.oldest)


def test_the_number_is_not_waited_for_when_the_attempt_fails() -> None:
    here = Attempts("a")
    with pytest.raises(OSError, match="gone"), here.one(ONE):
        raise OSError("gone")
    with here.one(ONE) as attempt:
        assert attempt.oldest == attempt.number
