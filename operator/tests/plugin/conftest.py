"""A secured cluster of three pods with a link, as the operator creates it; and the plugin's program on it."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace_operator.builders.names import OPERATOR_USER
from headrace_operator.plugin import main, place

from ..fake_cluster import NS, World
from .played_kubectl import PlayedKubectl, Served

LINK = {
    "clusterRef": {"name": "c"},
    "name": "north",
    "source": {"bootstrap": ["north:9092"], "stream": "/plant", "credentialsSecret": "north-login"},
    "target": {"stream": "/copies"},
}


@pytest.fixture
async def world() -> World:
    world = World()
    await world.run(world.declare("StreamCluster", "c", {"nodes": 3, "security": {"enabled": True}}))
    world.declare("ReplicationLink", "copies", LINK)
    for pod in world.api.find("Pod"):
        pod["status"]["containerStatuses"] = [{"name": "node", "restartCount": 0, "state": {"running": {}}}]
    return world


@pytest.fixture
def served(world: World) -> Served:
    logs = {
        f"c-{number}/node": f"level=info event=ready node={number + 1}\nlevel=info event=x link=north n={number}\n"
        for number in range(3)
    }
    answers = dict.fromkeys(("status --events", "containers --output", "link list", "groups list"), '{"nodes": []}')
    return Served(world.api, logs=logs, answers=answers)


def secret_values(world: World) -> set[str]:
    """Return all values of the Secrets there, as text and in base64."""
    found = set()
    for secret in world.api.find("Secret"):
        for encoded in (secret.get("data") or {}).values():
            found |= {encoded, base64.b64decode(encoded).decode("utf-8", "replace")}
        found |= set((secret.get("stringData") or {}).values())
    return {each for each in found if len(each) > 7} - {OPERATOR_USER}


@dataclass
class Ran:
    """The results of a run of the program."""

    code: int
    out: str
    err: str


Plugin = Callable[..., Ran]


@pytest.fixture
def plugin(served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plugin:
    from headrace.cli.running import exit_code_of

    def made(**_: Any) -> PlayedKubectl:
        return PlayedKubectl(served)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(place, "Kubectl", made)
        code = exit_code_of(main.app, arguments, name="kubectl headrace")
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return run


__all__ = ["NS", "Plugin", "plugin", "served", "world"]
