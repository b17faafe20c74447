"""How clusters are reached: at the operator's own listener if pods have it."""

import pytest

from headrace_operator.builders.operator_secret import Proofs, properties
from headrace_operator.routes import Route, Routes

BOOTSTRAP = "c-bootstrap.ns.svc:9092"


@pytest.fixture
def route(ca: str) -> Route:
    return Route.of(properties(Proofs("secret-password"), ca))


@pytest.fixture
def ca() -> str:
    from headrace_operator.builders.authorities import Terms, created

    return created("c", Terms(1, 0, 1.0), now=1_900_000_000.0).trusted


def test_a_cluster_without_a_route_is_asked_in_clear() -> None:
    way = Routes().way(BOOTSTRAP)
    assert (way.address, way.access) == (BOOTSTRAP, None)


@pytest.mark.parametrize(
    ("address", "then"),
    [
        (BOOTSTRAP, "c-bootstrap.ns.svc:8092"),
        ("c-1.c-nodes.ns.svc:9093", "c-1.c-nodes.ns.svc:8093"),
        ("c-1.c-nodes.ns.svc:9192", "c-1.c-nodes.ns.svc:8092"),
    ],
)
def test_a_cluster_with_one_is_asked_at_the_operators_listener(route: Route, address: str, then: str) -> None:
    routes = Routes()
    routes.put("ns", "c", route)
    way = routes.way(address)
    assert (way.address, way.access) == (then, route.access)
    for other in ("c-bootstrap.far.svc:9092", "d-bootstrap.ns.svc:9092", "north:9092", "10.0.0.1:9092"):
        assert routes.way(other).access is None
    routes.put("ns", "c", None)
    assert routes.way(address).access is None


def test_while_pods_are_made_anew_those_with_the_listener_are_asked(ca: str) -> None:
    routes = Routes()
    routes.put("ns", "c", Route.of(properties(Proofs("secret-password"), ca), ["c-2"]))
    assert routes.way(BOOTSTRAP).address == "c-2.c-nodes.ns.svc:8092"
    assert routes.way("c-2.c-nodes.ns.svc:9092").address == "c-2.c-nodes.ns.svc:8092"
    assert routes.way("c-0.c-nodes.ns.svc:9092") == Routes().way("c-0.c-nodes.ns.svc:9092")


def test_another_password_is_another_route(route: Route, ca: str) -> None:
    assert Route.of(properties(Proofs("another-password"), ca)).mark != route.mark
    assert "secret-password" not in repr(route)


def test_a_cluster_whose_proofs_are_not_known_is_asked_nothing(route: Route) -> None:
    routes = Routes()
    assert not routes.is_known("ns", "c")
    routes.close("ns", "c", "no Secret")
    assert routes.is_known("ns", "c")
    assert routes.get("ns", "c") is None
    assert routes.way(BOOTSTRAP).closed == "no Secret"
    routes.put("ns", "c", route)
    assert (routes.way(BOOTSTRAP).closed, routes.get("ns", "c")) == ("", route)
    routes.forget("ns", "c")
    assert not routes.is_known("ns", "c")
