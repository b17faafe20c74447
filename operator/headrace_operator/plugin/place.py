"""Where a command of the plugin works: kubectl for one context, a namespace, and a cluster in it."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace_operator.plugin.kubectl import Absent, Kubectl
from headrace_operator.specs import API

Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="[default: the context's]", show_default=False)
]
Context = Annotated[str | None, typer.Option("--context", help="The context in kubeconfig", show_default=False)]
KubeConfig = Annotated[
    str | None, typer.Option("--kubeconfig", metavar="FILE", help="The kubeconfig file", show_default=False)
]


class Place:
    """The place that --namespace, --context and --kubeconfig name."""

    def __init__(self, kubectl: Kubectl, namespace: str | None) -> None:
        self.kubectl = kubectl
        self._namespace = namespace

    @functools.cached_property
    def namespace(self) -> str:
        """The given namespace, else the context's. Raises KubectlFailed."""
        return self._namespace or self.kubectl.namespace()

    def cluster(self, name: str | None) -> str:
        """Return the given cluster's name, or the only cluster's. Raises KubectlFailed if it does not exist,
        HeadraceError if there are several.
        """
        namespace = self.namespace
        if name is not None:
            self.kubectl.get(API, "StreamCluster", namespace, name)
            return name
        found = [each["metadata"]["name"] for each in self.kubectl.all(API, "StreamCluster", namespace)]
        if not found:
            raise Absent(
                f"there is no StreamCluster in namespace {namespace}: `kubectl headrace status -A` looks in all"
            )
        if len(found) > 1:
            raise HeadraceError(f"there are several clusters in namespace {namespace}, name one: {', '.join(found)}")
        return str(found[0])


def _place(namespace: Namespace = None, context: Context = None, kubeconfig: KubeConfig = None) -> Place:
    return Place(Kubectl(context=context, kubeconfig=kubeconfig), namespace)


_OPTIONS: Final = inspect.signature(_place).parameters


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer with the options of a place after its own; it gets the place as first argument."""
    _, *own = inspect.signature(command).parameters.values()

    @functools.wraps(command)
    def run(**given: Any) -> None:
        of_place = {name: given.pop(name) for name in _OPTIONS}
        command(_place(**of_place), **given)

    run.__signature__ = inspect.Signature([*own, *_OPTIONS.values()])  # type: ignore[attr-defined]
    return run
