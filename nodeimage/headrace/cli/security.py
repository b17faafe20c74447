"""`headrace security`: whether the cluster enforces access expressions."""

from typing import Annotated, Any

import typer

from headrace.cli.access_options import split_warnings
from headrace.cli.admin import call
from headrace.cli.formatting import described
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, print_fields, print_json

app = typer.Typer(
    help="Turn the enforcement of access expressions on or off. While it is off, everybody may do everything.",
    no_args_is_help=True,
)


@app.command()
def show(bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """Show whether security is on, and who administers.

    \b
    Example:
      headrace security show
    """
    _show(call(bootstrap, data, "security.show", {}), output)


@app.command()
def on(
    force: Annotated[
        bool, typer.Option("--force", help="Even if administrators only have certificates or tokens")
    ] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Enforce access expressions from now on.

    Refused if nobody could administer the cluster afterwards: create an administrator first, and give it the cluster
    with `headrace access set cluster --admin u:root`. See docs/security.md.

    \b
    Example:
      headrace security on
    """
    _show(split_warnings(call(bootstrap, data, "security.on", {"force": force})), output)


@app.command()
def off(
    open_everything: Annotated[
        bool, typer.Option("--open-everything", help="Confirm that everybody may then do everything")
    ] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Stop enforcing access expressions.

    Users and expressions stay as they are.

    \b
    Example:
      headrace security off
    """
    _show(split_warnings(call(bootstrap, data, "security.off", {"open_everything": open_everything})), output)


def _show(shown: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(shown)
    else:
        print_fields(described(shown))
