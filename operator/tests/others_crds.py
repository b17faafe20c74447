"""CRDs of other operators, to validate objects that are created for these; `make charts` names their files."""

from pathlib import Path
from typing import Any

import pytest
import yaml


def check(made: dict[str, Any], crd: Path) -> None:
    """Fail unless an object matches a CRD, without fields that the API server would prune."""
    jsonschema = pytest.importorskip("jsonschema")
    definition = yaml.load(crd.read_text(), Loader=yaml.CSafeLoader)
    jsonschema.validate(made, closed(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))


def closed(schema: Any) -> Any:
    """Return a structural schema that refuses what it would prune."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    if isinstance(pattern := found.get("pattern"), str):  # Go allows flags anywhere in a pattern
        found["pattern"] = pattern.replace("^(?i)", "(?i)^")
    if found.get("x-kubernetes-int-or-string"):
        found.pop("anyOf", None)
        return {"type": ["integer", "string"]}
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    if "metadata" in found.get("properties", {}) and "spec" in found["properties"] and "kind" in found["properties"]:
        found["properties"]["metadata"] = {"type": "object"}
    return found
