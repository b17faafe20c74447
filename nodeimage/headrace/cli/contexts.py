"""`headrace context`: names for clusters and logins, and which one is in use."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.formatting import described, rows_of
from headrace.cli.options import Output
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_table
from headrace.local.folder import expanded

app = typer.Typer(help="Give clusters names, and choose the one to talk to.", no_args_is_help=True)

COLUMNS = ("context", "in_use", "bootstrap", "config")
Name = Annotated[str, typer.Argument(metavar="NAME", help="See `headrace context list`", show_default=False)]


@app.command(name="list")
def list_contexts(output: Output = OutputFormat.TABLE) -> None:
    """List the contexts.

    \b
    Example:
      headrace context list
    """
    from headrace.cli.context_file import read_contexts

    contexts = read_contexts()
    found = [
        {"context": name, "in_use": name == contexts.current, "bootstrap": each.bootstrap, "config": each.config}
        for name, each in sorted(contexts.by_name.items())
    ]
    if output is OutputFormat.JSON:
        print_json(found)
    elif found:
        columns, rows, numbers = rows_of(found, COLUMNS)
        print_table(columns, rows, right=numbers)
    else:
        note("no contexts; `headrace context set NAME --config FILE` makes one")


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="[default: the one in use]", show_default=False)
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show a context: where its cluster is, and who logs in.

    Passwords are not shown.

    \b
    Example:
      headrace context show factory
    """
    from headrace.cli.context_file import contexts_path, read_contexts
    from headrace.cli.target import of_context
    from headrace.security.client_security import security_of

    contexts = read_contexts()
    name = name or contexts.current
    if not name:
        raise HeadraceError("no context is in use: `headrace context use NAME` chooses one")
    context = contexts.get(name)
    settings = of_context(name, context)
    security = security_of(settings.properties)
    shown: dict[str, Any] = {
        "context": name,
        "in_use": name == contexts.current,
        "bootstrap": settings.addresses,
        "config": context.config,
        "protocol": security.protocol,
        "mechanism": security.mechanism,
        "user": security.username or None,
        "kept_in": str(contexts_path()),
    }
    if output is OutputFormat.JSON:
        print_json(shown)
    else:
        print_fields(described({label: value for label, value in shown.items() if value not in (None, "")}))


@app.command()
def use(
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no context: the embedded cluster again")] = False,
) -> None:
    """Make a context the default of all commands.

    \b
    Examples:
      headrace context use factory
      headrace context use --none
    """
    from headrace.cli.context_file import read_contexts, write_contexts

    if none == (name is not None):
        raise typer.BadParameter("give the NAME of a context, or --none")
    contexts = read_contexts()
    if name is not None:
        contexts.get(name)
    write_contexts(replace(contexts, current=name or ""))
    note(f"in use: {name}" if name else "no context is in use")


@app.command(name="set")
def set_context(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A new or an existing context", show_default=False)],
    addresses: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT,...",
            help="[default: bootstrap.servers of --config]",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="File with client properties, named as in Kafka", show_default=False
        ),
    ] = None,
    in_use: Annotated[bool, typer.Option("--use", help="Use it from now on, too")] = False,
) -> None:
    """Create a context, or change one.

    Passwords stay in the file of --config.

    \b
    Example:
      headrace context set factory --config factory.properties
    """
    from headrace.cli.context_file import Context, checked_name, read_contexts, write_contexts
    from headrace.cli.target import of_context, split_address
    from headrace.security.client_security import security_of

    contexts = read_contexts()
    before = contexts.by_name.get(checked_name(name), Context())
    context = Context(
        bootstrap=before.bootstrap if addresses is None else addresses,
        config=before.config if config is None else str(expanded(config).absolute()),
    )
    settings = of_context(name, context)
    security_of(settings.properties)
    if not settings.addresses:
        raise HeadraceError("say where the cluster is: --bootstrap, or a --config that has bootstrap.servers")
    for address in settings.addresses.split(","):
        split_address(address)
    write_contexts(
        replace(
            contexts,
            current=name if in_use else contexts.current,
            by_name={**contexts.by_name, name: context},
        )
    )
    note(f"context {name} is set" + (", and in use" if in_use else f"; `headrace context use {name}` uses it"))


@app.command()
def delete(name: Name) -> None:
    """Forget a context.

    The file that it names stays.

    \b
    Example:
      headrace context delete factory
    """
    from headrace.cli.context_file import read_contexts, write_contexts

    contexts = read_contexts()
    contexts.get(name)
    others = {each: context for each, context in contexts.by_name.items() if each != name}
    write_contexts(replace(contexts, current="" if contexts.current == name else contexts.current, by_name=others))
    note(f"context {name} is gone")
