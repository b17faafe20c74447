"""Options that many commands share, as annotated types for typer."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import OutputFormat

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="HEADRACE_BOOTSTRAP",
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
        metavar="DIR",
        help="Folder of the embedded cluster [default: ~/.headrace, or HEADRACE_DATA]",
        show_default=False,
        show_envvar=False,
    ),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to print the result")]
TopicName = Annotated[str, typer.Argument(metavar="STREAM:TOPIC", help="For example /factory/sensors:press-7")]
