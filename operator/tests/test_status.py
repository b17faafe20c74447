from headrace_operator.status import Condition, differs, ready, status

GOOD = Condition("Reconciled", True, "AsAsked")


def shown(conditions: list[Condition], before: dict[str, object], *, now: str = "t2", lag: int | None = None) -> dict:
    return status(generation=3, conditions=conditions, figures={"lag": lag}, before=before, now=now)


def test_ready_is_the_first_that_is_not_so() -> None:
    bad = Condition("Sized", False, "Draining", "node 4")
    assert ready([GOOD, bad]) == Condition("Ready", False, "Draining", "node 4")
    assert ready([GOOD]).ok is True
    assert ready([Condition("Reconciled", None, "NotSupported")]).ok is None


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    first = shown([GOOD], {}, now="t1")
    second = shown([Condition("Reconciled", True, "Otherwise", "text")], first)
    assert second["conditions"][0]["lastTransitionTime"] == "t1"
    third = shown([Condition("Reconciled", False, "Refused")], second, now="t3")
    assert third["conditions"][0]["lastTransitionTime"] == "t3"


def test_figures_are_written_when_it_is_time_and_conditions_at_once() -> None:
    before = shown([GOOD], {}, now="t1", lag=1)
    later = shown([GOOD], before, lag=2)
    assert not differs(later, before, figures=False)
    assert differs(later, before, figures=True)
    assert differs(shown([Condition("Reconciled", False, "No")], before), before, figures=False)
    assert not differs(shown([GOOD], before, lag=1), before, figures=True)
