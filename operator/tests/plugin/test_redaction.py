import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_operator.plugin.redaction import GONE, redacted, redacted_text

PLANTED = "hunter2-Zx9Qp7"


@pytest.mark.parametrize(
    "text",
    [
        "password={}",
        "sasl.password = {}",
        '{{"password": "{}", "user": "ada"}}',
        '{{\\"password\\":\\"{}\\"}}',
        "PASSWORD: {}",
        "ssl.key.password='{} and more {}'",
        "token={}",
        "aws_secret_access_key={}",
        "fs.s3a.access.key={}",
        "api-key: {}",
        'sasl.jaas.config=org.x.PlainLoginModule required username="a" password="{}";',
        "Authorization: Bearer {}",
        "curl -H 'authorization: basic {}'",
        "bearer {} was refused",
        "https://ada:{}@host/x",
        "amqp://{}@host/x",
        "--password {}",
        "run --sasl-password '{}' now",
        "--token={}",
        'the password "{}" is wrong',
        "passwd => {}",
        "dbPwd={}",
        "dbPass={}",
        "basicAuth: {}",
        "cookie: session={}",
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
        "-----BEGIN EC PRIVATE KEY-----\n{}\nand then the log ends",
        'credentials: ["{}"]',
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_a_text(text: str) -> None:
    shown = redacted_text(f"before {text.format(PLANTED, PLANTED)}")
    assert PLANTED not in shown
    assert GONE in shown
    assert shown.startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "timestamp=2026-11-21T08:48:19.285063Z level=info event=ready node=1 address=127.0.0.1:9092 pid=29651",
        "secretName: c-cluster-ca",
        "--password-file /etc/headrace/password",
        "sasl.mechanism=SCRAM-SHA-512",
        "author=ada passed=5",
        "bypass=yes sessionAffinity=None encompassed=5 authored=ada",
        "the Secret c-cluster is gone",
        "password authentication failed",
    ],
)
def test_the_rest_stays(text: str) -> None:
    assert redacted_text(text) == text


@pytest.mark.parametrize(
    "found",
    [
        {"env": [{"name": "HARMLESS", "value": PLANTED}]},
        {"env": {"HARMLESS": PLANTED}},
        {"spec": {"driver": {"env": [{"name": "A", "value": PLANTED, "extra": "x"}]}}},
        {"password": PLANTED},
        {"sparkConf": {"spark.hadoop.fs.s3a.secret.key": PLANTED, "spark.x.access.key": PLANTED}},
        {"settings": {"apiKey": 12345, "token": [PLANTED, {"value": PLANTED}]}},
        {"credentials": {"users": {"ada": PLANTED}}},
        {"passwordSecret": {"name": "n", "inline": {"x": PLANTED}, "key": {"value": PLANTED}}},
        {"args": ["--user", "ada", "--password", PLANTED]},
        {"command": ["sh", "-c", f"run --token {PLANTED}"]},
        {"settings": [{"name": "db-password", "value": PLANTED}]},
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": f'{{"a":"{PLANTED}"}}'}}},
        {"metadata": {"annotations": {"note": f'{{"env": [{{"name": "A", "value": "{PLANTED}"}}]}}'}}},
        {"message": f"refused password={PLANTED}"},
        {"dbPwd": PLANTED},
        {"dbPass": PLANTED},
        {"basicAuth": PLANTED},
        {"sessionId": PLANTED, "session_id": PLANTED},
        {"sessionCookie": PLANTED},
        {"cookies": [PLANTED]},
        {"settings": [{"name": "adminPwd", "value": PLANTED}]},
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_an_object(found: Any) -> None:
    assert PLANTED not in str(redacted(found))
    assert "12345" not in str(redacted(found))


def test_references_stay_as_they_are() -> None:
    spec = {
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}}],
        "imagePullSecrets": [{"name": "registry"}],
        "automountServiceAccountToken": False,
        "volumes": [{"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "p"}]}}],
        "source": {"credentialsSecret": "north-login"},
        "projected": {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        "passwordSecret": {"name": "s", "key": "password"},
        "replicas": 3,
    }
    assert redacted(spec) == spec


def test_a_secret_is_no_object_to_hand_on() -> None:
    with pytest.raises(ValueError, match="Secret"):
        redacted({"kind": "Secret", "metadata": {"name": "s"}, "data": {}})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_object_comes_out_as_one_of_the_same_shape(found: Any) -> None:
    shown = redacted(found)
    assert type(shown) is type(found)
    assert redacted(shown) == redacted(shown)


@pytest.mark.parametrize("text", ["A" * 200_000, "-" * 200_000, "password" * 20_000, '\\"' * 100_000, "[" * 100_000])
def test_a_hostile_line_takes_no_longer_than_it_is_long(text: str) -> None:
    began = time.process_time()
    redacted_text(text)
    assert time.process_time() - began < 10
