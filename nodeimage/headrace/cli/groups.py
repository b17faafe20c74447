"""`headrace groups`: consumer groups, their members and how far behind they are."""

from typing import Annotated, Final

import typer

from headrace.cli.connect import check, connected_to_coordinator
from headrace.cli.formatting import described, rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output, is_given
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_line, print_table
from headrace.wire.api_keys import ApiKey

app = typer.Typer(help="List, show and delete consumer groups.", invoke_without_command=True)

DELETE_VERSION: Final = 1
Group = Annotated[str, typer.Argument(metavar="GROUP", show_default=False)]


@app.callback()
def groups(
    context: typer.Context, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """List, show and delete consumer groups; without a subcommand, list them."""
    word = context.invoked_subcommand
    if word is None:
        list_groups(bootstrap, data, output)
        return
    for name in ("bootstrap", "data", "output"):
        if is_given(context, name):
            raise typer.BadParameter(
                f"write --{name} after the command that it is for: `headrace groups {word} --{name} ...`"
            )


@app.command(name="list")
def list_groups(bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """List consumer groups, their states and lag.

    \b
    Example:
      headrace groups list
    """
    with connected_to_coordinator(bootstrap, data) as cluster:
        found = cluster.admin("groups.list")
    if output is OutputFormat.JSON:
        print_json(found)
    elif found:
        columns, rows, numbers = rows_of(found)
        print_table(columns, rows, right=numbers)
    else:
        note("no groups: a consumer with a group.id makes one")


@app.command()
def show(
    group: Group, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """Show a group's members, cursors and lag.

    \b
    Example:
      headrace groups show dashboard
    """
    with connected_to_coordinator(bootstrap, data) as cluster:
        shown = cluster.admin("groups.show", {"group": group})
    if output is OutputFormat.JSON:
        print_json(shown)
        return
    lists = {name: value for name, value in shown.items() if isinstance(value, list)}
    print_fields(described({name: value for name, value in shown.items() if name not in lists}))
    for name, things in lists.items():
        if things:
            print_line()
            columns, rows, numbers = rows_of(things)
            print_table(columns, rows, title=name, right=numbers)


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", show_default=False)],
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete groups without members, and their cursors.

    \b
    Example:
      headrace groups delete dashboard
    """
    with connected_to_coordinator(bootstrap, data) as cluster:
        answers = cluster.kafka(ApiKey.DELETE_GROUPS, DELETE_VERSION, {"groups_names": list(groups)}).results
    for answer in answers:
        check(answer.error_code, None, what=f"group {answer.group_id}")
    if output is OutputFormat.JSON:
        print_json([{"deleted": str(answer.group_id)} for answer in answers])
    else:
        note(f"deleted {len(answers)} group{'' if len(answers) == 1 else 's'}")
