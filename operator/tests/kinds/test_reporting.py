"""When a status is written: conditions at once, figures periodically."""

from collections.abc import Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace_operator.kinds import reporting
from headrace_operator.kinds.reporting import Reporter
from headrace_operator.status import FIGURES_S, Condition


class Kube:
    """Keeps a resource as it is written."""

    def __init__(self) -> None:
        self.body: dict[str, Any] = {"metadata": {"uid": "u-1", "generation": 1}}
        self.written: list[Mapping[str, Any]] = []

    async def apply_status(self, body: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any]:
        self.written.append(status)
        self.body["status"] = status
        return self.body


async def test_a_condition_does_not_put_off_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, now = Kube(), 1000.0
    reporter = Reporter(kube)  # type: ignore[arg-type]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now)

    async def report(ok: bool, records: int) -> int:
        reason = "Running" if ok else "Starting"
        await reporter.report(kube.body, [Condition("Running", ok, reason)], {"records": records})
        return int(kube.written[-1]["records"])

    assert await report(False, 0) == 0
    now += FIGURES_S - 20
    assert await report(True, 1) == 1, "with the condition"
    now += 10
    assert await report(True, 50) == 1, "not yet their time"
    now += 10
    assert await report(True, 90) == 90
    now += FIGURES_S - 1
    assert await report(True, 91) == 90
    assert len(kube.written) == 3


async def test_resources_that_are_gone_take_no_room_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with Retain disappear without notice."""
    monkeypatch.setattr(reporting, "ROOM", 10)
    kube, now = Kube(), 1000.0
    reporter = Reporter(kube)  # type: ignore[arg-type]
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now)
    for number in range(100):
        kube.body = {"metadata": {"uid": f"u-{number}", "generation": 1}}
        await reporter.report(kube.body, [], {"records": 1})
        now += FIGURES_S / 5
    assert len(reporter._figures_at) <= 10
    now -= FIGURES_S / 5
    await reporter.report(kube.body, [], {"records": 2})
    assert kube.written[-1]["records"] == 1, "one of those that matter still knows its time"


async def test_the_log_has_a_line_for_each_condition_that_changes() -> None:
    kube = Kube()
    kube.body |= {"kind": "StreamJob", "metadata": {**kube.body["metadata"], "namespace": "ns", "name": "j"}}
    reporter = Reporter(kube)  # type: ignore[arg-type]

    async def told(*conditions: Condition, generation: int = 1) -> list[tuple[str, str, str]]:
        kube.body["metadata"]["generation"] = generation
        with capture_logs() as logged:
            await reporter.report(kube.body, conditions, {}, types=("Reconciled", "Running"))
        assert all(each["of"] == "ns/j" for each in logged)
        return [(each["condition"], each["status"], each["reason"]) for each in logged]

    good = Condition("Reconciled", True, "Applied")
    assert await told(good) == [("Reconciled", "True", "Applied")], "what is not known yet is no change"
    starting = Condition("Running", False, "Starting", "of a")
    changed = [("Ready", "False", "Starting"), ("Running", "False", "Starting")]
    assert await told(good, starting) == changed
    assert await told(good, Condition("Running", False, "Starting", "of b"), generation=2) == []
