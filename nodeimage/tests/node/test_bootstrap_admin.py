"""The file that names the first administrator."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.node.bootstrap_admin import MAX_BYTES, BootstrapAdmin, BootstrapRefused, read_bootstrap_admin

SECRET = "a-secret-of-some-length"


def written(folder: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path = folder / "admin.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def test_it_holds_a_user_and_a_password_and_shows_no_secret(tmp_path: Path) -> None:
    with capture_logs() as logs:
        admin = read_bootstrap_admin(written(tmp_path, f'user = "admin"\npassword = "{SECRET}"\n'))
    assert admin == BootstrapAdmin("admin", SECRET)
    assert SECRET not in repr(admin)
    assert logs == []


def test_one_that_others_can_read_is_told_of(tmp_path: Path) -> None:
    with capture_logs() as logs:
        read_bootstrap_admin(written(tmp_path, f'user = "admin"\npassword = "{SECRET}"\n', mode=0o644))
    assert [each["event"] for each in logs] == ["others may read the administrator's password: make it chmod 600"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has to hold user"),
        (f"user = admin {SECRET}", "is not TOML"),
        (b"\xff" + SECRET.encode(), "is not TOML"),
        (f'user = "admin"\npassword = "{SECRET}"\n' + " " * MAX_BYTES, "is not TOML"),
        ('user = "admin"', "has to hold user"),
        (f'user = "admin"\npassword = "{SECRET}"\nmore = 1', "has to hold user"),
        (f'user = 1\npassword = "{SECRET}"', "has to hold user"),
        (f'user = ""\npassword = "{SECRET}"', "the user name '' is empty"),
        (f'user = "ANONYMOUS"\npassword = "{SECRET}"', "is kept for clients that have proved nothing"),
        ('user = "admin"\npassword = "short"', "password has to have 8 characters at least"),
        (f'user = "admin"\npassword = "{"x" * 1025}"', "1024 bytes at most"),
    ],
)
def test_what_is_refused_is_told_without_what_it_holds(tmp_path: Path, content: str | bytes, says: str) -> None:
    with pytest.raises(BootstrapRefused, match=r"^--bootstrap-admin .*admin\.toml: ") as refused:
        read_bootstrap_admin(written(tmp_path, content))
    assert says in str(refused.value)
    assert SECRET not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BootstrapRefused, match="cannot be read: No such file"):
        read_bootstrap_admin(tmp_path / "none")
