"""The command `headrace`: puts the families of commands together, and turns every error into one line.

Exit codes: 0 done; 1 failed, also, and silently, when whoever read our output has gone; 2 wrong usage; 130 interrupted
before all was done. Whatever bytes and numbers arguments are, and whichever of stdin, stdout and stderr is closed, full
or a pipe that nobody reads: a command does its work, or ends with one line that says why it does not.
`HEADRACE_DEBUG=1` shows the traceback behind an error.
Modules of commands are light; what is heavy (librdkafka, kio, rich) is imported by the command that needs it.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.base.errors import HeadraceError
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
from headrace.cli.arguments import check_commands, in_utf8_mode
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
from headrace.cli.output import ReaderGone, flush, let_go, note, own_standard_streams, print_line

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""click's UsageError, from whichever click this typer brings."""

app = typer.Typer(
    name="headrace",
    help="A stream platform for Kafka clients. `headrace up` starts a cluster on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print_line(version("headrace"))
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
    """Options of every command that talks to a cluster; they may stand behind it too."""
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
    in_utf8_mode()
    own_standard_streams()
    code = exit_code(sys.argv[1:])
    let_go()
    sys.exit(code)


def exit_code(arguments: Sequence[str]) -> int:
    """Runs one command. An error becomes one line on stderr and a code."""
    try:
        code = int(app(list(arguments), prog_name="headrace", standalone_mode=False) or 0)
        flush()
        return code
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            for line in _message(error).splitlines():
                note(line)
            return 2
        return _fail(f"{_message(error)}{_help_hint(error)}", code=2)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except (ReaderGone, BrokenPipeError):
        return 1
    except HeadraceError as error:
        _debug()
        return _fail(str(error), code=1)
    except OSError as error:
        _debug()
        return _fail(": ".join(str(each) for each in (error.filename, error.strerror or error) if each), code=1)
    except Exception as error:
        _debug()
        if isinstance(error, RuntimeError) and "home directory" in str(error):  # as pathlib says it
            return _fail("there is no home directory: set HOME", code=1)
        return _fail(f"unexpected {type(error).__name__}: {error} (HEADRACE_DEBUG=1 shows where)", code=1)


def _fail(message: str, *, code: int) -> int:
    note(f"headrace: {' '.join(each.strip() for each in message.splitlines())}")
    return code


def _debug() -> None:
    if os.environ.get("HEADRACE_DEBUG"):
        import traceback

        traceback.print_exc()


def _message(error: object) -> str:
    return str(error.format_message()) if hasattr(error, "format_message") else str(error)


def _help_hint(error: object) -> str:
    context = getattr(error, "ctx", None)
    return f" (see `{context.command_path} --help`)" if context is not None else ""


if __name__ == "__main__":
    run()
