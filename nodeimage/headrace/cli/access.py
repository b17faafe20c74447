"""`headrace access`: who may do what, by access expressions on streams, topics, paths, groups and the cluster."""

from typing import Annotated, Any

import typer

from headrace.cli.access_options import Admin, Consume, Copy, Produce, Topic, expressions, items, split_warnings
from headrace.cli.admin import call
from headrace.cli.formatting import rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_json, print_table

app = typer.Typer(
    help="Set and explain who may do what. OBJECT is /stream, /stream:topic, /path/* (all streams below it), cluster,"
    " group:NAME, group:PREFIX*, transactional-id:NAME, or transactional-id:PREFIX*."
    " Expressions use u:NAME, g:GROUP, p (everybody), !, &, | and brackets; '' admits nobody.",
    no_args_is_help=True,
)

Object = Annotated[str, typer.Argument(metavar="OBJECT", help="For example /plant/flow, or '/plant/*'")]
Permission = Annotated[
    str | None,
    typer.Argument(metavar="[PERMISSION]", show_default=False, help="produce, consume, topic, copy or admin"),
]
Remove = Annotated[
    list[str] | None,
    typer.Option("--remove", metavar="PERMISSION", show_default=False, help="Permission to inherit again; may repeat"),
]


@app.command(name="set")
def set_access(
    name: Object,
    produce: Produce = None,
    consume: Consume = None,
    topic: Topic = None,
    copy: Copy = None,
    admin: Admin = None,
    remove: Remove = None,
    force: Annotated[
        bool, typer.Option("--force", help="Allow a change that ends your own administration of the cluster")
    ] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Set who may do what with an object.

    Returns when all nodes have applied it, and names those that have not within a few seconds.

    \b
    Example:
      headrace access set /plant/flow --produce 'u:alice | g:sensors & !u:bob'
    """
    given: dict[str, str | None] = {**expressions(produce, consume, topic, copy, admin)}
    if twice := given.keys() & set(remove or ()):
        raise typer.BadParameter(f"{', '.join(sorted(twice))}: set it or remove it, not both")
    given |= dict.fromkeys(remove or ())
    if not given:
        raise typer.BadParameter("give what to set, for example --produce 'u:alice', or what to remove")
    answer = call(bootstrap, data, "access.set", {"items": items(name, given), "force": force})
    _show_list(split_warnings(answer)["items"], output)


@app.command(name="list")
def list_access(bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """List all expressions that you may set.

    \b
    Example:
      headrace access list
    """
    found = call(bootstrap, data, "access.list", {})
    if found or output is OutputFormat.JSON:
        _show_list(found, output)
    else:
        note("no expressions: `headrace access set OBJECT --produce EXPR` sets one")


@app.command()
def show(
    name: Object, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """Show which expressions decide on an object.

    \b
    Example:
      headrace access show /plant/flow
    """
    shown = call(bootstrap, data, "access.show", {"object": name})
    if output is OutputFormat.JSON:
        print_json(shown)
        return
    rows = [
        (
            each["permission"],
            "nobody but administrators of the cluster" if each["from"] is None else each["expression"] or "'' (nobody)",
            each["from"],
        )
        for each in shown["permissions"]
    ]
    print_table(("permission", "expression", "set on"), rows)
    if not shown["security"]:
        note("security is off: everybody may do everything, whatever the expressions say; `headrace security show`")


@app.command()
def explain(
    user: Annotated[str, typer.Argument(metavar="USER", show_default=False)],
    name: Object,
    permission: Permission = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", metavar="GROUP", show_default=False, help="A group in the token; may repeat"),
    ] = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say whether a user may do something, and why.

    \b
    Example:
      headrace access explain bob /plant/flow consume
    """
    params: dict[str, Any] = {"user": user, "object": name, "permission": permission, "groups": group or []}
    found = call(bootstrap, data, "access.explain", params)
    if output is OutputFormat.JSON:
        print_json(found)
        return
    rows = [(each["permission"], "yes" if each["allowed"] else "no", each["from"], each["reason"]) for each in found]
    print_table(("permission", "allowed", "decided by", "why"), rows)


def _show_list(found: list[dict[str, Any]], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(found)
        return
    columns, rows, _ = rows_of(found, ("object", "permission", "expression"))
    print_table(columns, rows)
