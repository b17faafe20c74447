"""Checks of all alerts that are triggered in a real Prometheus (causes.py), and of the accelerated rules.

The tests that trigger the alerts are in the modules MODULES, which `make nightly` runs.
"""

from importlib import import_module

import pytest
import yaml

from .causes import CAUSES
from .prometheus import in_a_hurry, rules_in_a_hurry, shorter
from .promtool import RULES, declared

MODULES = ("test_prometheus_nodes", "test_prometheus_links", "test_prometheus_kubernetes")


def test_each_alert_has_its_real_cause() -> None:
    assert list(CAUSES) == list(declared())


@pytest.mark.parametrize("alert", CAUSES)
def test_an_alert_is_awaited_where_the_table_says(alert: str) -> None:
    modules = [import_module(f".{name}", __package__) for name in MODULES]
    name = f"test_{CAUSES[alert].test}"
    (test,) = [found for module in modules if (found := getattr(module, name, None)) is not None]
    told = test.__code__.co_consts
    assert alert in {*told, *(each for several in told if isinstance(several, tuple) for each in several)}


def test_durations_of_rules_are_divided_and_other_numbers_are_not() -> None:
    assert shorter("3m", 20) == "9000ms"
    for before, after in (
        ("increase(a_total[10m]) > 30", "increase(a_total[10000ms]) > 30"),
        ("changes(max(a)[30m:30s]) > 3", "changes(max(a)[30000ms:500ms]) > 3"),
        ("a offset 6h", "a offset 360000ms"),
        ("max(headrace_link_lag_seconds) > 300", "max(headrace_link_lag_seconds) > 5"),
        ("time() - max(headrace_start_time_seconds) < 300", "time() - max(headrace_start_time_seconds) < 5"),
        ("a < 14 * 86400", "a < 14 * 86400"),
        ("predict_linear(max(a)[6h:5m], 86400) < 0", "predict_linear(max(a)[360000ms:5000ms], 1440) < 0"),
    ):
        assert in_a_hurry(before, 60) == after


def test_no_duration_of_the_rules_is_left_as_it_was() -> None:
    changed = 0
    for file in RULES:
        before = yaml.safe_load(file.read_text())
        for group, hurried in zip(before["groups"], rules_in_a_hurry(before, 20)["groups"], strict=True):
            for rule, made in zip(group["rules"], hurried["rules"], strict=True):
                left = [word for word in ("m]", "h]", "d]", "m:", ":5m", "< 300", ", 86400") if word in made["expr"]]
                assert not left, made["expr"]
                changed += rule["expr"] != made["expr"]
    assert changed > 15
