"""How a command-line program runs and ends: every error becomes one line.

Exit codes: 0 done; 1 failed, also, and silently, when the reader of the output has gone; 2 wrong usage; 130 interrupted
before all was done. Whatever the bytes and numbers of its arguments, and even if stdin, stdout or stderr is closed,
full or a pipe that nobody reads, a command either does its work or ends with one line that says why not.
`HEADRACE_DEBUG=1` shows the traceback behind an error.
"""

import os
import sys
from collections.abc import Sequence

import typer

from headrace.base.errors import HeadraceError
from headrace.cli.arguments import ensure_utf8_mode
from headrace.cli.output import ReaderGone, flush, let_go, note, own_standard_streams

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""click's UsageError, from the click that this typer uses."""


def run_app(app: typer.Typer, *, name: str) -> None:
    """Run a console script. Never shows a traceback unless HEADRACE_DEBUG is set. Does not return."""
    ensure_utf8_mode()
    own_standard_streams()
    code = exit_code_of(app, sys.argv[1:], name=name)
    let_go()
    sys.exit(code)


def exit_code_of(app: typer.Typer, arguments: Sequence[str], *, name: str) -> int:
    """Run one command. An error becomes one line on stderr, which begins with `name`, and an exit code."""
    try:
        code = int(app(list(arguments), prog_name=name, standalone_mode=False) or 0)
        flush()
        return code
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
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
        if isinstance(error, RuntimeError) and "home directory" in str(error):  # pathlib's wording
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
