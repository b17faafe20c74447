import json
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_operator.plugin.kubectl import Absent, KubectlFailed
from headrace_operator.plugin.support_bundle import Bundle, write

from ..fake_cluster import NS, World
from .conftest import secret_values
from .played_kubectl import PlayedKubectl, Served

PLANTED = [f"planted-{number}-Qx7Zr2Lm" for number in range(12)]


def bundled(served: Served) -> dict[str, str]:
    return dict(Bundle(PlayedKubectl(served), namespace=NS, progress=lambda _: None).files())


def happened(world: World, message: str) -> None:
    involved = {"kind": "Pod", "name": "c-0", "namespace": NS}
    meta = {"name": "e", "namespace": NS}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": meta, "involvedObject": involved, "message": message}
    world.api.put(event)


def plant(world: World, served: Served) -> None:
    """Put secrets in all places in which some have been found."""
    (first, second, third) = world.api.find("Pod")
    container = first["spec"]["containers"][0]
    container["env"] = [*container.get("env", []), {"name": "HARMLESS_NAME", "value": PLANTED[0]}]
    container["args"] = ["--password", PLANTED[1], f"--token={PLANTED[2]}"]
    applied = json.dumps({"spec": {"pod": {"env": [{"name": "A", "value": PLANTED[3]}]}}})
    cluster = world.api.one("StreamCluster", "c")
    cluster["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/last-applied-configuration"] = applied
    cluster["spec"]["pod"] = {"env": [{"name": "B", "value": PLANTED[4]}]}
    link = world.api.one("ReplicationLink", "copies")
    link["status"] = {"conditions": [{"type": "Ready", "message": f"refused: sasl.password={PLANTED[5]}"}]}
    world.declare("StreamJob", "j", {"sparkConf": {"spark.hadoop.fs.s3a.secret.key": PLANTED[6]}})
    happened(world, f"pull https://bot:{PLANTED[7]}@registry/x failed")
    served.logs["c-0/node"] += (
        f'level=info event=x config="password={PLANTED[8]}"\nAuthorization: Bearer {PLANTED[9]}\n'
    )
    second["status"]["containerStatuses"][0]["restartCount"] = 2
    served.logs["c-1/node/previous"] = f"-----BEGIN PRIVATE KEY-----\n{PLANTED[10]}\n-----END PRIVATE KEY-----\n"
    served.answers["status --events"] = json.dumps({"links": [{"credentials": {"ada": PLANTED[11]}}]})
    assert third["metadata"]["name"] == "c-2"


async def test_no_secret_is_in_it(world: World, served: Served, tmp_path: Path) -> None:
    plant(world, served)
    planted = {*PLANTED, *secret_values(world)}
    assert len(planted) > 20
    path = tmp_path / "bundle.tar.xz"
    bundle = Bundle(PlayedKubectl(served), namespace=NS, progress=lambda _: None)
    count = write(path, bundle.files(), root="r")
    with tarfile.open(path) as archive:
        texts = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            texts[member.name] = file.read().decode()
    assert len(texts) == count
    for name, text in texts.items():
        assert not [each for each in planted if each in text or each in name], name
        assert json.dumps(PLANTED[0])[1:-1] not in text
    assert not [path for path in served.asked if "secrets" in path or "configmaps" in path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "r/logs/ns/c-1/node.previous.log" in texts
    assert "REDACTED" in texts["r/resources/Pod/ns/c-0.json"]
    assert "north-login" in texts["r/resources/ReplicationLink/ns/copies.json"]


async def test_what_is_there_is_in_it(world: World, served: Served) -> None:
    happened(world, "pulled")
    files = bundled(served)
    for name in (
        *("resources/StreamCluster/ns/c.json", "resources/StatefulSet/ns/c.json"),
        *("resources/StorageNode/ns/c-1.json", "resources/Node/-/worker.json", "events.jsonl"),
        *("logs/ns/c-0/node.log", "clusters/c/status.json", "clusters/c/groups.json"),
    ):
        assert name in files, name
    assert "balance" in files["problems.txt"]  # this command failed
    assert json.loads(files["clusters/c/status.json"]) == {"nodes": []}


async def test_what_may_not_be_read_is_told_and_the_rest_is_there(world: World, served: Served) -> None:
    served.forbidden |= {"nodes", "events", "storagecontainers"}
    del served.logs["c-1/node"]
    for pod in world.api.find("Pod"):
        pod["status"]["conditions"] = []
    files = bundled(served)
    problems = files["problems.txt"]
    for told in ("Node: ", "Event: ", "StorageContainer: ", "log of c-1/node: ", "no pod of it is ready"):
        assert told in problems
    assert "logs/ns/c-0/node.log" in files
    served.forbidden.add("streamclusters")
    with pytest.raises(KubectlFailed, match="cannot list"):
        bundled(served)


def test_what_fails_leaves_no_file_and_one_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "bundle"

    def broken() -> Iterator[tuple[str, str]]:
        yield "a", "b"
        raise Absent("gone")

    with pytest.raises(Absent):
        write(path, broken(), root="r")
    assert not path.exists()
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        write(path, iter([]), root="r")
    assert path.read_text() == "mine"


def test_a_name_stays_in_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    write(path, iter([("../../etc/../passwd", "x"), ("/abs", "y")]), root="r")
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["r/etc/passwd", "r/abs"]
