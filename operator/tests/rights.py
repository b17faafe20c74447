"""What the chart allows the operator, and what a call to the API server needs."""

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
    """One thing that may be done."""

    group: str
    resource: str
    verb: str


def rights_of(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """Of a Role's or ClusterRole's rules."""
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def in_a_namespace() -> set[Right]:
    """Where it looks after resources, without helm: nothing in these rules is a value."""
    text = (CHART / "_helpers.tpl").read_text()
    rules = text.partition('{{- define "headrace.rules" -}}')[2].partition("{{- end -}}")[0]
    return rights_of(yaml.safe_load(rules))


def in_the_cluster() -> set[Right]:
    """By the ClusterRole that there is by default."""
    text = (CHART / "rbac.yaml").read_text()
    rules = text.partition("kind: ClusterRole\n")[2].partition("rules:\n")[2].partition("{{-")[0]
    return rights_of(yaml.safe_load(rules))


def before_uninstall() -> set[Right]:
    """Of the hook's own Role, beside the operator's."""
    text = (CHART / "before-uninstall.yaml").read_text().partition("rules:\n")[2].partition("---")[0]
    return rights_of(yaml.safe_load(re.sub(r"\{\{.*?\}\}", "x", text)))


def needed(method: str, path: str, *, is_apply: bool = False, is_there: bool = True) -> Sequence[Right]:
    """For one call; an apply of what is not there yet makes it."""
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
