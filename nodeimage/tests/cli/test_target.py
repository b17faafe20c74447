"""Which cluster, and as whom: the precedence of sources, and where passwords do not go."""

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import HeadraceError
from headrace.cli import target as module
from headrace.cli.client_options import NO_OPTIONS, ClientOptions, begin
from headrace.cli.context_file import Context, Contexts, write_contexts
from headrace.cli.target import Target, find_target, plain
from headrace.local.folder import ClusterFile, ClusterNotRunning, NodeProcess, write_cluster_file
from headrace.local.processes import birth_of, created_at


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    begin(NO_OPTIONS)
    yield
    begin(NO_OPTIONS)


def file(path: Path, user: str, servers: str = "", **more: str) -> Path:
    """Client properties of a user."""
    lines = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": "s3cret",
        **({"bootstrap.servers": servers} if servers else {}),
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    path.chmod(0o600)
    return path


def running(folder: Path, port: int) -> Path:
    """A folder whose cluster seems to run, by its processes: this process is its node."""
    folder.mkdir(parents=True)
    me = os.getpid()
    node = NodeProcess(name="node-1", port=port, pid=me, created=created_at(me) or 0, birth=birth_of(me))
    write_cluster_file(folder, ClusterFile(nodes=(node,)))
    return folder


def who(found: Target) -> tuple[str, str]:
    return found.addresses, found.access.security.username


def test_nothing_said_is_the_embedded_cluster_in_clear(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotRunning, match="`headrace up`"):
        find_target(None, None)
    running(tmp_path / "home" / ".headrace", 7001)
    assert find_target(None, None).access.security == plain("").access.security
    assert find_target(None, None).addresses == "127.0.0.1:7001"


def test_a_secure_embedded_cluster_is_reached_with_its_own_properties(tmp_path: Path) -> None:
    folder = running(tmp_path / "d", 7001)
    file(folder / "client.properties", "admin", "127.0.0.1:7001")
    assert who(find_target(None, folder)) == ("127.0.0.1:7001", "admin")
    assert who(find_target("127.0.0.1:7001", folder)) == ("127.0.0.1:7001", "admin"), "by its address too"
    assert who(find_target("elsewhere:7001", folder)) == ("elsewhere:7001", ""), "its password goes nowhere else"


def test_the_context_in_use_comes_before_the_folder_and_keeps_its_password_to_itself(tmp_path: Path) -> None:
    running(tmp_path / "home" / ".headrace", 7001)
    config = file(tmp_path / "alice", "alice", "h:1,i:1")
    write_contexts(Contexts("factory", {"factory": Context(config=str(config))}))
    assert who(find_target(None, None)) == ("h:1,i:1", "alice")
    assert who(find_target("i:1", None)) == ("i:1", "alice")
    assert who(find_target("j:1", None)) == ("j:1", "")
    folder = running(tmp_path / "d", 7002)
    assert who(find_target(None, folder)) == ("127.0.0.1:7002", "")


def test_the_environment_comes_before_the_context_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = {name: Context(config=str(file(tmp_path / name, name, f"{name}:1"))) for name in ("used", "named")}
    write_contexts(Contexts("used", contexts))
    monkeypatch.setenv("HEADRACE_CONTEXT", "named")
    assert who(find_target(None, None)) == ("named:1", "named")
    monkeypatch.setenv("HEADRACE_CONFIG", str(file(tmp_path / "file", "file", "file:1")))
    assert who(find_target(None, None)) == ("file:1", "file")
    begin(ClientOptions(context_name="used"))
    assert who(find_target(None, None)) == ("used:1", "used")
    begin(ClientOptions(config=file(tmp_path / "option", "option")))
    with pytest.raises(ClusterNotRunning):  # the file contains no address
        find_target(None, None)
    assert who(find_target("h:9", None)) == ("h:9", "option")


def test_addresses_of_the_command_line_come_before_a_files_and_those_of_the_environment_behind(tmp_path: Path) -> None:
    config = file(tmp_path / "alice", "alice", "h:1")
    begin(ClientOptions(config=config, bootstrap_given=True))
    assert who(find_target("h:2", None)) == ("h:2", "alice")
    begin(ClientOptions(config=config))
    assert who(find_target("h:2", None)) == ("h:1", "alice")
    begin(ClientOptions(config=config, data_given=True))
    assert who(find_target(None, running(tmp_path / "d", 7001))) == ("127.0.0.1:7001", "alice")


def test_only_the_embedded_cluster_has_a_folder_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `node remove 1` of a cluster elsewhere would erase the node 1 of the folder."""
    folder = running(tmp_path / "d", 7001)
    monkeypatch.setenv("HEADRACE_DATA", str(folder))
    assert find_target(None, None).folder == folder
    assert find_target(None, folder).folder == folder
    assert find_target("127.0.0.1:7001", None).folder is None
    config = file(tmp_path / "alice", "alice", "h:1")
    begin(ClientOptions(config=config))
    assert find_target(None, None).folder is None
    begin(ClientOptions(config=config, data_given=True))
    assert find_target(None, folder).folder == folder, "the file says only as whom"
    begin(NO_OPTIONS)
    write_contexts(Contexts("used", {"used": Context(config=str(config))}))
    assert find_target(None, None).folder is None
    assert find_target(None, folder).folder == folder
    monkeypatch.setenv("HEADRACE_CONTEXT", "used")
    assert find_target(None, None).folder is None
    assert find_target(None, None).at("i:1").folder is None


def test_a_context_that_cannot_be_used_does_not_matter_to_who_names_a_folder(tmp_path: Path) -> None:
    write_contexts(Contexts("used", {"used": Context(config=str(tmp_path / "gone"))}))
    folder = running(tmp_path / "d", 7001)
    assert find_target(None, folder).addresses == "127.0.0.1:7001"
    with pytest.raises(HeadraceError, match="gone cannot be read"):
        find_target(None, None)


def test_options_that_exclude_each_other(tmp_path: Path) -> None:
    begin(ClientOptions(config=tmp_path, context_name="a"))
    with pytest.raises(HeadraceError, match="--config and --context exclude each other"):
        find_target(None, None)
    begin(ClientOptions(context_name="a", data_given=True))
    with pytest.raises(HeadraceError, match="--context and --data exclude each other"):
        find_target(None, None)
    begin(ClientOptions(password_file=tmp_path))
    with pytest.raises(HeadraceError, match="--password-file is for --user NAME"):
        find_target("h:1", None)


def test_a_user_of_the_command_line_speaks_tls_unless_a_file_says_otherwise(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("pa55word\n")
    password.chmod(0o600)
    begin(ClientOptions(user="bob", password_file=password))
    security = find_target("h:1", None).access.security
    assert (security.protocol, security.mechanism, security.username) == ("SASL_SSL", "SCRAM-SHA-512", "bob")
    assert security.password == "pa55word"
    config = file(tmp_path / "alice", "alice", "h:1")
    begin(ClientOptions(user="bob", password_file=password, config=config))
    security = find_target(None, None).access.security
    assert (security.protocol, security.mechanism, security.username) == ("SASL_PLAINTEXT", "SCRAM-SHA-256", "bob")


def test_an_authority_of_the_command_line_takes_the_place_of_the_files(tmp_path: Path) -> None:
    config = tmp_path / "tls"
    config.write_text("security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/former\n")
    begin(ClientOptions(tls_ca=tmp_path / "ca.crt", config=config))
    with pytest.raises(HeadraceError, match=r"tls: ssl\.ca\.location cannot be used: No such file"):
        find_target("h:1", None)


def test_a_user_without_a_password_is_asked_at_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    begin(ClientOptions(user="bob"))
    with pytest.raises(HeadraceError, match="--user bob needs --password-file FILE"):
        find_target("h:1", None)
    monkeypatch.setattr(module, "is_terminal", lambda _: True)
    monkeypatch.setattr("getpass.getpass", lambda prompt: f"typed at {prompt!r}")
    assert find_target("h:1", None).access.security.password == "typed at 'password of bob: '"


def test_a_file_of_secrets_that_others_may_read_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = file(tmp_path / "alice", "alice", "h:1")
    config.chmod(0o644)
    begin(ClientOptions(config=config))
    for _ in range(2):
        find_target(None, None)
    assert capsys.readouterr().err.count(f"{config} holds a secret and may be read by others: `chmod 600") == 1


def test_what_is_wrong_in_a_file_is_told_with_its_name_and_without_its_secrets(tmp_path: Path) -> None:
    begin(ClientOptions(config=file(tmp_path / "alice", "alice", "h:1", sasl_mechanism="GSSAPI")))
    with pytest.raises(HeadraceError, match=r"alice: sasl\.mechanism is one of") as refused:
        find_target(None, None)
    assert "s3cret" not in str(refused.value)
    begin(ClientOptions(config=file(tmp_path / "bob", "bob", "h:1", ssl_keystore_password="s3cret")))
    with pytest.raises(HeadraceError, match=r"ssl\.keystore\.password is not a security property") as refused:
        find_target(None, None)
    assert "s3cret" not in str(refused.value)
    begin(ClientOptions(config=file(tmp_path / "carol", "carol")))
    assert "s3cret" not in repr(find_target("h:2", None)) + repr(module.of_file(tmp_path / "alice"))
