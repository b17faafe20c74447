"""Models of clients, answered at a reading pace, on a simulated clock."""

from dataclasses import dataclass

import pytest

from headrace.kafka.reading_pace import HOLDS_S, MAX_HELD_S, PAUSE_S, SLACK_S, ReadingPace

ANSWER = 1_000_000
RECORD = 100


@dataclass
class Client:
    """A client that gets each answer within `answer_s`, and sends the next request at once, unless it pauses."""

    answer_s: float = 0.002
    now: float = 1000.0
    read: int = 0
    held_s: float = 0.0
    """Seconds for which its requests were delayed."""
    pauses: int = 0
    pace: ReadingPace | None = None

    def fetch(self) -> None:
        if self.pace is not None:
            held = self.pace.asked(self.now)
            self.held_s += held
            self.now += held
        self.now += self.answer_s
        if self.pace is None:
            self.pace = ReadingPace(self.now)
        self.pace.answered(self.now, ANSWER)
        self.read += ANSWER

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        self.now += seconds


def backs_off(client: Client, *, reads: float, seconds: float) -> float:
    """Bytes per second of a librdkafka consumer whose program reads at a given speed: it sends no requests for a second
    whenever its queue has 100,000 records."""
    began, before, queued, at = client.now, client.read, 0.0, client.now
    while client.now < began + seconds:
        queued = max(0.0, queued - (client.now - at) * reads)
        at = client.now
        if queued >= 100_000 * RECORD:
            client.pause(1.0)
            continue
        client.fetch()
        queued = max(0.0, queued - (client.now - at) * reads) + ANSWER
        at = client.now
    return (client.read - before) / (client.now - began)


@pytest.mark.parametrize("reads", [15e6, 30e6, 60e6, 120e6, 240e6, 480e6])
def test_a_client_that_backs_off_soon_reads_about_as_fast_as_its_program(reads: float) -> None:
    client = Client()
    backs_off(client, reads=reads, seconds=10.0)
    assert backs_off(client, reads=reads, seconds=60.0) > 0.65 * reads


def test_a_program_that_becomes_slower_is_answered_more_slowly() -> None:
    client = Client()
    backs_off(client, reads=200e6, seconds=10.0)
    backs_off(client, reads=50e6, seconds=10.0)
    assert backs_off(client, reads=50e6, seconds=60.0) > 0.65 * 50e6


def test_a_program_that_becomes_faster_is_answered_faster_in_time() -> None:
    client = Client()
    backs_off(client, reads=50e6, seconds=HOLDS_S / 2)
    backs_off(client, reads=200e6, seconds=HOLDS_S)
    assert backs_off(client, reads=200e6, seconds=20.0) > 0.65 * 200e6


def test_a_program_that_is_slower_than_the_client_gets_no_less() -> None:
    """The program's queue lasts longer than the pause."""
    client = Client()
    assert backs_off(client, reads=5e6, seconds=100.0) > 4.9e6


def test_a_client_that_never_pauses_is_never_held_up() -> None:
    client = Client()
    for _ in range(100_000):
        client.fetch()
    assert client.held_s == 0.0


def test_one_that_works_on_each_answer_is_never_held_up() -> None:
    client = Client()
    for _ in range(1000):
        client.fetch()
        client.fetch()
        client.pause(PAUSE_S + 0.5)
    assert client.held_s == 0.0


@pytest.mark.parametrize("answers", [5, 50, 500, 5000])
@pytest.mark.parametrize("works_s", [0.6, 2.0, 30.0])
def test_one_that_works_on_each_burst_is_held_up_during_one_burst_in_a_while(answers: int, works_s: float) -> None:
    client = Client()
    bursts = 0
    while client.now < 1000.0 + 10 * HOLDS_S:
        for _ in range(answers):
            client.fetch()
        client.pause(works_s)
        bursts += 1
    burst_s = answers * client.answer_s
    # One trial delays one burst by less than the burst and its pause took together.
    assert client.held_s <= 12 * (burst_s + works_s)
    assert client.held_s <= 0.05 * (client.now - 1000.0)


def test_one_that_stops_once_is_held_up_for_a_moment_at_most() -> None:
    """Such as a garbage collection, or a rebalance."""
    client = Client()
    for _ in range(2000):
        client.fetch()
    client.pause(1.0)
    for _ in range(20_000):
        client.fetch()
    assert client.held_s == 0.0


def test_no_request_is_held_up_for_long_however_large_the_answer_before_it() -> None:
    pace = ReadingPace(0.0)
    pace.rate = 1e6
    pace.answered(0.0, 50_000_000)
    assert pace.asked(0.1) == MAX_HELD_S


def test_what_timers_are_late_is_made_up_for() -> None:
    """Otherwise each answer would be late by the timer's error, and the client would be slower than its pace."""
    pace = ReadingPace(0.0)
    pace.rate = 1e8
    now, answers = 0.0, 1000
    for _ in range(answers):
        pace.answered(now, ANSWER)
        now += pace.asked(now) + SLACK_S / 2  # the timer's part
    assert answers * ANSWER / now > 0.95e8
