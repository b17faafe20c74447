"""A shell runs a displayed hint as it was meant."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.local.hints import data_option, quoted


@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name))
def test_a_hint_gives_the_shell_the_folder_that_was_meant(name: bytes) -> None:
    folder = Path(os.fsdecode(b"/t/" + name))
    assert quoted(folder).isprintable()
    assert data_option(folder) == f" --data {quoted(folder)}"


@pytest.mark.parametrize("name", [b"my  data", b"it's", b"$(x)`y`", b"caf\xe9", b"\x1b[31m\n", b"\\x41'"])
def test_a_shell_reads_a_hint_as_it_was_meant(name: bytes) -> None:
    ran = subprocess.run(
        ["bash", "-c", f"printf %s {quoted(os.fsdecode(name))}"], capture_output=True, check=True, timeout=60
    )
    assert ran.stdout == name
