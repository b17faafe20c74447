"""A scrub finds every kind of damage, and only damage."""

import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.log import scrub as scrub_module
from headrace.log.files import FILE_HEAD_BYTES
from headrace.log.parent_death import ORPHANED
from headrace.log.regroup import rewrite
from headrace.log.scrub import EXIT_NEWER, Scrubbed, scrub
from kit.written_log import Writing


def findings(folder: Path) -> list[str]:
    """The findings of a scrub of `folder`."""
    return [str(finding) for finding in scrub(folder, Scrubbed())]


def flip(path: Path, offset: int) -> None:
    """Flips a bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 16]))


@pytest.fixture
def store(writing: Writing) -> Any:
    """A log with two closed chunks, one of them regrouped and partly dead, and an open one with checkpoints."""
    writing.fill_chunks(2, partitionlets=3, size=700)
    writing.close_chunks()
    chunk, _ = writing.log.closed_chunks()
    rewrite(chunk.path)
    writing.log.reopen_chunk(chunk)
    assert writing.log.punch(chunk, {2: 1 << 62}) > 0
    writing.fill_tables(2)
    return writing


def test_an_intact_store_has_no_findings(store: Writing) -> None:
    scrubbed = Scrubbed()
    assert list(scrub(store.folder, scrubbed)) == []
    assert scrubbed.chunks == 3
    assert scrubbed.frames > 150
    assert scrubbed.bytes > 100_000


def test_any_flipped_bit_in_a_closed_chunk_is_found(store: Writing) -> None:
    for chunk in store.log.closed_chunks():
        places = [place for part in chunk.body.parts for place in part.places(1, 0)]
        footer = FILE_HEAD_BYTES + chunk.body.frames_end + 8
        size = chunk.path.stat().st_size
        for offset in (
            *range(0, FILE_HEAD_BYTES, 9),
            *range(FILE_HEAD_BYTES + places[0].at, FILE_HEAD_BYTES + places[0].at + places[0].length, 97),
            *range(footer, size - 64, 401),
        ):
            flip(chunk.path, offset)
            (finding, *_) = findings(store.folder)
            assert chunk.path.name in finding
            flip(chunk.path, offset)
    assert findings(store.folder) == []


def test_damage_in_the_synced_part_of_the_open_chunk_is_found(store: Writing) -> None:
    chunk = store.log.chunks()[-1]
    synced = chunk.body.parts[-1].start
    for offset in (0, 30, 100, 800, synced - 1):
        flip(chunk.path, FILE_HEAD_BYTES + offset)
        assert [chunk.path.name in finding for finding in findings(store.folder)] == [True]
        flip(chunk.path, FILE_HEAD_BYTES + offset)
    store.append(1)
    store.sync()
    flip(chunk.path, FILE_HEAD_BYTES + synced + 60)  # it may be half written, which a start checks
    assert findings(store.folder) == []  # unless the log's writer knows that it is synced:
    (finding,) = scrub(store.folder, Scrubbed(), synced=store.log.synced)
    assert chunk.path == finding.path
    flip(chunk.path, FILE_HEAD_BYTES + synced + 60)
    scrubbed = Scrubbed()
    assert list(scrub(store.folder, scrubbed, synced=store.log.synced)) == []
    assert scrubbed.bytes > synced


def test_damage_in_a_full_chunk_that_is_not_closed_is_found_up_to_its_end(writing: Writing) -> None:
    writing.fill_chunks(1)
    chunk = writing.log.chunks()[0]
    assert findings(writing.folder) == []
    flip(chunk.path, FILE_HEAD_BYTES + chunk.end - 3)
    assert len(findings(writing.folder)) == 1


def test_a_frame_longer_than_a_read_is_checked(writing: Writing) -> None:
    writing.append(1, size=3 << 20)
    writing.append(1)
    writing.sync()
    assert findings(writing.folder) == []
    flip(writing.log.chunks()[0].path, 2 << 20)
    assert len(findings(writing.folder)) == 1


def test_the_helper_process_prints_findings_and_a_summary(store: Writing) -> None:
    command = [sys.executable, "-m", "headrace.log.scrub", str(store.folder)]
    clean = subprocess.run([*command, "--json"], check=False, capture_output=True, text=True)
    assert clean.returncode == 0
    summary = json.loads(clean.stdout)
    assert (summary["chunks"], summary["findings"]) == (3, 0)
    chunk = store.log.closed_chunks()[1]
    flip(chunk.path, FILE_HEAD_BYTES + 100)
    damaged = subprocess.run([*command, "--json"], check=False, capture_output=True, text=True)
    assert damaged.returncode == 1
    found, summary = map(json.loads, damaged.stdout.splitlines())
    assert chunk.path.name in found["finding"]
    assert summary["findings"] == 1
    plain = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "the batch's checksum does not match" in plain.stdout
    gone = subprocess.run([*command[:3], "/nowhere"], check=False, capture_output=True, text=True)
    assert gone.returncode == 2
    assert "nowhere" in gone.stderr


def test_a_helper_whose_node_has_ended_does_not_speak_of_a_newer_version(store: Writing) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    command = [sys.executable, "-m", "headrace.log.scrub", str(store.folder), f"--parent={ended.pid}"]
    assert subprocess.run(command, check=False).returncode == ORPHANED
    assert ORPHANED not in (0, 1, 2, EXIT_NEWER)


@pytest.mark.parametrize("call", ["open", "stat"])
def test_a_chunk_that_the_disk_cannot_open_is_found_and_the_others_are_read(store: Writing, call: str) -> None:
    """A file's metadata in the file system may be damaged too."""
    harmed = store.log.closed_chunks()[0].path
    script = f"""
import errno, os, sys
from headrace.log.scrub import main
asked = os.{call}
def ask(path, *args, **kwargs):
    if str(path) == {str(harmed)!r}:
        raise OSError(errno.EUCLEAN, os.strerror(errno.EUCLEAN), str(path))
    return asked(path, *args, **kwargs)
os.{call} = ask
sys.exit(main([{str(store.folder)!r}, "--json"]))
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    found, summary = map(json.loads, ended.stdout.splitlines())
    assert f"{harmed.name}: the disk cannot read it" in found["finding"]
    assert summary["chunks"] >= 2


def test_what_is_read_again_is_counted_once(store: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(store.log.closed_chunks()[1].path, FILE_HEAD_BYTES + 100)
    once, again = Scrubbed(), Scrubbed()
    found = list(scrub(store.folder, once))
    changes = itertools.count()
    monkeypatch.setattr(scrub_module, "_state", lambda _path: (next(changes),))
    assert list(scrub(store.folder, again)) == found != []
    assert next(changes) == 1 + 3 * 2 + 1  # the damaged chunk was read three times
    assert again == once


def test_nothing_is_found_while_the_log_is_written_closed_regrouped_punched_and_dropped(writing: Writing) -> None:
    found: list[str] = []
    stop = threading.Event()
    writing.append(1)
    writing.sync()

    def scrubbing() -> None:
        while not stop.is_set():
            found.extend(findings(writing.folder))

    thread = threading.Thread(target=scrubbing)
    thread.start()
    try:
        for chunks in range(1, 6):
            writing.fill_chunks(len(writing.log.chunks()), partitionlets=3, size=700)
            writing.close_chunks()
            for row, chunk in enumerate(writing.log.closed_chunks()):
                rewrite(chunk.path)
                writing.log.reopen_chunk(chunk)
                writing.log.punch(chunk, {2: 50 * chunks})
                if row and chunks % 2 == 0:
                    writing.log.drop_chunk(chunk)
                    break
    finally:
        stop.set()
        thread.join()
    assert found == []
