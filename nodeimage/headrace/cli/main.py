"""The command `headrace`: combines the families of commands. `running.py` defines how it ends.

Command modules are cheap to import; each command imports heavy modules (librdkafka, kio, rich) when it needs them.
"""

from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.cli import (
    access,
    balancing,
    bench,
    cluster_commands,
    cluster_status,
    consume,
    containers,
    contexts,
    features,
    groups,
    links,
    nodes,
    probe,
    produce,
    replay,
    secret,
    security,
    storage,
    streams,
    top,
    topics,
    users,
    volumes,
)
from headrace.cli.arguments import check_commands
from headrace.cli.client_options import (
    ClientOptions,
    Config,
    ContextName,
    PasswordFile,
    TlsCa,
    User,
    add_client_options,
    begin,
)
from headrace.cli.output import print_line
from headrace.cli.running import exit_code_of, run_app

app = typer.Typer(
    name="headrace",
    help="""A stream platform that speaks Kafka's protocol.

    \b
    Examples:
      headrace up --detach
      headrace stream create /factory/sensors
      headrace produce /factory/sensors:press-7 --value hello
      headrace consume /factory/sensors:press-7 --from-beginning
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        from headrace.base.build import build

        print_line(f"{version('headrace')} ({build()})")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version")
    ] = False,
    user: User = None,
    password_file: PasswordFile = None,
    tls_ca: TlsCa = None,
    config: Config = None,
    context_name: ContextName = None,
) -> None:
    """Options of every command that talks to a cluster; they may also follow the command."""
    begin(
        ClientOptions(user=user, password_file=password_file, tls_ca=tls_ca, config=config, context_name=context_name)
    )


app.command()(cluster_commands.up)
app.command()(cluster_commands.down)
app.command()(cluster_status.status)
app.command()(top.top)
app.add_typer(contexts.app, name="context")
app.add_typer(nodes.app, name="node")
app.command()(balancing.balance)
app.add_typer(volumes.app, name="volume")
app.add_typer(features.app, name="features")
app.add_typer(security.app, name="security")
app.add_typer(users.app, name="user")
app.add_typer(access.app, name="access")
app.command()(containers.containers)
streams.app.command(name="move-home")(links.move_stream_home)
topics.app.command(name="move-home")(links.move_topic_home)
app.add_typer(streams.app, name="stream")
app.add_typer(topics.app, name="topic")
app.add_typer(links.app, name="link")
app.command()(produce.produce)
app.command()(consume.consume)
app.add_typer(groups.app, name="groups")
app.command()(storage.chain)
app.command()(storage.scrub)
app.command()(containers.recover_unclean)
app.command()(containers.recover_store)
app.command()(secret.rotate_secret)
app.command()(replay.replay)
app.command()(bench.bench)
app.command()(probe.probe)
add_client_options(app)
check_commands(app)


def run() -> None:
    """The console script. Never shows a traceback unless HEADRACE_DEBUG is set."""
    run_app(app, name="headrace")


def exit_code(arguments: Sequence[str]) -> int:
    """Run one command. An error becomes one line on stderr and an exit code."""
    return exit_code_of(app, arguments, name="headrace")


if __name__ == "__main__":
    run()
