"""The action of an event, by its reason."""

import re

from headrace_operator.actions import ACTIONS, OTHER, action


def test_each_reason_has_an_action_in_kubernetes_form() -> None:
    for word in (*ACTIONS, *ACTIONS.values(), OTHER):
        assert re.fullmatch(r"([A-Z][a-z]*)+", word), word
        assert len(word) <= 128, "an event's action and reason have no room for more"


def test_what_came_of_a_reconcile_as_a_whole_says_so() -> None:
    assert action("PodRolled") == "RestartPod"
    assert action("ReasonOfTomorrow") == OTHER
