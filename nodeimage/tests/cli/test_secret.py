"""`headrace rotate-secret` shows ids, and no secret."""

import json
import os
from pathlib import Path

import pytest

from headrace.cli.main import exit_code
from headrace.local.founding import ensure_nodes
from headrace.local.secret_change import LOOKED_S
from headrace.local.starting import PEER_SECRETS
from headrace.node.peer_secrets import read_secrets


def test_a_secret_is_changed_in_two_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ensure_nodes(tmp_path, 1)
    file, data = tmp_path / PEER_SECRETS, ["--data", str(tmp_path)]
    assert exit_code(["rotate-secret", *data]) == 0
    begun = read_secrets(file)
    assert begun is not None
    shown = capsys.readouterr()
    assert "rotate-secret --finish" in shown.err
    assert exit_code(["rotate-secret", "--finish", *data]) == 1
    assert "try again in" in capsys.readouterr().err
    os.utime(file, (0, file.stat().st_mtime - LOOKED_S))
    assert exit_code(["rotate-secret", "--finish", "--output", "json", *data]) == 0
    finished = capsys.readouterr()
    assert json.loads(finished.out)["secrets"] == begun.ids[:1]
    for secret in begun:
        assert secret not in shown.out + shown.err + finished.out + finished.err
