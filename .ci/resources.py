"""Writes docs/resources.md, the reference of all resources, from crds/: `make docs`. A test fails if it is outdated."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
WHERE = ROOT / "docs" / "resources.md"
ORDER = (
    *("StreamCluster", "Volume", "Stream", "Topic", "StreamUser", "ReplicationLink", "StreamJob"),
    *("StorageNode", "StorageContainer"),
)
EXAMPLES = {"StorageNode": "written-by-nodes/storagenode", "StorageContainer": "written-by-nodes/storagecontainer"}
OF_EVERY_STATUS = ("conditions", "observedGeneration")
HEAD = """\
# Resources

All are of `headrace.dev/v1alpha1`. This page is made from `crds/` by `make docs`; what the conditions and events mean
is in [kubernetes.md](kubernetes.md). `kubectl get headrace` shows all of them, `kubectl explain stream.spec` the same
as this page. A size is written as `10Gi` or `500M`, a duration as `90s`, `12h` or `7d`. A status has
`observedGeneration` and `conditions` in addition to what is listed here.
"""

Schema = Mapping[str, Any]


def reference() -> str:
    """Return the whole page."""
    crds = {crd["spec"]["names"]["kind"]: crd for crd in map(yaml.safe_load, _texts())}
    return HEAD + "".join(_kind(kind, crds[kind]["spec"]) for kind in ORDER)


def _texts() -> Iterator[str]:
    return (file.read_text() for file in sorted((ROOT / "crds").glob("*.yaml")))


def _kind(kind: str, spec: Schema) -> str:
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    example = EXAMPLES.get(kind, kind.lower())
    lines = [f"\n## {kind}\n", f"{schema['description']} Short name `{spec['names']['shortNames'][0]}`,"]
    lines[-1] += f" example [{example}.yaml](examples/{example}.yaml)."
    properties = schema["properties"]
    lines += _table("field", properties["spec"]) if "spec" in properties else []
    rules = list(dict.fromkeys(_rules(schema)))
    if rules:
        lines += ["\nRefused at once, with these words:\n", *(f"- {rule}" for rule in rules)]
    lines += _table("status", properties["status"])
    return "\n".join(lines) + "\n"


def _table(head: str, schema: Schema) -> list[str]:
    rows = [row for row in _rows(schema) if row[0].split(".")[0].rstrip("[]") not in OF_EVERY_STATUS]
    if not rows:
        return []
    made = [f"\n| {head} | type | default | |", "|---|---|---|---|"]
    return made + [f"| `{name}` | {type_} | {default} | {text} |" for name, type_, default, text in rows]


def _rows(schema: Schema, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    for name, each in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        inner = each.get("items", each) if each.get("type") == "array" else each
        many = "[]" if inner is not each else ""
        default = each.get("default")
        shown = "" if default in (None, {}) else f"`{default}`".replace("True", "true").replace("False", "false")
        if name in schema.get("required", []):
            shown = "required"
        yield path + many, _type(each), shown, _cell(each.get("description", ""))
        yield from _rows(inner, f"{path}{many}.")


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    match schema["type"]:
        case "array":
            return f"list of {_type(schema['items'])}"
        case "object" if "additionalProperties" in schema:
            return f"map to {_type(schema['additionalProperties'])}"
        case "object" if schema.get("x-kubernetes-preserve-unknown-fields") and "properties" not in schema:
            return "object, passed on"
        case "integer" if "minimum" in schema and "maximum" in schema:
            return f"integer, {schema['minimum']} to {schema['maximum']}"
        case "integer" if "minimum" in schema:
            return f"integer, from {schema['minimum']}"
        case "string" if schema.get("format") == "date-time":
            return "time"
        case "string" if "(Ki|Mi|" in schema.get("pattern", ""):
            return "size"
        case "string" if "(ms|s|m|h|d)" in schema.get("pattern", ""):
            return "duration"
        case kind:
            return str(kind)


def _rules(schema: Schema) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield rule["message"]
    for each in schema.get("properties", {}).values():
        yield from _rules(each)
    if "items" in schema:
        yield from _rules(schema["items"])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> int:
    """Write the page; with --check return whether it is outdated."""
    made = reference()
    if "--check" in sys.argv[1:]:
        return int(not WHERE.exists() or WHERE.read_text() != made)
    WHERE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
