"""Changing the secret of a folder's nodes, in two steps."""

import stat
from pathlib import Path

import pytest

from headrace.local import secret_change
from headrace.local.founding import ensure_nodes, opened_store
from headrace.local.secret_change import LOOKED_S, SecretNotChanged, begin, finish
from headrace.local.starting import PEER_SECRETS
from headrace.node.peer_secrets import Secrets, read_secrets
from headrace.store import records


def test_the_first_change_leaves_the_secret_of_the_record(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 1)
    file = tmp_path / PEER_SECRETS
    said = begin(tmp_path)
    with opened_store(tmp_path) as store:
        assert said.former == records.ensure_cluster(store).secret
    assert said.newest != said.former
    assert read_secrets(file) == said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    begun_at = file.stat().st_mtime
    with pytest.raises(SecretNotChanged, match="--finish` finishes that"):
        begin(tmp_path)
    with pytest.raises(SecretNotChanged, match="try again in 1 s"):
        finish(tmp_path, now=begun_at + LOOKED_S - 1)
    assert read_secrets(file) == said
    assert finish(tmp_path, now=begun_at + LOOKED_S) == Secrets(said.newest) == read_secrets(file)
    with pytest.raises(SecretNotChanged, match="starts a change"):
        finish(tmp_path, now=begun_at + 1_000)
    assert begin(tmp_path).former == said.newest
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_there_is_nothing_to_change_without_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(SecretNotChanged, match="holds no cluster"):
        begin(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_change_that_was_cut_short_left_is_written_over(tmp_path: Path) -> None:
    ensure_nodes(tmp_path, 1)
    (tmp_path / PEER_SECRETS).with_suffix(".new").write_text("half")
    assert read_secrets(tmp_path / PEER_SECRETS) is None
    said = begin(tmp_path)
    assert read_secrets(tmp_path / PEER_SECRETS) == said
    assert len(said.newest) == secret_change.BYTES * 2
