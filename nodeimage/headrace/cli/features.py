"""`headrace features`: which version of Headrace a cluster can still go back to, and what it may write."""

from typing import Annotated, Any

import typer

from headrace.cli.admin import call
from headrace.cli.formatting import described, rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_table
from headrace.cli.units import parse_duration, show_duration

app = typer.Typer(
    help="Show and raise the cluster's feature level. The level says what the cluster may write, so that versions can"
    " be changed node by node.",
    no_args_is_help=True,
)


@app.command()
def show(bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """Show the feature level, and what each node supports.

    \b
    Example:
      headrace features show
    """
    _show(call(bootstrap, data, "features.show", {}), output)


@app.command()
def upgrade(
    level: Annotated[
        int | None, typer.Argument(metavar="LEVEL", help="[default: the highest that all nodes support]")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether it could be raised")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Raise the feature level now; there is no way back.

    Older versions are refused from then on.

    \b
    Examples:
      headrace features upgrade --check
      headrace features upgrade
    """
    found = call(bootstrap, data, "features.upgrade", {"level": level, "validate_only": check})
    _show(found, output)
    if check:
        note("it could be raised; nothing was changed")
    elif found["raising"] is not None or found["wanted"] is not None:
        note("it is about to be raised, once all nodes have answered; see `headrace features show`")


@app.command()
def hold(
    level: Annotated[int | None, typer.Option("--at", metavar="LEVEL", help="[default: the present level]")] = None,
    off: Annotated[bool, typer.Option("--off", help="Let it be raised again")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Keep the feature level, so that you can still go back.

    \b
    Examples:
      headrace features hold
      headrace features hold --off
    """
    _show(call(bootstrap, data, "features.hold", {"level": level, "off": off}), output)


@app.command()
def wait(
    duration: Annotated[str, typer.Argument(metavar="DURATION", help="For example 24h, 30m, 0s")],
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Set how long to wait before the level rises by itself.

    During that time all nodes must support the next level and be healthy.

    \b
    Example:
      headrace features wait 12h
    """
    _show(call(bootstrap, data, "features.wait", {"wait_s": parse_duration(duration) / 1000}), output)


def _show(found: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(found)
        return
    nodes = found["nodes"]
    fields = {name: value for name, value in found.items() if name not in ("nodes", "raised_by_itself_after_s")}
    fields["this_version"] = f"supports {found['this_version'][0]} to {found['this_version'][1]}"
    fields["raised_by_itself_after"] = show_duration(round(found["raised_by_itself_after_s"] * 1000))
    print_fields(described({name: value for name, value in fields.items() if value is not None}))
    columns, rows, numbers = rows_of(nodes)
    print_table(columns, rows, right=numbers)
