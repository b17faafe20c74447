"""Attempts that were given up do not take effect late, and attempts in order are never refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Epoch
from headrace.node.submit_fencing import SubmitAttempts, SubmitFence
from headrace.peer.messages import Submit

ONE, TWO = Epoch(1), Epoch(2)


def is_admitted(arrivals: SubmitFence, attempt: Submit, led: Epoch = ONE) -> bool:
    try:
        arrivals.admit(attempt, led=led)
    except KafkaError as error:
        return error.code is not Code.NOT_CONTROLLER
    return True


def begun(attempts: SubmitAttempts, epoch: Epoch = ONE) -> Submit:
    with attempts.one(epoch) as attempt:
        return attempt


def given_up(attempts: SubmitAttempts, epoch: Epoch = ONE) -> Submit:
    with pytest.raises(OSError, match="no answer"), attempts.one(epoch) as attempt:
        raise OSError("no answer")
    return attempt


def test_what_was_given_up_is_refused_once_a_later_one_has_arrived() -> None:
    here, other, arrivals = SubmitAttempts("a"), SubmitAttempts("b"), SubmitFence()
    late, theirs = given_up(here), begun(other)
    assert is_admitted(arrivals, begun(here))
    assert not is_admitted(arrivals, late)
    assert is_admitted(arrivals, theirs), "another process has numbers of its own"


def test_one_that_waits_does_not_open_the_way_for_a_younger_one_that_was_given_up() -> None:
    here, arrivals = SubmitAttempts("a"), SubmitFence()
    with here.one(ONE):
        late = given_up(here)
        assert is_admitted(arrivals, begun(here))
        assert not is_admitted(arrivals, late)


def test_what_was_sent_to_the_leader_of_another_epoch_is_refused() -> None:
    """Found by seed 161142: the same node led again, epochs later."""
    here, arrivals = SubmitAttempts("a"), SubmitFence()
    assert not is_admitted(arrivals, begun(here), led=TWO)
    ahead = begun(here, TWO)
    assert not is_admitted(arrivals, ahead, led=ONE), "the node has yet to hear that it leads again"
    assert is_admitted(arrivals, ahead, led=TWO)


def test_a_node_of_the_version_before_says_nothing_and_is_not_refused() -> None:
    assert is_admitted(SubmitFence(), Submit())


def test_what_is_known_of_processes_is_of_one_epoch() -> None:
    arrivals = SubmitFence()
    for run in range(100):
        assert is_admitted(arrivals, begun(SubmitAttempts(str(run))))
    assert is_admitted(arrivals, begun(SubmitAttempts("a"), TWO), led=TWO)
    assert len(arrivals._least) == 1


@given(data=st.data())
def test_whatever_arrives_in_whatever_order(data: st.DataObject) -> None:
    """Over several connections: each keeps its order; a connection that is cut off for a while is given up, and its
    requests arrive late."""
    here, arrivals = SubmitAttempts("a"), SubmitFence()
    sent: list[Submit] = []
    late: list[Submit] = []
    newest = 0
    """The highest number admitted so far."""
    refused_from: dict[int, int] = {}
    """By attempt that was given up: the first number that was started afterwards."""
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(["send", "lose", "arrive", "late"])):
            case "send":
                sent.append(begun(here))
            case "lose":
                late.append(given_up(here))
                refused_from[late[-1].number] = here._last + 1
            case "arrive" if sent:
                attempt = sent.pop(0)
                fresh = attempt.number > newest
                assert is_admitted(arrivals, attempt) or not fresh, "in order nothing is refused"
                newest = max(newest, attempt.number)
            case "late" if late:
                attempt = late.pop(data.draw(st.integers(0, len(late) - 1)))
                admitted = is_admitted(arrivals, attempt)
                if newest >= refused_from[attempt.number]:
                    assert not admitted, "behind one that began after it was given up"
                if admitted:
                    newest = max(newest, attempt.number)
