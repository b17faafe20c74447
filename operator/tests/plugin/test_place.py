import pytest

from headrace.base.errors import HeadraceError
from headrace_operator.plugin.kubectl import Absent
from headrace_operator.plugin.place import Place

from ..fake_cluster import NS, World
from .conftest import Plugin
from .played_kubectl import PlayedKubectl, Served


def place(served: Served, namespace: str | None = None) -> Place:
    return Place(PlayedKubectl(served), namespace)


def test_the_namespace_is_the_contexts_unless_one_is_given(served: Served) -> None:
    assert place(served).namespace == NS
    assert place(served, "other").namespace == "other"


def test_one_cluster_needs_no_name_and_several_do(served: Served, world: World) -> None:
    assert place(served).cluster(None) == "c"
    assert place(served).cluster("c") == "c"
    with pytest.raises(Absent):
        place(served).cluster("nothing")
    with pytest.raises(Absent, match="there is no StreamCluster in namespace other"):
        place(served, "other").cluster(None)
    world.declare("StreamCluster", "d", {"nodes": 1})
    with pytest.raises(HeadraceError, match="name one: c, d"):
        place(served).cluster(None)


@pytest.mark.parametrize("command", ["status", "restart", "drain", "logs", "support-bundle"])
def test_every_command_has_the_options_of_a_place(plugin: Plugin, command: str) -> None:
    shown = plugin(command, "--help").out
    assert all(option in shown for option in ("--namespace", "--context", "--kubeconfig"))


def test_what_is_given_reaches_kubectl(plugin: Plugin, world: World) -> None:
    ran = plugin("restart", "-n", "other", "--context", "here")
    assert (ran.code, "in namespace other" in ran.err) == (1, True)
