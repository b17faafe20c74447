"""What ends the story early is told in one line."""

from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace_spark.demo import story as module
from headrace_spark.demo.failover import busiest
from headrace_spark.demo.places import Places
from headrace_spark.demo.screen import Screen
from headrace_spark.demo.story import QUICK, Story


def no_leader() -> int:
    return busiest({}, {})[0]


def no_offsets() -> int:
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.parametrize(
    ("scene", "said"), [(no_leader, "no leader of a container with data answers"), (no_offsets, "_TIMED_OUT")]
)
def test_a_cluster_that_does_not_answer_ends_the_story_with_a_line(
    scene: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "find_java", lambda: None)
    with Screen() as screen:
        story = Story(Places(tmp_path / ".demo"), screen, times=QUICK)
        monkeypatch.setattr(story, "_tell", scene)
        assert story.run() == 1
    told = "".join(capsys.readouterr())
    assert said in told
    assert "Traceback" not in told
