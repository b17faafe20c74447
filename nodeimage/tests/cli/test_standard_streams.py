"""Commands whose stdin, stdout or stderr is closed, full, or a pipe that nobody reads."""

import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.errors import FolderRefused
from headrace.cli import output
from headrace.cli.signals import Interrupts, handled
from headrace.local.folder import default_folder, expanded

COMMAND = '"$0" -m headrace.cli.main'


def in_shell(words: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh", "-c", words, sys.executable], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_a_stream_that_is_closed_is_like_dev_null(environment: dict[str, str]) -> None:
    ran = in_shell(
        f"{COMMAND} status >&- <&-; echo $?; {COMMAND} --version <&- 2>&-; {COMMAND} status 2>&-", environment
    )
    code, version, *rest = ran.stdout.splitlines()
    assert (code, rest) == ("1", [])
    assert version[0].isdecimal()
    (line,) = ran.stderr.splitlines()
    assert line.startswith("headrace: no cluster runs")


def test_no_file_takes_the_number_of_a_stream_that_was_closed(environment: dict[str, str]) -> None:
    program = (
        "import os, sys; from headrace.cli.output import own_standard_streams as own; own();"
        "print('out'); print('err', file=sys.stderr); assert sys.stdin.read() == '';"
        "os._exit(os.open('/dev/zero', os.O_RDONLY) <= 2)"
    )
    ran = in_shell(f'"$0" -c "{program}" <&- >&- 2>&-', environment)
    assert ran.returncode == 0


def test_a_disk_that_is_full_is_told_once_and_a_reader_that_is_gone_not_at_all(environment: dict[str, str]) -> None:
    full = in_shell(
        f"{COMMAND} --version >/dev/full; echo $?; {COMMAND} --version >/dev/full 2>&1; echo $?", environment
    )
    assert full.stdout.split() == ["1", "1"]
    assert full.stderr == "headrace: the output cannot be written: No space left on device\n"
    read, write = os.pipe()
    os.close(read)
    for arguments in (["--help"], ["--version"]):
        words = [sys.executable, "-m", "headrace.cli.main", *arguments]
        gone = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, env=environment, timeout=60, check=False)
        assert (gone.returncode, gone.stderr) == (1, b"")
    os.close(write)


def test_arguments_are_utf8_whatever_the_locale_says(environment: dict[str, str]) -> None:
    ascii_locale = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    ran = in_shell(f"{COMMAND} status --data /Größe", {**environment, **ascii_locale})
    assert "no cluster runs in /Größe" in ran.stderr


def test_a_line_for_the_reader_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        output.note("somebody may read this")
        monkeypatch.setattr("sys.stderr", None)
        output.note("nobody can")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space"):
            full.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, full.fileno())
        os.close(nowhere)


# --- signals, the home directory, hints


def test_nohup_holds_while_other_signals_are_handled() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled(lambda *_: pytest.fail("it was to be ignored"), signal.SIGHUP, signal.SIGUSR1):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_goes_away_interrupts() -> None:
    with Interrupts().caught(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize("home", [None, ""])
def test_without_a_home_directory_it_is_said_what_to_set(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    with pytest.raises(FolderRefused, match="HEADRACE_DATA"):
        default_folder()
    with pytest.raises(FolderRefused, match="--data"):
        expanded(Path("~nobody-of-that-name/x"))
    assert expanded(Path("/a/~")) == Path("/a/~")
