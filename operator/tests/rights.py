"""The rights that the chart gives the operator, and the rights that a call to the API server needs."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "headrace" / "templates"
_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+(?:/namespaces/[^/]+(?=/.))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+)(?P<sub>/[a-z]+)?)?"
)


class Right(NamedTuple):
    """A right to do one thing."""

    group: str
    resource: str
    verb: str


def rights_of(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """Return the rights in a Role's or ClusterRole's rules."""
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def in_a_namespace() -> set[Right]:
    """Return the rights in watched namespaces, without helm: these rules contain no template values."""
    text = (CHART / "_helpers.tpl").read_text()
    rules = text.partition('{{- define "headrace.rules" -}}')[2].partition("{{- end -}}")[0]
    return rights_of(yaml.safe_load(rules))


def in_the_cluster() -> set[Right]:
    """Return the rights of the default ClusterRole."""
    text = (CHART / "rbac.yaml").read_text()
    rules = text.partition("kind: ClusterRole\n")[2].partition("rules:\n")[2].partition("{{-")[0]
    return rights_of(yaml.safe_load(rules))


def before_uninstall() -> set[Right]:
    """Return the rights of the hook's own Role, in addition to the operator's."""
    text = (CHART / "before-uninstall.yaml").read_text().partition("rules:\n")[2].partition("---")[0]
    return rights_of(yaml.safe_load(re.sub(r"\{\{.*?\}\}", "x", text)))


def needed(method: str, path: str, *, is_apply: bool = False, is_there: bool = True) -> Sequence[Right]:
    """Return the rights that one call needs; applying an absent object creates it."""
    found = _PATH.fullmatch(path)
    assert found is not None, path
    resource = found["plural"] + (found["sub"] or "")
    match method:
        case "GET":
            verbs = ["get" if found["name"] else "list"]
        case "POST":
            verbs = ["create"]
        case "DELETE":
            verbs = ["delete"]
        case _:
            verbs = ["patch", "create"] if is_apply and not is_there else ["patch"]
    return [Right(found["group"] or "", resource, verb) for verb in verbs]
