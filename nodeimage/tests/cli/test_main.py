import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from headrace.base.build import build
from headrace.node import pod

Headrace = Callable[..., Any]

NEVER_FOR_HELP = ("confluent_kafka", "kio", "rich.table", "psutil", "pyarrow", "structlog", "asyncio")
NEVER_FOR_A_NODE = ("typer", "confluent_kafka", "headrace.cli", "headrace.local", "pyspark", "pyarrow")


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_command_line_loads_nothing_heavy_before_it_is_needed() -> None:
    assert not modules_after("import headrace.cli.main") & set(NEVER_FOR_HELP)


def test_a_node_loads_nothing_of_the_command_line() -> None:
    assert not modules_after("import headrace.node.process") & set(NEVER_FOR_A_NODE)


def test_a_node_loads_what_reads_records_with_its_first_batch() -> None:
    """A node without producers saves these 6 MiB."""
    assert not any(name.partition(".")[0] == "aiokafka" for name in modules_after("import headrace.node.process"))


def test_a_nodes_process_loads_nothing_for_a_terminal() -> None:
    """structlog would load 4 MiB of such modules."""
    program = (
        "import runpy, sys; sys.argv[1:] = ['--help']\ntry: runpy.run_module('headrace.node', run_name='__main__')"
    )
    found = modules_after(f"{program}\nexcept SystemExit: pass")
    assert "headrace.node.node" in found
    assert not [name for name in found if name.startswith(("rich.", "aiohttp", "prometheus_client", "cryptography"))]


def test_the_version_says_whether_it_is_compiled(headrace: Headrace) -> None:
    ran = headrace("--version")
    assert ran.code == 0
    assert ran.out.strip() == f"{version('headrace')} ({build()})"


def test_help_names_every_command(headrace: Headrace) -> None:
    ran = headrace("--help")
    assert ran.code == 0
    for command in ("up", "down", "status", "stream", "topic", "produce", "consume", "groups", "chain", "scrub"):
        assert f"  {command} " in ran.out
    for command in ("replay", "bench", "node", "volume", "containers", "balance", "recover-unclean", "recover-store"):
        assert f"  {command} " in ran.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("stream", "create"),
        ("up", "--nodes", "0"),
        ("up", "--port", "many"),
        ("status", "--no"),
        ("volume", "alter", "v"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(headrace: Headrace, arguments: tuple[str, ...]) -> None:
    assert "--help`" in headrace(*arguments).refused(code=2)


def test_a_group_of_commands_alone_shows_its_help(headrace: Headrace) -> None:
    ran = headrace("stream")
    assert ran.code == 2
    assert "create" in ran.err


@pytest.mark.parametrize("option", [("--data", "b"), ("--bootstrap", "127.0.0.1:1"), ("--output", "json")])
def test_an_option_of_groups_in_front_of_a_further_word_is_refused_not_dropped(
    headrace: Headrace, option: tuple[str, str]
) -> None:
    assert f"`headrace groups delete {option[0]} ...`" in headrace("groups", *option, "delete", "g").refused(code=2)


def test_a_file_that_cannot_be_replayed_is_refused_before_any_cluster_is_asked(
    headrace: Headrace, tmp_path: Path
) -> None:
    assert "missing.csv" in headrace("replay", str(tmp_path / "missing.csv"), "--stream", "/s").refused()


def test_pausing_and_resuming_at_once_is_refused(headrace: Headrace) -> None:
    assert "exclude" in headrace("balance", "--pause", "--resume").refused()


def test_in_a_pod_records_are_shown_and_put_back_only_when_that_is_meant(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = {"container": 7, "kind": "data", "state": "open", "primary": 2, "epoch": 9, "in_sync": [2], "replicas": [2]}

    def recover(*, apply: bool) -> dict[str, Any]:
        return {"containers": [lost], "warnings": ["node 1: a folder has no record"], "done": apply}

    monkeypatch.setattr(pod, "recover_store", recover)
    shown = headrace("recover-store", "--pod")
    assert "add --yes" in shown.err
    assert "a folder has no record" in shown.err
    done = headrace("recover-store", "--pod", "--yes")
    assert "their records are back" in done.err
    assert "data" in done.out


def test_a_store_is_recovered_only_where_there_are_nodes_and_only_when_that_is_meant(
    headrace: Headrace, tmp_path: Path
) -> None:
    assert "--yes" in headrace("recover-store", "--data", str(tmp_path)).err
    assert "holds no nodes" in headrace("recover-store", "--yes", "--data", str(tmp_path)).refused()
