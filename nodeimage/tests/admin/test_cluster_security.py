"""Security as a whole: shown, turned on if somebody can administer the cluster, turned off on explicit request."""

import pytest

from headrace.base.errors import Code
from headrace.node.parts import NodeParts
from kit.callers import PASSWORD, Callers


@pytest.fixture
def callers(broker: NodeParts) -> Callers:
    return Callers(broker)


async def test_it_is_off_to_begin_with_and_the_status_says_so(callers: Callers) -> None:
    status = await callers.call("", "cluster.status")
    assert status["security"]["on"] is False
    assert status["security"]["problem"].startswith("security is off: everybody who reaches a listener")


@pytest.mark.parametrize(
    ("expression", "password"), [(None, True), ("", True), ("u:ann", True), ("u:root", False), ("g:none", True)]
)
async def test_it_is_not_turned_on_where_nobody_could_administer(
    callers: Callers, expression: str | None, password: bool
) -> None:
    await callers.call("", "user.create", name="root", password=PASSWORD if password else None)
    await callers.access("", {"cluster": {"admin": expression}})
    error = await callers.fails("", "security.on")
    assert error.code == Code.POLICY_VIOLATION
    assert "headrace user create" in str(error)
    assert "headrace access set cluster --admin" in str(error)
    assert (await callers.call("", "security.show"))["on"] is False


async def test_it_is_turned_on_where_a_group_administers(callers: Callers) -> None:
    await callers.call("", "user.create", name="root", password=PASSWORD, groups=["admins"])
    await callers.access("", {"cluster": {"admin": "g:admins & !u:bob"}})
    on = await callers.call("", "security.on")
    assert (on["on"], on["problem"], on["not_applied"], on["administrators_with_password"]) == (True, None, [], 1)
    await callers.refused("", "security.show")
    assert (await callers.call("root", "security.on"))["on"] is True


async def test_certificates_alone_are_enough_where_that_is_said(callers: Callers) -> None:
    await callers.access("", {"cluster": {"admin": "u:root"}})
    on = await callers.call("", "security.on", force=True)
    assert on["on"] is True
    assert "no user who has a password administers the cluster" in on["problem"]
    assert (await callers.call("root", "cluster.status"))["security"]["problem"] == on["problem"]


async def test_it_is_turned_off_only_by_who_says_what_that_means(callers: Callers) -> None:
    await callers.secure()
    assert (await callers.fails("root", "security.off")).code == Code.POLICY_VIOLATION
    await callers.refused("", "security.off", open_everything=True)
    off = await callers.call("root", "security.off", open_everything=True)
    assert off["on"] is False
    assert await callers.call("", "user.list")
