from headrace.base.backoff import Backoff, pause_s


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.succeeded()
    assert backoff.failed() == 0.5


def test_any_number_of_failures_has_a_pause() -> None:
    assert pause_s(100_000, first_s=0.001, longest_s=30.0) == 30.0
