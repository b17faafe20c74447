"""Options for access expressions, and reports about a change of access rules."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from headrace.cli.output import note

_HELP = "Expression: who may {}"

Produce = Annotated[
    str | None, typer.Option("--produce", metavar="EXPR", show_default=False, help=_HELP.format("write records"))
]
Consume = Annotated[
    str | None, typer.Option("--consume", metavar="EXPR", show_default=False, help=_HELP.format("read records"))
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="EXPR", show_default=False, help=_HELP.format("create, alter and delete topics")),
]
Copy = Annotated[
    str | None, typer.Option("--copy", metavar="EXPR", show_default=False, help=_HELP.format("copy it through a link"))
]
Admin = Annotated[
    str | None,
    typer.Option("--admin", metavar="EXPR", show_default=False, help=_HELP.format("change policy and expressions")),
]


def expressions(
    produce: str | None, consume: str | None, topic: str | None, copy: str | None, admin: str | None
) -> dict[str, str]:
    """The expressions that were given, by permission."""
    given = {"produce": produce, "consume": consume, "topic": topic, "copy": copy, "admin": admin}
    return {permission: text for permission, text in given.items() if text is not None}


def items(name: str, given: Mapping[str, str | None]) -> list[dict[str, str | None]]:
    """The parameter of `access.set`."""
    return [{"object": name, "permission": each, "expression": text} for each, text in given.items()]


def split_warnings(answer: dict[str, Any]) -> dict[str, Any]:
    """Remove from the answer, and print to stderr, nodes that have not applied the change, and warnings."""
    print_warnings(answer)
    return {name: value for name, value in answer.items() if name not in ("not_applied", "warnings")}


def print_warnings(answer: Mapping[str, Any]) -> None:
    """Print the nodes that have not applied a change, and warnings."""
    for warning in answer.get("warnings", ()):
        note(f"warning: {warning}")
    if late := answer.get("not_applied"):
        nodes = f"node {late[0]} has" if len(late) == 1 else f"nodes {', '.join(map(str, late))} have"
        note(
            f"warning: the change is stored, but {nodes} not confirmed that it is applied there. Until then the former"
            f" rules hold for clients of {'that node' if len(late) == 1 else 'these nodes'}; see `headrace status`"
        )
