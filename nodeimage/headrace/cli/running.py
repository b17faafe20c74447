"""How a program of commands runs and ends: every error becomes one line.

Exit codes: 0 done; 1 failed, also, and silently, when whoever read our output has gone; 2 wrong usage; 130 interrupted
before all was done. Whatever bytes and numbers arguments are, and whichever of stdin, stdout and stderr is closed, full
or a pipe that nobody reads: a command does its work, or ends with one line that says why it does not.
`HEADRACE_DEBUG=1` shows the traceback behind an error.
"""

import os
import sys
from collections.abc import Sequence

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.arguments import in_utf8_mode
from headrace.cli.output import ReaderGone, flush, let_go, note, own_standard_streams

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""click's UsageError, from whichever click this typer brings."""


def run_app(app: typer.Typer, *, name: str) -> None:
    """A console script. Never shows a traceback unless HEADRACE_DEBUG is set. Does not return."""
    in_utf8_mode()
    own_standard_streams()
    code = exit_code_of(app, sys.argv[1:], name=name)
    let_go()
    sys.exit(code)


def exit_code_of(app: typer.Typer, arguments: Sequence[str], *, name: str) -> int:
    """Runs one command. An error becomes one line on stderr, which begins with `name`, and a code."""
    try:
        code = int(app(list(arguments), prog_name=name, standalone_mode=False) or 0)
        flush()
        return code
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            for line in _message(error).splitlines():
                note(line)
            return 2
        return _fail(name, f"{_message(error)}{_help_hint(error)}", code=2)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except (ReaderGone, BrokenPipeError):
        return 1
    except HeadraceError as error:
        _debug()
        return _fail(name, str(error), code=1)
    except OSError as error:
        _debug()
        return _fail(name, ": ".join(str(each) for each in (error.filename, error.strerror or error) if each), code=1)
    except Exception as error:
        _debug()
        if isinstance(error, RuntimeError) and "home directory" in str(error):  # as pathlib says it
            return _fail(name, "there is no home directory: set HOME", code=1)
        return _fail(name, f"unexpected {type(error).__name__}: {error} (HEADRACE_DEBUG=1 shows where)", code=1)


def _fail(name: str, message: str, *, code: int) -> int:
    note(f"{name}: {' '.join(each.strip() for each in message.splitlines())}")
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
