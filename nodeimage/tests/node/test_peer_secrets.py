"""The secrets in a file, and which ones stay in use if the file is invalid."""

from pathlib import Path

import pytest

from headrace.node.peer_secrets import PeerSecrets, Secrets, SecretsRefused, id_of

ONE, OTHER = "ab" * 16, "0123456789abcdef" * 4


def test_a_secret_changes_by_way_of_both(tmp_path: Path) -> None:
    file = tmp_path / "peer-secrets"
    secrets = PeerSecrets(file)
    assert secrets.secrets is None
    assert not secrets.look()
    for text, told in (
        (f"{ONE}\n", Secrets(ONE)),
        (f"{OTHER}\n{ONE}\n", Secrets(OTHER, ONE)),
        (f"  {OTHER}\r\n", Secrets(OTHER)),
    ):
        file.write_text(text)
        assert secrets.look()
        assert not secrets.look()
        assert secrets.secrets == told
        assert PeerSecrets(file).secrets == told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "short",
        "ab" * 15,
        "AB" * 16,
        f"{ONE}\n{OTHER}\n{ONE}",
        f"{ONE}\n{ONE}",
        f"{ONE}\nhush",
        f"secret={ONE}",
        "é" * 32,
        "ab" * 3_000,
    ],
)
def test_what_says_no_secrets_leaves_in_use_what_was(tmp_path: Path, text: str) -> None:
    file = tmp_path / "peer-secrets"
    file.write_text(ONE)
    secrets = PeerSecrets(file)
    file.write_text(text)
    assert not secrets.look()
    assert secrets.secrets == Secrets(ONE)
    assert str(file) in secrets.fault
    for part in text.split():
        assert part not in secrets.fault
    with pytest.raises(SecretsRefused):
        PeerSecrets(file)
    file.write_text(ONE)
    assert not secrets.look()
    assert secrets.fault == ""


def test_a_file_that_is_gone_leaves_in_use_what_was(tmp_path: Path) -> None:
    file = tmp_path / "peer-secrets"
    file.write_text(ONE)
    secrets = PeerSecrets(file)
    file.unlink()
    assert not secrets.look()
    assert (secrets.secrets, "is gone" in secrets.fault) == (Secrets(ONE), True)
    file.mkdir()
    assert not secrets.look()
    assert "cannot be read" in secrets.fault


def test_a_secret_is_shown_by_its_id_alone() -> None:
    secrets = Secrets(ONE, OTHER)
    assert ONE not in repr(secrets)
    assert OTHER not in f"{secrets}"
    assert secrets.ids == [id_of(ONE), id_of(OTHER)]
    assert all(len(each) == 8 for each in secrets.ids)
    assert Secrets(ONE).ids == [id_of(ONE)]
