"""`headrace user`: users, their groups and passwords.

A password comes from a file or from the terminal, where it is asked for twice and not shown; never from an argument,
which every process of the machine could read.
"""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.access_options import split_warnings
from headrace.cli.admin import call
from headrace.cli.formatting import described, rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, is_terminal, note, print_fields, print_json, print_table

app = typer.Typer(
    help="Create users, and set their groups and passwords. Access expressions say what each may do:"
    " `headrace access`.",
    no_args_is_help=True,
)

PAGE: Final = 1_000
MAX_FILE: Final = 4_096
"""Largest password file in bytes."""

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        show_default=False,
        help="File with the password; a final line end is ignored [default: ask on the terminal]",
    ),
]
Groups = Annotated[
    list[str] | None, typer.Option("--group", "-g", metavar="GROUP", show_default=False, help="May repeat")
]
Force = Annotated[bool, typer.Option("--force", help="Allow a change that ends your own administration of the cluster")]


@app.command()
def create(
    name: Name,
    password_file: PasswordFile = None,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="The user logs in by certificate or token")
    ] = False,
    group: Groups = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a user.

    Without --password-file it asks for the password.

    \b
    Example:
      headrace user create alice --password-file alice.txt --group sensors
    """
    if no_password and password_file is not None:
        raise typer.BadParameter("--no-password and --password-file exclude each other")
    password = None if no_password else _password(password_file, of=name)
    params = {"name": name, "password": password, "groups": group or []}
    _show(split_warnings(call(bootstrap, data, "user.create", params)), output)


@app.command(name="list")
def list_users(bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """List all users.

    \b
    Example:
      headrace user list
    """
    from headrace.cli.connect import connected

    users: list[dict[str, Any]] = []
    with connected(bootstrap, data) as cluster:
        while True:
            page = cluster.admin("user.list", {"after": users[-1]["user"] if users else "", "limit": PAGE})
            users += page
            if len(page) < PAGE:
                break
    if output is OutputFormat.JSON:
        print_json(users)
    elif users:
        columns, rows, numbers = rows_of(users)
        print_table(columns, rows, right=numbers)
    else:
        note("no users: `headrace user create NAME` makes one")


@app.command()
def show(name: Name, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """Show a user's groups, and how it may log in.

    \b
    Example:
      headrace user show alice
    """
    _show(call(bootstrap, data, "user.show", {"name": name}), output)


@app.command()
def alter(
    name: Name,
    group: Groups = None,
    no_groups: Annotated[bool, typer.Option("--no-groups", help="Remove the user from all groups")] = False,
    force: Force = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Set all groups of a user.

    \b
    Example:
      headrace user alter alice --group sensors --group ops
    """
    if no_groups is bool(group):
        raise typer.BadParameter("give all groups that it is in from now on with --group, or --no-groups")
    params = {"name": name, "groups": group or [], "force": force}
    _show(split_warnings(call(bootstrap, data, "user.alter", params)), output)


@app.command()
def passwd(
    name: Name,
    password_file: PasswordFile = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Set a user's password.

    Open connections continue; the next one needs the new password.

    \b
    Example:
      headrace user passwd alice --password-file new.txt
    """
    params = {"name": name, "password": _password(password_file, of=name)}
    _show(split_warnings(call(bootstrap, data, "user.passwd", params)), output)


@app.command()
def delete(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Delete the user even if it is you")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a user.

    Expressions that name it stay, and apply to a user that is created with that name later.

    \b
    Example:
      headrace user delete alice
    """
    split_warnings(call(bootstrap, data, "user.delete", {"name": name, "force": force}))
    if output is OutputFormat.JSON:
        print_json({"deleted": name})
    else:
        note(f"deleted user {name}; `headrace access list` shows expressions that name it")


def _password(file: Path | None, *, of: str) -> str:
    """The password. Raises HeadraceError, whose text does not contain it."""
    if file is not None:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise HeadraceError(f"{file} is not a password file: it has more than {MAX_FILE} bytes")
        try:
            return content.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            pass  # raise outside this handler: Python's error holds the password
        raise HeadraceError(f"{file} is not a password file: it is not UTF-8")
    if not is_terminal(sys.stdin):
        raise HeadraceError("there is no terminal to ask for a password on: give it with --password-file FILE")
    return str(typer.prompt(f"Password of {of}", hide_input=True, confirmation_prompt=True, err=True))


def _show(user: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(user)
    else:
        print_fields(described(user))
