"""HEADRACE_ALL_CHECKS: a test that would be skipped for want of a program or a file has failed (`make charts`)."""

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of one phase of a test."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and "HEADRACE_ALL_CHECKS" in os.environ:
        report.outcome = "failed"
    return report
