"""Faults of processes, networks, disks and the store by chance, one after the other: HEADRACE_FAULT_SECONDS of it, 30
by default (fault_kinds.py has what there is).

Tells its seed, and each fault, as it goes and where it fails; `HEADRACE_FAULT_SEED` chooses the same ones again (what
they meet is up to the clock), `HEADRACE_FAULT_KINDS=wiped,damaged` among these alone. `HEADRACE_PATIENCE=4` waits four
times as long for what is to happen, on a machine that has much else to do.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import KafkaException

from kit.cluster_clients import Load, await_heard, make_topics
from kit.cluster_nodes import Cluster, MakeCluster
from kit.fault_kinds import KINDS, Faults, Kind
from kit.patience import PATIENCE

SECONDS = float(os.environ.get("HEADRACE_FAULT_SECONDS", "30"))
NAMES = os.environ.get("HEADRACE_FAULT_KINDS", "")
QUIET_S = 2.0
GO_ON_S = 30.0
"""After a fault: also where it met all nodes, and where clients wait for one that stood still."""
SMALL = ("--chunk-bytes=262144", "--partitionlet-bytes=262144", "--container-bytes=8388608", "--rebuild-after-s=10")
"""Partitions roll, chunks and containers close all the time; and replicas of nodes that stay away are made anew."""

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout((SECONDS * 1.5 + 300) * PATIENCE)]


def test_faults_by_chance_lose_nothing_and_reach_no_program(make_cluster: MakeCluster) -> None:
    """Measures whether clients go on in time after each fault, of a cluster that takes both cores."""
    seed = int(os.environ.get("HEADRACE_FAULT_SEED", random.SystemRandom().randrange(1 << 32)))
    told = [f"seed {seed}"]
    print(told[0], file=sys.stderr)
    try:
        run(make_cluster(*SMALL, watch_power=True), random.Random(seed), told)
    except BaseException as error:
        error.add_note("\n".join(told))  # with the failure, wherever its output went
        raise


def run(cluster: Cluster, chance: random.Random, told: list[str]) -> None:
    """Fault after fault, each into a cluster that is whole."""

    def tell(text: str) -> None:
        told.append(f"{time.monotonic():.3f} {text}")
        print(told[-1], file=sys.stderr)

    kinds = [kind for kind in KINDS if not NAMES or kind.name in NAMES.split(",")]
    assert kinds, f"HEADRACE_FAULT_KINDS={NAMES} names none of {sorted({kind.name for kind in KINDS})}"
    load = Load(cluster, topics=2, partitions=6)
    load.forgive_coordinators_lost_twice()
    try:
        count = run_faults(cluster, chance, kinds, load, tell)
    except BaseException:
        tell(verdict(cluster, load))
        raise
    load.finish()
    tell(f"{count} faults")


def run_faults(
    cluster: Cluster, chance: random.Random, kinds: Sequence[Kind], load: Load, tell: Callable[[str], None]
) -> int:
    """How many there were."""
    faults = Faults(cluster, chance)
    began = time.monotonic()
    count = 0
    while time.monotonic() < began + SECONDS:
        (kind,) = chance.choices(kinds, [each.weight for each in kinds])
        lasts_s = chance.uniform(0.1, kind.longest_s)
        tell(kind.name)
        with kind.fault(faults) as what:
            tell(f"{what}, for {lasts_s:.1f} s")
            threading.Event().wait(lasts_s)
            load.fail_on_errors()
        cluster.ways.heal()
        count += 1
        tell("it is over")
        make_topics_again(cluster, f"{load.name}-made-{count}")
        load.await_writes(time.monotonic(), within_s=GO_ON_S * PATIENCE)
        cluster.await_whole()  # or the next fault might meet the last replica in sync
        if chance.random() < 0.5:
            threading.Event().wait(chance.uniform(0, QUIET_S))
    return count


def verdict(cluster: Cluster, load: Load) -> str:
    """Of the records, where something else ended the faults."""
    cluster.ways.heal()
    try:
        cluster.start()
        cluster.await_ready()
        load.finish()
    except (Exception, pytest.fail.Exception) as error:
        return f"what the clients recorded is at fault too, or cannot be told: {error}"
    return "what the clients recorded is right"


def make_topics_again(cluster: Cluster, name: str) -> None:
    """A topic, made while things settle. It is there afterwards, whatever its maker was told."""
    try:
        make_topics(cluster, [name], 2)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise
        await_heard(cluster, [name])
