"""`headrace user` on a running node."""

from pathlib import Path

import pytest
import typer

from headrace.cli import users
from kit.callers import PASSWORD
from kit.commands_on_node import Headrace


@pytest.fixture
def password(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    return str(file)


def test_a_user_is_made_shown_altered_listed_and_deleted(hr: Headrace, password: str) -> None:
    made = hr("user", "create", "cli-ann", "--password-file", password, "-g", "ops", "-g", "dev", "-o", "json").json
    assert (made["groups"], made["mechanisms"]) == (["dev", "ops"], ["SCRAM-SHA-256", "SCRAM-SHA-512"])
    assert "user passwd" in hr("user", "create", "cli-ann", "--password-file", password).refused()
    assert hr("user", "alter", "cli-ann", "--group", "sensors", "-o", "json").json["groups"] == ["sensors"]
    assert hr("user", "alter", "cli-ann", "--no-groups", "-o", "json").json["groups"] == []
    assert hr("user", "passwd", "cli-ann", "--password-file", password, "-o", "json").json["user"] == "cli-ann"
    assert "cli-ann" in {each["user"] for each in hr("user", "list", "-o", "json").json}
    assert "SCRAM-SHA-512" in hr("user", "show", "cli-ann").out
    assert "cli-ann" in hr("user", "list").out
    assert hr("user", "delete", "cli-ann", "-o", "json").json == {"deleted": "cli-ann"}
    assert "user list" in hr("user", "show", "cli-ann").refused()


def test_a_user_without_a_password_is_one_that_a_certificate_proves(hr: Headrace) -> None:
    assert hr("user", "create", "CN=press-7", "--no-password", "-o", "json").json["mechanisms"] == []
    hr("user", "delete", "CN=press-7")


def test_a_password_is_asked_for_twice_on_a_terminal(hr: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def prompt(text: str, **how: object) -> str:
        asked.append({"text": text, **how})
        return PASSWORD

    monkeypatch.setattr(users, "is_terminal", lambda _: True)
    monkeypatch.setattr(typer, "prompt", prompt)
    assert hr("user", "create", "cli-bob", "-o", "json").json["user"] == "cli-bob"
    assert asked == [{"text": "Password of cli-bob", "hide_input": True, "confirmation_prompt": True, "err": True}]
    hr("user", "delete", "cli-bob")


def test_what_cannot_be_is_one_line_without_the_password(hr: Headrace, tmp_path: Path, password: str) -> None:
    assert "--password-file" in hr("user", "create", "cli-carol").refused()
    short = tmp_path / "short"
    short.write_text("sesame")
    told = hr("user", "create", "cli-carol", "--password-file", str(short)).refused()
    assert "6 characters" in told
    assert "sesame" not in told
    for content in (b"\xff" * 20, b"x" * 5_000):
        (tmp_path / "no-password").write_bytes(content)
        told = hr("user", "create", "cli-carol", "--password-file", str(tmp_path / "no-password")).refused()
        assert "is not a password file" in told
    assert hr("user", "create", "cli-carol", "--password-file", password, "--no-password").refused(code=2)
    assert hr("user", "alter", "cli-carol").refused(code=2)
    assert hr("user", "alter", "cli-carol", "--group", "a", "--no-groups").refused(code=2)
