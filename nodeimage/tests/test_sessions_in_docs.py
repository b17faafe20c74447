"""The sessions that README and docs show are typed as they stand, on clusters of this machine.

Each command succeeds, and prints what has the shape of what is shown. test_commands_in_docs.py holds every other
command to its program.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import document_sessions as shown
from kit.cluster_nodes import until
from kit.documents import Command
from kit.patience import PATIENCE
from kit.typed_session import Session

pytestmark = pytest.mark.slow


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Ends with all clusters stopped that were started in it."""
    patient = {"poll(10)": f"poll({10 * PATIENCE})"}
    begun = Session(tmp_path, monkeypatch, stands_for=patient, instead=shown.INSTEAD)
    yield begun
    begun.end()


def kill_node_2(session: Session) -> None:
    """And wait until the cluster has noticed."""
    os.kill(session.node_pid(2), signal.SIGKILL)
    until(
        "the death of node 2 is known",
        lambda: re.search(
            r"not whole(.|\n)*node 2 refuses connections; node \d leads now", session.prints("headrace status")
        ),
        every_s=0.5,
    )


def test_a_secure_cluster_its_users_and_what_they_may_do(session: Session) -> None:
    session.do(shown.blocks(shown.README))
    for name in ("alice", "new", "bob", "outpost"):
        (session.folder / f"{name}.txt").write_text(f"password of {name}\n")
    (session.home / "factory.properties").write_text((session.data / "client.properties").read_text())
    session.type(Command("headrace context set test --config ~/factory.properties"))
    session.do(shown.blocks(*shown.SECURITY), without=[*shown.NOT_RUN, "headrace up --secure --detach"])


def test_the_tour_of_the_command_line(session: Session, new_cluster: Callable[..., Any]) -> None:
    readings = "timestamp,value\n2013-12-02 21:15:00,73.967322\n2013-12-02 21:20:00,74.935882\n"
    (session.folder / "machine_temperature.csv").write_text(readings)
    session.do(shown.blocks(shown.ONE_NODE))
    session.stands_for("other-host:9092", new_cluster().bootstrap)
    session.do(
        shown.blocks(shown.CLUSTER),
        before={
            "headrace status": lambda: kill_node_2(session),
            "headrace volume create scratch --replicas 1": lambda: session.stands_for(
                "127.0.0.1:9092", session.bootstrap()
            ),
        },
    )


def test_running_a_cluster(session: Session) -> None:
    session.do(shown.blocks(shown.START))
    session.type(Command("headrace stream create /factory/sensors"))
    session.stands_for("127.0.0.1:9092", session.bootstrap())
    session.do(block for block in shown.blocks(shown.PROGRAM) if block.language == "python")
    session.do(shown.blocks(shown.VOLUMES, shown.LIVE, shown.PROBE))
    session.do(shown.blocks(shown.GLANCE), before={"headrace status": lambda: kill_node_2(session)})
    session.type(Command("headrace node start 2"))
    session.type(Command("headrace status --wait"))
    session.do(shown.blocks(shown.NODES))
    (backup := session.folder / "backup").mkdir()
    session.stands_for("/backup", str(backup))
    session.do(shown.blocks(shown.BACKUPS))
    (copy,) = backup.iterdir()
    assert (copy / "cluster.json").exists()


def test_links_feature_levels_and_what_runbooks_look_at(session: Session, new_cluster: Callable[..., Any]) -> None:
    session.stands_for("north:9092", new_cluster().bootstrap)
    session.type(Command("headrace up --detach"))
    for topic in ("/factory/sensors:press-7", "/plant/pumps:pump-1"):
        session.type(Command(f"headrace stream create {topic.partition(':')[0]} --bootstrap north:9092"))
        session.type(Command(f"headrace produce {topic} --value 1 --bootstrap north:9092"))
    session.do(
        shown.blocks(shown.LINK),
        before={"headrace link show NAME": lambda: session.stands_for("NAME", a_link(session))},
    )
    until(
        "the link has copied its topics",
        lambda: "press-7" in session.prints("headrace topic list /factory/sensors"),
        every_s=0.5,
    )
    session.do(shown.blocks(shown.HOME), without=list(shown.NOT_RUN))
    session.type(Command("headrace consume /factory/sensors:press-7 --group readers"))
    session.stands_for("GROUP", "readers")
    session.do(shown.blocks(*shown.RUNBOOKS, *shown.LEVEL), without=list(shown.NOT_RUN), again=False)


def a_link(session: Session) -> str:
    """The name of a link of the cluster that runs."""
    return str(json.loads(session.prints("headrace link list --output json"))[0]["name"])
