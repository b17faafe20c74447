"""The operator's metrics: what is counted, by which labels, in Prometheus's format."""

import asyncio
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headrace_operator.cache import Cache
from headrace_operator.engine import Engine, Key
from headrace_operator.main import Operator
from headrace_operator.metrics import DURATION, FIGURES, PREFIX, Metrics, Reconciles, conditions

from .fake_api import ClosingApi


def body(name: str, kind: str = "Topic", **conditions: str) -> dict[str, Any]:
    told = [{"type": each, "status": status} for each, status in conditions.items()]
    meta = {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "generation": 1}
    return {"kind": kind, "metadata": meta, "status": {"conditions": told}}


def samples(text: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples by name, and by the values of the labels, in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for each in family.samples:
            found.setdefault(each.name, {})[tuple(each.labels.values())] = each.value
    return found


async def test_everything_that_is_declared_is_told() -> None:
    operator = Operator(ClosingApi(), namespaces=[], sweep_s=300, image="i", spark="s")  # type: ignore[arg-type]
    reconciles = Reconciles()
    reconciles.done("Topic", 0.2, RuntimeError("no"))
    cache = Cache()
    cache.take(body("a", Ready="True"))
    text = await Metrics(reconciles=reconciles, figures=operator._figures, cache=cache, kinds=["Topic"]).text()
    found = samples(text)
    ours = {name.removeprefix(PREFIX) for name in found if name.startswith(PREFIX)}
    assert ours == {*FIGURES, *(f"{DURATION}_{end}" for end in ("bucket", "count", "sum"))}
    assert "process_resident_memory_bytes" in found
    await operator.close()


async def test_reconciles_are_told_by_kind_and_outcome() -> None:
    reconciles = Reconciles()

    async def reconcile(key: Key, _: object) -> None:
        if key.name == "bad":
            raise ValueError(key.name)

    cache = Cache()
    over = asyncio.Event()

    def done(kind: str, seconds: float, error: Exception | None) -> None:
        reconciles.done(kind, seconds, error)
        if engine.reconciled + engine.failed == 3:
            over.set()

    engine = Engine({"Topic": reconcile}, cache=cache, done=done)
    engine.start()
    for name in ("good", "better", "bad"):
        engine.seen(body(name))
    await over.wait()
    await engine.close()
    metrics = Metrics(reconciles=reconciles, figures=dict, cache=cache, kinds=["Topic"])
    found = samples(await metrics.text())
    assert found["headrace_operator_reconcile_duration_seconds_count"] == {("Topic", "done"): 2, ("Topic", "failed"): 1}
    assert found["headrace_operator_reconcile_errors_total"] == {("ValueError", "Topic"): 1}
    assert found["headrace_operator_resources"] == {("Topic",): 3}


async def test_resources_are_counted_by_their_conditions_and_others_have_their_turn() -> None:
    cache = Cache()
    for number in range(2000):
        cache.take(body(f"t{number}", Ready="True" if number % 4 else "False", Reconciled="True"))
    cache.take({"kind": "Topic", "metadata": {"name": "new", "namespace": "n", "uid": "new", "resourceVersion": "1"}})
    cache.take(body("v", kind="Volume", Ready="Unknown"))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    found = await conditions(cache, ["Topic", "Volume", "Stream"])
    task.cancel()
    assert found == {
        ("Topic", "Ready", "True"): 1500,
        ("Topic", "Ready", "False"): 500,
        ("Topic", "Reconciled", "True"): 2000,
        ("Volume", "Ready", "Unknown"): 1,
    }
    assert turns >= 4


async def test_what_a_resource_is_called_cannot_break_the_text() -> None:
    cache = Cache()
    cache.take(body("x", **{'a"b\n\\': "True"}))
    metrics = Metrics(reconciles=Reconciles(), figures=dict, cache=cache, kinds=["Topic"])
    found = samples(await metrics.text())
    assert found["headrace_operator_objects"] == {('a"b\n\\', "Topic", "True"): 1}
