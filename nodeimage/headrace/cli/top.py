"""`headrace top`: nodes, containers, streams, groups and events of a cluster, live, as htop shows processes."""

from typing import Annotated

import typer

from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat


def top(
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between updates")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Take two samples, show them once, and end")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show live what nodes, streams and groups do.

    Press q to quit; Tab, s and r choose how rows are sorted.

    \b
    Examples:
      headrace top
      headrace top --once --output json
    """
    from headrace.cli.target import find_target
    from headrace.cli.top_live import show

    show(find_target(bootstrap, data), interval_s=interval, once=once, is_json=output is OutputFormat.JSON)
