"""`headrace rotate-secret`: changes the secret by which the nodes of this machine's cluster authenticate each other."""

import time
from typing import Annotated

import typer

from headrace.cli.options import DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_json
from headrace.local.hints import data_option


def rotate_secret(
    data: DataFolder = None,
    finish: Annotated[bool, typer.Option("--finish", help="Stop accepting the former secret")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change the secret that the nodes share.

    Nodes accept the new secret beside the former one within ten seconds. Run it again with --finish a minute later:
    from then on they refuse the former one. Secrets are shown by their ids, as `headrace status --node` shows them
    of listener `peer`.

    \b
    Examples:
      headrace rotate-secret
      headrace rotate-secret --finish
    """
    from headrace.local import secret_change
    from headrace.local.folder import default_folder

    folder = data or default_folder()
    secrets = secret_change.finish(folder, now=time.time()) if finish else secret_change.begin(folder)
    if output is OutputFormat.JSON:
        print_json({"data": str(folder), "secrets": secrets.ids})
    elif finish:
        note(f"nodes authenticate each other by secret {secrets.ids[0]} alone")
    else:
        note(f"nodes authenticate each other by secret {secrets.ids[0]}, and {secrets.ids[1]} for the time being")
        note(
            f"in a minute, with all nodes running: `headrace rotate-secret --finish{data_option(data)}`; a node that is"
            " stopped reads it when it starts"
        )
