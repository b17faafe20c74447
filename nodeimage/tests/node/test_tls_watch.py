"""Reports on TLS files: in the log when a problem is new, in the status until it is over."""

import time
from pathlib import Path

from structlog.testing import capture_logs

from headrace.node.tls_watch import DAY_S, TlsWatch
from headrace.security.peer_tls import PeerTls
from kit.node_certificates import DAY, Authority, put

AUTHORITY = Authority()
SHOWN = {"port": 7092, "protocol": "SSL", "failed": 3}


class Watch(TlsWatch):
    other = ""

    def other_problem(self) -> str:
        return self.other

    def say(self, *, now: float) -> list[str]:
        """What a look now logs."""
        with capture_logs() as logs:
            self.report(changed=self.look(), now=now)
        return [each["event"] for each in logs]


def test_without_tls_there_is_nothing_to_look_at() -> None:
    plain = Watch("plain", None, now=0)
    plain.other = "this is nobody's business"
    assert not plain.has_files
    assert plain.say(now=time.time()) == []
    assert plain.shown_as(**SHOWN) == {
        "name": "plain",
        "port": 7092,
        "protocol": "SSL",
        "certificate_expires_ms": None,
        "failed_handshakes_since_start": 3,
        "problem": "",
        "problem_since_ms": None,
    }


def test_problems_are_told_one_at_a_time_the_files_first(tmp_path: Path) -> None:
    folder = AUTHORITY.node(tmp_path / "node", left=30 * DAY)
    now = time.time()
    watch = Watch("peer", PeerTls(folder, now=now), now=now)
    assert watch.say(now=now) == []
    watch.other = "node 3 is spoken to without TLS"
    assert watch.say(now=now + 10) == ["TLS needs attention"]
    put(folder / "tls.key", b"no key")
    assert watch.say(now=now + 20) == ["TLS needs attention"]
    assert watch.say(now=now + 30) == []
    assert "cannot be used" in watch.problem
    assert watch.shown_as(**SHOWN)["problem_since_ms"] == int((now + 10) * 1000)
    watch.other = ""
    AUTHORITY.node(folder, left=30 * DAY)
    assert watch.say(now=now + 40) == ["certificate replaced"]
    assert watch.problem == ""
    AUTHORITY.node(folder, left=2 * DAY)
    assert watch.say(now=now + 50) == ["certificate replaced", "TLS needs attention"]
    assert watch.problem == "the certificate expires in 1 day; put a new one in its place"
    assert watch.say(now=now + 3 * DAY_S) == ["TLS needs attention"]
    assert watch.problem.startswith("the certificate has expired")
