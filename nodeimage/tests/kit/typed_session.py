"""A reader at a terminal, who types the lines of a document, in the test's own home directory and folder."""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

from headrace.local.cluster import running_cluster, stop
from headrace.local.folder import ClusterFile, ClusterNotRunning
from kit.documents import ROOT, Block, Command, missing_lines
from kit.patience import PATIENCE

LIMIT_S: Final = 120 * PATIENCE
SHELL: Final = frozenset("$~|&;<>`")
"""Characters that only a shell understands."""
NOTHING: Final[Mapping[str, Callable[[], None]]] = MappingProxyType({})
UNANSWERED: Final = re.compile(r"no answer from the cluster|does not answer|closed by the other side")
"""Output after which a reader tries again: commands do not wait longer on a busy machine."""
MAX_AGAIN: Final = int(PATIENCE)
MAY_NOT_COME: Final = re.compile(r"replicas left, \d+ of them primary$")
"""Lines that are printed only while something takes time."""
SHOWN_HOME: Final = "/home/ada"
"""The reader's home directory in documents."""


class Session:
    """Types commands, and compares their output with the document."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        stands_for: Mapping[str, str],
        instead: Mapping[str, str],
    ) -> None:
        """`stands_for`: what to type for a word of the documents; `instead`: for a whole line."""
        self.home, self.folder = folder / "home", folder / "work"
        for each in (self.home, self.folder, programs := folder / "bin"):
            each.mkdir()
        self._stands_for = dict(stands_for)
        self._instead = instead
        self._monkeypatch = monkeypatch
        program = programs / "headrace"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace.cli.main "$@"\n')
        program.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "XDG_"))}
        self.environment = {
            **kept,
            "HOME": str(self.home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("nodeimage", "operator", "spark")),
            "COLUMNS": "160",
        }
        self._data: set[Path] = set()
        self._typed: set[Command] = set()

    @property
    def data(self) -> Path:
        """The folder of the embedded cluster that commands use."""
        return Path(self.environment.get("HEADRACE_DATA") or self.home / ".headrace")

    def stands_for(self, word: str, typed: str) -> None:
        """From now on `typed` is typed where the documents say `word`."""
        self._stands_for[word] = typed

    def do(
        self,
        blocks: Iterable[Block],
        *,
        without: Container[str] = (),
        before: Mapping[str, Callable[[], None]] = NOTHING,
        again: bool = True,
    ) -> None:
        """Type the lines of the blocks, except lines `without`; fails if the output differs from what is shown.

        `before` has actions before a line is typed. If not `again`, lines that were already typed are skipped.
        """
        for block in blocks:
            if block.language == "python":
                self.python(block.text)
            for command in block.commands:
                if command.line in before:
                    before[command.line]()
                if command.line not in without and (again or command not in self._typed):
                    self.type(command)

    def type(self, command: Command) -> None:
        """Type one line. Lines that start none of Headrace's programs are skipped."""
        self._typed.add(command)
        if command.line.startswith("export "):
            name, _, value = command.line.removeprefix("export ").partition("=")
            self.environment[name] = value.replace("~", str(self.home))
            return
        if not any(words[0] == "headrace" for words in command.parts):
            return
        line = self._instead.get(command.line, command.line)
        for word, typed in self._stands_for.items():
            line = line.replace(word, typed)
        if line.startswith("headrace up"):
            line += " --port 0"
        self._data.add(self.data)
        run = self._in_shell if SHELL & set(line) else self._here
        code, printed = run(line)
        for _ in range(MAX_AGAIN):
            if not code or not UNANSWERED.search(printed):
                break
            code, printed = run(line)
        assert code == 0, f"`{line}` ended with {code}: {printed}"
        if command.line in self._instead:
            return
        shown = [each for each in command.shown if not MAY_NOT_COME.search(each)]
        missing = missing_lines(shown, printed.replace(str(self.home), SHOWN_HOME).splitlines())
        assert not missing, f"`{line}` printed nothing like {missing}, but:\n{printed}"

    def prints(self, line: str) -> str:
        """Type one line; returns its output."""
        return self._here(line)[1]

    def python(self, text: str) -> str:
        """Run a program from a document; returns its output."""
        for word, typed in self._stands_for.items():
            text = text.replace(word, typed)
        code, printed = self._run([sys.executable, "-c", text])
        assert code == 0, printed
        return printed

    def bootstrap(self) -> str:
        """Addresses of the embedded cluster's nodes, in order."""
        return self._running().bootstrap

    def node_pid(self, node: int) -> int:
        """The process id of a node of the embedded cluster."""
        return next(each.pid for each in self._running().nodes if each.node_id == node)

    def _running(self) -> ClusterFile:
        found = running_cluster(self.data)
        assert found is not None
        return found

    def end(self) -> None:
        """Stop every cluster that was started."""
        for data in self._data:
            with contextlib.suppress(ClusterNotRunning):
                stop(data)

    def _in_shell(self, line: str) -> tuple[int, str]:
        return self._run(["bash", "-c", line])

    def _run(self, command: Sequence[str]) -> tuple[int, str]:
        """The exit code of a process, and its output."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stderr + done.stdout

    def _here(self, line: str) -> tuple[int, str]:
        """Run a line within this process: loading the program for each of some eighty commands would cost half a
        minute.
        """
        from headrace.cli.main import exit_code

        out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
        with self._monkeypatch.context() as patched:
            for name in [name for name in os.environ if name.startswith(("HEADRACE_", "XDG_"))]:
                patched.delenv(name)
            for name, value in self.environment.items():
                patched.setenv(name, value)
            patched.chdir(self.folder)
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            (words,) = Command(line).parts
            code = exit_code(words[1:])
        return code, err.getvalue() + out.buffer.getvalue().decode()  # type: ignore[attr-defined]
