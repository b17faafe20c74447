"""`headrace probe`: sends a record to every node and reads it back: once, several times, or endlessly."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, flush, note, print_json, print_line, print_table
from headrace.cli.signals import Interrupts

if TYPE_CHECKING:
    from headrace.cli.probing import Probe, Result
    from headrace.cli.target import Target

LABELS: Final = {
    "produce_p50_ms": "produce p50 ms",
    "produce_p99_ms": "p99 ms",
    "roundtrip_p50_ms": "round trip p50 ms",
    "roundtrip_p99_ms": "p99 ms",
    "roundtrip_max_ms": "max ms",
}


def probe(
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=0,
            help="Rounds; 0: until Ctrl-C [default: 1, or 0 with --metrics-port]",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[float, typer.Option("--interval", min=0.01, help="Seconds between rounds")] = 1.0,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds after which a node has failed")] = 10.0,
    size: Annotated[int, typer.Option("--size", min=16, max=500_000, help="Bytes of a record's value")] = 100,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65_535,
            help="Port for Prometheus's metrics; 0: a free one",
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option("--metrics-host", help="The address of --metrics-port")] = "127.0.0.1",
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Time a record's way through every node and back.

    The exit code is 1 if a node fails.

    \b
    Examples:
      headrace probe --count 5
      headrace probe --interval 5 --metrics-port 9464
    """
    import asyncio

    from headrace.cli.probing import Tally
    from headrace.cli.target import find_target

    rounds = count if count is not None else 0 if metrics_port is not None else 1
    target, tally = find_target(bootstrap, data), Tally()
    takers: list[Callable[[Sequence[Result]], None]] = [tally.add]
    if metrics_port is not None:
        from headrace.cli.probe_metrics import ProbeMetrics

        metrics = ProbeMetrics()
        takers.append(metrics.add)
        note(f"metrics: http://{metrics_host}:{metrics.serve(metrics_host, metrics_port)}/metrics")
    is_json = output is OutputFormat.JSON
    takers.append(_print_json if is_json else _print)
    is_over = True
    try:
        with Interrupts().caught():
            asyncio.run(_run(target, takers, rounds=rounds, interval_s=interval, size=size, timeout_s=timeout))
    except KeyboardInterrupt:
        is_over = rounds == 0
    if not is_json and rounds != 1:
        _print_summary(tally.rows())
    if tally.has_failed:
        raise typer.Exit(1)
    if not is_over:
        raise KeyboardInterrupt


async def _run(
    target: "Target",
    takers: Sequence[Callable[["Sequence[Result]"], None]],
    *,
    rounds: int,
    interval_s: float,
    size: int,
    timeout_s: float,
) -> None:
    from headrace.base.addresses import parse_addresses
    from headrace.cli.probing import Probe
    from headrace.kafka_client.client import Client
    from headrace.kafka_client.connection import Limits

    limits = Limits(connect_s=timeout_s, silence_s=max(timeout_s, 1.0))
    client = Client(parse_addresses([target.addresses]), security=target.access.security, limits=limits)
    try:
        made = Probe(client, size=size, timeout_s=timeout_s)
        await made.prepare()
        await _rounds(made, takers, rounds=rounds, interval_s=interval_s)
    finally:
        await client.close()


async def _rounds(
    made: "Probe", takers: Sequence[Callable[["Sequence[Result]"], None]], *, rounds: int, interval_s: float
) -> None:
    import asyncio

    done = 0
    while not rounds or done < rounds:
        began = time.monotonic()
        results = await made.round()
        for take in takers:
            take(results)
        done += 1
        if done != rounds:
            await asyncio.sleep(max(0.0, began + interval_s - time.monotonic()))


def _print(results: "Sequence[Result]") -> None:
    for each in results:
        if each.error:
            print_line(f"node {each.node}  FAILED: {each.error}")
        elif each.produce_s is None or each.roundtrip_s is None:
            print_line(f"node {each.node}  answers, but leads no partition of the probe's topic")
        else:
            print_line(
                f"node {each.node}  acknowledged after {each.produce_s * 1000:.1f} ms,"
                f" read after {each.roundtrip_s * 1000:.1f} ms"
            )
    flush()


def _print_json(results: "Sequence[Result]") -> None:
    print_json({"at_ms": int(time.time() * 1000), "nodes": [each.as_json() for each in results]})


def _print_summary(rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        print_line()
        columns = list(rows[0])
        shown = ([f"{cell:.1f}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows)
        print_table(
            [LABELS.get(each, each) for each in columns], shown, right=[LABELS.get(each, each) for each in columns]
        )
