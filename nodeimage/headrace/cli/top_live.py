"""Runs `headrace top`: polls a cluster, draws the answers, and reads keys.

A thread polls the cluster, so that keys work while it is slow. Without a terminal, and with `--output json`, the state
is printed repeatedly, or once.
"""

import contextlib
import os
import re
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.base.errors import HeadraceError
from headrace.cli.cluster_status import UP
from headrace.cli.formatting import rows_of
from headrace.cli.output import is_terminal, print_fields, print_json, print_line, print_table
from headrace.cli.polling import Polled
from headrace.cli.signals import Interrupts
from headrace.cli.target import Target
from headrace.cli.text import printable
from headrace.cli.top_rates import EVENTS, Rates, Sample, Shown, StreamContent
from headrace.cli.top_screen import PANELS, Looks, screen
from headrace.cli.watching import CLEAR, HIDE_CURSOR, SHOW_CURSOR, drawn_over, is_live, put, watch
from headrace.kafka_client.errors import SourceRefuses

OTHER_SCREEN: Final = "\x1b[?1049h"
FORMER_SCREEN: Final = "\x1b[?1049l"
REDRAW_S: Final = 0.5
"""Seconds after which the screen is redrawn, in case the terminal's size has changed."""
STREAMS: Final = 100
"""The maximum number of streams whose content is requested: the first ones by path."""
STREAMS_S: Final = 1.0
"""Seconds that a sample may spend on streams; the remaining ones follow with the next sample."""
CONTENT_S: Final = 10.0
"""Seconds after which a stream's content is requested again; nodes count it every 20 s."""
_SEQUENCES: Final = re.compile(r"\x1b(?:\[[0-9;]*.|O.)")
"""Matches escape sequences of special keys."""


def show(target: Target, *, interval_s: float, once: bool, is_json: bool) -> None:
    """Show the cluster until q or an interrupt, or `once`. Raises HeadraceError, and KeyboardInterrupt."""
    with Polled(target) as cluster, Interrupts().caught():
        sampler, rates = Sampler(cluster), Rates()
        first = rates.take(sampler.sample())
        if is_live(sys.stdout) and not once and not is_json:
            Live(sampler, rates, first, interval_s=interval_s).run()
            return
        time.sleep(interval_s)
        if once:
            _print(rates.take(sampler.sample()), is_json=is_json)
            return
        watch(
            lambda: rates.take(sampler.sample()),
            lambda shown: _print(shown, is_json=is_json),
            interval_s=interval_s,
            in_place=not is_json,
        )


class Sampler:
    """Requests all shown data from a cluster."""

    def __init__(self, cluster: Polled) -> None:
        self._cluster = cluster
        self._streams: dict[str, StreamContent] = {}
        self._due_at: dict[str, float] = {}
        """When each stream's content is due again, in the order of the last requests."""

    def sample(self) -> Sample:
        """A sample of the cluster's present state. Raises HeadraceError."""
        status = self._cluster.admin("cluster.status")
        up = {node["node"]: node["address"] for node in status["nodes"] if node["state"] in UP}
        nodes = dict(zip(up, self._cluster.each(list(up.values()), "status"), strict=True))
        events = self._cluster.each(list(up.values()), "cluster.events", {"events": EVENTS})
        groups = self._cluster.groups()
        self._update_streams()
        return Sample(
            at_s=time.monotonic(),
            cluster=status,
            nodes={node: told for node, told in nodes.items() if told is not None},
            groups=groups,
            streams=dict(self._streams),
            events=[each for each in events if each is not None],
        )

    def _update_streams(self) -> None:
        """Update as many streams as there is time for, longest not requested first."""
        paths = [each["path"] for each in self._cluster.admin("stream.list", {"limit": STREAMS})]
        self._streams = {path: each for path, each in self._streams.items() if path in paths}
        self._due_at = {path: at for path, at in self._due_at.items() if path in paths}
        begun = time.monotonic()
        new = [path for path in paths if path not in self._due_at]
        for path in [*new, *(path for path, at in self._due_at.items() if at <= begun)]:
            content = {}
            with contextlib.suppress(HeadraceError):  # the stream may be deleted by now
                content = self._cluster.admin("stream.show", {"path": path, "figures": True})
            now = time.monotonic()
            self._due_at.pop(path, None)
            self._due_at[path] = now
            if content.get("messages") is not None:
                self._streams[path] = StreamContent(content["messages"], content["bytes"])
                self._due_at[path] += CONTENT_S
            if now - begun >= STREAMS_S:
                break


class Live:
    """Shows the cluster on a terminal, until q."""

    def __init__(self, sampler: Sampler, rates: Rates, first: Shown, *, interval_s: float) -> None:
        self._sampler = sampler
        self._rates = rates
        self._interval_s = interval_s
        self._looks = Looks()
        self._lock = threading.Lock()
        self._shown = first
        self._note = ""
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._news, self._tell = os.pipe()

    def run(self) -> None:
        """Return when q was pressed. Raises the cluster's refusal, and KeyboardInterrupt."""
        asking = threading.Thread(target=self._ask, name="top", daemon=True)
        begin, end = OTHER_SCREEN + CLEAR + HIDE_CURSOR, SHOW_CURSOR + FORMER_SCREEN
        try:
            with key_by_key() as keyboard, drawn_over(begin, end):
                asking.start()
                while not self._looks.is_over:
                    self._draw()
                    self._hear(keyboard)
        finally:
            self._ended.set()

    def _draw(self) -> None:
        with self._lock:
            shown, note, error = self._shown, self._note, self._error
        if error is not None:
            raise error
        size = os.get_terminal_size(sys.stdout.fileno())
        put(screen(shown, self._looks, width=size.columns, height=size.lines, note=note))

    def _hear(self, keyboard: int | None) -> None:
        """Wait for a key, for a new sample, or until the terminal's size has to be checked."""
        heard = [self._news] if keyboard is None else [self._news, keyboard]
        ready, _, _ = select.select(heard, [], [], REDRAW_S)
        if self._news in ready:
            os.read(self._news, 1024)
        if keyboard in ready and keyboard is not None:
            typed = os.read(keyboard, 1024)
            if not typed:  # the terminal is gone
                self._looks.is_over = True
            for key in _SEQUENCES.sub("", typed.decode("utf-8", "replace")):
                self._looks.press(key)

    def _ask(self) -> None:
        """Poll the cluster until the end; runs in a thread."""
        while not self._ended.wait(self._interval_s):
            try:
                shown = self._rates.take(self._sampler.sample())
                with self._lock:
                    self._shown, self._note = shown, ""
            except SourceRefuses as error:
                self._error = error
            except HeadraceError as error:
                with self._lock:
                    self._note = (
                        f"no answer at {time.strftime('%H:%M:%S')}, so what is shown is older: {printable(str(error))}"
                    )
            except BaseException as error:
                self._error = error
            os.write(self._tell, b".")
            if self._error is not None:
                return


@contextlib.contextmanager
def key_by_key() -> Iterator[int | None]:
    """The keyboard's descriptor, in a mode where keys arrive at once and are not echoed; None: there is no keyboard."""
    if not is_terminal(sys.stdin):
        yield None
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _print(shown: Shown, *, is_json: bool) -> None:
    if is_json:
        print_json(shown.as_json())
        return
    looks = Looks()
    print_fields((name, getattr(shown, name)) for name in ("cluster", "controller", "redundancy"))
    for panel in PANELS:
        _print_panel(panel, looks.rows(panel, shown))


def _print_panel(panel: str, rows: list[dict[str, Any]]) -> None:
    columns = [each for each in PANELS[panel] if any(_has_value(row, each) for row in rows)]
    if columns:
        labels, cells, numbers = rows_of(rows, columns)
        print_line()
        print_table(labels, cells, title=panel, right=numbers)


def _has_value(row: Mapping[str, Any], column: str) -> bool:
    return row.get(column) not in (None, "")
