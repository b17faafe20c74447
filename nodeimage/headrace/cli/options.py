"""Options that many commands share, as annotated types for typer.

`--bootstrap` or `--data` names the command's cluster, never both. The command line
overrides the environment; in the environment, HEADRACE_BOOTSTRAP overrides HEADRACE_DATA.
"""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import OutputFormat


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the parameter is on the command line, as far as that has been parsed; the command line is parsed
    first."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _is_by_data(context: typer.Context) -> bool:
    """Whether `--data` names the cluster. Raises BadParameter if `--bootstrap` does so too."""
    given = is_given(context, "data")
    if given and is_given(context, "bootstrap"):
        raise typer.BadParameter("--bootstrap and --data exclude each other")
    return given


def _bootstrap(context: typer.Context, value: str | None) -> str | None:
    return None if _is_by_data(context) else value


def _data(context: typer.Context, value: Path | None) -> Path | None:
    _is_by_data(context)
    return value


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="HEADRACE_BOOTSTRAP",
        callback=_bootstrap,
        metavar="HOST:PORT,...",
        help="The cluster to talk to [default: the embedded cluster that runs]",
        show_default=False,
        show_envvar=False,
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="HEADRACE_DATA",
        callback=_data,
        metavar="DIR",
        help="Folder of the embedded cluster [default: ~/.headrace, or HEADRACE_DATA]",
        show_default=False,
        show_envvar=False,
    ),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to print the result")]
TopicName = Annotated[str, typer.Argument(metavar="STREAM:TOPIC", help="For example /factory/sensors:press-7")]
