"""The plan of a node's file descriptors."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base import descriptor_plan as module
from headrace.base.descriptor_plan import MIN_DESCRIPTORS, descriptor_plan, plan_of_process


@given(st.integers(MIN_DESCRIPTORS, 1 << 30), st.integers(1, 1 << 22))
def test_a_plan_keeps_to_its_limits_whatever_they_are(limit: int, mappings: int) -> None:
    plan = descriptor_plan(limit, mappings=mappings)
    assert 96 <= plan.reserve <= 4096
    assert 16 <= plan.chunks <= 4096
    assert 64 <= plan.peers <= 16_384
    assert plan.clients >= 16
    if plan.clients > 16:
        assert plan.reserve + 2 * plan.chunks + plan.peers + plan.http + plan.clients <= limit
        assert plan.clients <= mappings // 2


def test_a_usual_limit_is_mostly_for_clients() -> None:
    plan = descriptor_plan(65_536)
    assert (plan.reserve, plan.chunks, plan.peers, plan.http) == (4096, 4096, 8192, 32)
    assert plan.clients == 65_530 // 2, "each connection has a mapping"


def test_a_kernel_that_allows_more_mappings_allows_more_clients() -> None:
    assert descriptor_plan(1 << 20, mappings=1 << 20).clients == 1 << 19


@pytest.mark.parametrize(("soft", "limit"), [(1024, 1024), (resource.RLIM_INFINITY, 1 << 30)])
def test_the_plan_of_a_process_is_made_of_its_own_limits(
    monkeypatch: pytest.MonkeyPatch, soft: int, limit: int
) -> None:
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    assert plan_of_process().limit == limit
