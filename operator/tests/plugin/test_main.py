import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from headrace_operator.builders.cluster import RESTART
from headrace_operator.plugin import main
from headrace_operator.plugin.main import about

from ..fake_cluster import World
from .conftest import Plugin
from .played_kubectl import Served


def test_status_shows_clusters_nodes_links_and_what_is_not_so(plugin: Plugin, world: World) -> None:
    shown = plugin("status")
    assert shown.code == 0, shown.err
    for title in ("clusters", "nodes", "links"):
        assert any(line.strip() == title for line in shown.out.splitlines()), shown.out
    assert "True" in shown.out
    assert "c-2" in shown.out
    told = json.loads(plugin("status", "c", "-o", "json").out)
    assert told["clusters"][0]["nodes"] == "3/3"
    assert [each["node"] for each in told["nodes"]] == [1, 2, 3]
    assert told["links"][0]["link"] == "copies"
    assert any(each["condition"] == "Secured" for each in told["conditions"])
    world.api.one("StreamCluster", "c")["status"]["conditions"][0]["status"] = "False"
    assert "conditions" in plugin("status", "-A").out


def test_status_of_what_is_not_there_is_one_line(plugin: Plugin, served: Served) -> None:
    ran = plugin("status", "d")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "there is no StreamCluster d in namespace ns" in ran.err
    served.api.remove("StreamCluster", "c")
    ran = plugin("status")
    assert ran.code == 0
    assert "looks in all namespaces" in ran.err


def test_restart_sets_the_operators_annotation_and_waits_for_the_pods(
    plugin: Plugin, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugin("restart").code == 0
    mark = world.api.one("StreamCluster", "c")["metadata"]["annotations"][RESTART]
    assert mark.endswith("Z")

    pods = world.api.find("Pod")

    def roll(_seconds: float) -> None:
        """Recreate one more pod."""
        wanted = world.api.one("StreamCluster", "c")["metadata"]["annotations"][RESTART]
        older = [each for each in pods if each["metadata"]["annotations"].get(RESTART) != wanted]
        older[0]["metadata"]["annotations"] = {**older[0]["metadata"]["annotations"], RESTART: wanted}

    monkeypatch.setattr(main.time, "sleep", roll)
    ran = plugin("restart", "c", "--wait")
    assert ran.code == 0, ran.err
    assert "2 of 3 pods are done" in ran.err
    assert "all pods of c were recreated" in ran.err
    ran = plugin("restart", "c", "--wait", "--timeout", "0")
    assert ran.code == 1
    assert "after 0 s 0 of 3 pods are done" in ran.err


def test_which_cluster_is_meant_has_to_be_clear(plugin: Plugin, world: World) -> None:
    assert "not found" in plugin("restart", "nothing").err
    world.declare("StreamCluster", "d", {"nodes": 1})
    ran = plugin("restart")
    assert (ran.code, "name one: c, d" in ran.err) == (1, True)


def test_drain_asks_the_cluster_in_another_pod_than_the_nodes(plugin: Plugin, served: Served) -> None:
    assert plugin("drain", "1", "--timeout", "60").code == 0
    assert served.ran == [("c-1", ["headrace", "node", "drain", "1", "--timeout", "60", "--wait"])]
    assert plugin("drain", "2", "--cancel", "--cluster", "c").code == 0
    assert served.ran[1] == ("c-0", ["headrace", "node", "drain", "2", "--timeout", "3600", "--cancel"])
    served.code = 1
    assert plugin("drain", "3", "--no-wait").code == 1
    ran = plugin("drain", "9")
    assert "cluster c has no node 9; there are 1, 2, 3" in ran.err


def test_a_drain_without_a_pod_to_ask_is_refused(plugin: Plugin, world: World) -> None:
    for pod in world.api.find("Pod"):
        pod["status"]["conditions"] = []
    assert "no pod of c is ready" in plugin("drain", "1").err


def test_logs_of_a_link_are_those_of_all_pods_that_name_it(plugin: Plugin, served: Served) -> None:
    ran = plugin("logs", "copies")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        f"[pod/c-{number}/node] level=info event=x link=north n={number}" for number in range(3)
    ]
    served.logs = {"c-0/node": "level=info event=ready"}
    ran = plugin("logs", "copies", "--tail", "9")
    assert (ran.code, ran.out) == (0, "")
    assert "do not mention link copies" in ran.err
    assert "not found" in plugin("logs", "nothing").err


def test_a_line_is_about_a_link_or_its_stream() -> None:
    names = {"north", "/copies"}
    assert about("level=info event=x link=north", names)
    assert about('event="a link waits" stream="/copies" at=x', names)
    assert not about("link=northern stream=/copies2 topic=north", names)


def test_a_support_bundle_is_written_once(plugin: Plugin, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.xz"
    ran = plugin("support-bundle", "--file", str(path))
    assert ran.code == 0, ran.err
    assert ran.out == f"{path}\n"
    with tarfile.open(path) as archive:
        assert all(name.startswith("headrace-support-ns-") for name in archive.getnames())
    assert "exists already" in plugin("support-bundle", "-f", str(path)).err


def test_wrong_usage_is_told_as_such(plugin: Plugin) -> None:
    assert plugin("drain", "x").code == 2
    assert plugin().code == 2


def test_the_plugin_begins_without_what_nodes_are_made_of() -> None:
    """Importing the nodes' modules would add a second to each command."""
    asked = "import sys, headrace_operator.plugin.main; print('headrace.node' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
