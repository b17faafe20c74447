"""A running operator; and HEADRACE_ALL_CHECKS, with which a test that would be skipped for a missing program or file
fails instead (`make charts`).
"""

import os
from collections.abc import AsyncIterator, Generator

import pytest

from headrace_operator import main

from .fake_api import ClosingApi


@pytest.fixture
async def running() -> AsyncIterator[tuple[main.Operator, str]]:
    """An operator without resources, and the URL of its HTTP port."""
    operator = main.Operator(ClosingApi(), namespaces=[], sweep_s=300, image="i", spark="s")  # type: ignore[arg-type]
    operator.engine.start()
    port = await operator.http.start("127.0.0.1", 0)
    yield operator, f"http://127.0.0.1:{port}"
    await operator.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of one phase of a test."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and "HEADRACE_ALL_CHECKS" in os.environ:
        report.outcome = "failed"
    return report
