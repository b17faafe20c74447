import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_operator.plugin.kubectl import Absent, Forbidden, Kubectl, KubectlFailed, failure
from headrace_operator.specs import API

from ..fake_cluster import NS, World
from .played_kubectl import Served, over_http

REFUSED = """\
E1130 07:26:45.1 memcache.go:265] couldn't get current server API group list
The connection to the server localhost:8080 was refused - did you specify the right host or port?
"""


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        (REFUSED, KubectlFailed, "no Kubernetes cluster can be reached: The connection to the server localhost:8080"),
        ("Unable to connect to the server: dial tcp: no such host", KubectlFailed, "no Kubernetes cluster can be"),
        ('Error from server (NotFound): pods "x" not found', Absent, 'pods "x" not found'),
        ("Error from server (NotFound): the server could not find the requested resource", Absent, "headrace-crds"),
        ('Error from server (Forbidden): User "ada" cannot list', Forbidden, "auth can-i"),
        ('error: context "x" does not exist', KubectlFailed, 'kubectl: context "x" does not exist'),
        ("headrace: no\ncommand terminated with exit code 1", KubectlFailed, "kubectl: headrace: no"),
        ("error: EOF", KubectlFailed, "kubectl asks for a user name"),
        ("", KubectlFailed, "it printed no error"),
        (f"error: cannot read {'x' * 9_000}", KubectlFailed, "kubectl: cannot read xxx"),
    ],
)
def test_what_kubectl_says_becomes_one_line(said: str, kind: type[KubectlFailed], told: str) -> None:
    error = failure(said)
    assert type(error) is kind
    assert told in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 600


def test_a_kubectl_that_is_not_there_is_told() -> None:
    kubectl = Kubectl(program="kubectl-that-nobody-has")
    for ask in (
        kubectl.namespace,
        lambda: kubectl.run_in("n", "p", "c", ["x"]),
        lambda: list(kubectl.logs("n", {"a": "b"}, "c", lines=1, follow=False)),
    ):
        with pytest.raises(KubectlFailed, match="cannot be run: No such file"):
            ask()


@pytest.fixture
def real(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubectl]:
    """The real kubectl, with an API server on loopback."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    monkeypatch.setenv("HOME", str(tmp_path))
    with over_http(served) as url:
        config = tmp_path / "kubeconfig"
        config.write_text(
            f'{{"apiVersion": "v1", "kind": "Config", "current-context": "x",'
            f' "clusters": [{{"name": "x", "cluster": {{"server": "{url}"}}}}],'
            f' "contexts": [{{"name": "x", "context": {{"cluster": "x", "user": "", "namespace": "{NS}"}}}}]}}'
        )
        yield Kubectl(kubeconfig=str(config), context="x")


def test_kubectl_itself_reads_patches_and_follows(real: Kubectl, served: Served, world: World) -> None:
    assert real.namespace() == NS
    (cluster,) = real.all(API, "StreamCluster", NS)
    assert (cluster["kind"], cluster["metadata"]["name"]) == ("StreamCluster", "c")
    assert real.get(API, "ReplicationLink", NS, "copies")["spec"]["name"] == "north"
    assert len(real.all("v1", "Pod", None, labels={"headrace.dev/cluster": "c"})) == 3
    real.annotate("StreamCluster", NS, "c", {"headrace.dev/restart": "now"})
    assert world.api.one("StreamCluster", "c")["metadata"]["annotations"]["headrace.dev/restart"] == "now"
    assert "event=ready" in real.log(NS, "c-0", "node", lines=5)
    lines = list(real.logs(NS, {"headrace.dev/cluster": "c"}, "node", lines=5, follow=False))
    assert len(lines) == 6
    assert any(line.startswith("[pod/c-2/node] level=info event=ready") for line in lines)


def test_kubectl_itself_is_told_of_what_may_not_be_or_is_not_there(real: Kubectl, served: Served) -> None:
    served.forbidden.add("pods")
    with pytest.raises(Forbidden, match="cannot list"):
        real.all("v1", "Pod", NS)
    with pytest.raises(Absent):
        real.get(API, "StreamCluster", NS, "nothing")
    with pytest.raises(KubectlFailed, match="context"):
        Kubectl(kubeconfig=real.kubeconfig, context="another").namespace()


def test_kubectl_itself_without_a_cluster_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    kubectl = Kubectl()
    assert kubectl.namespace() == "default"
    with pytest.raises(KubectlFailed, match="no Kubernetes cluster can be reached") as caught:
        kubectl.all(API, "StreamCluster", NS)
    assert "\n" not in str(caught.value)
