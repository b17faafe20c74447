"""The machine's telemetry by psutil: cores, memory, disks, network, the busiest processes, and the demo's own.

Turns the system's counters into readings: counters become rates per second, values that the system does not provide are
left out, and a process that ends is forgotten. A Machine is sampled ten times a second; one round takes some 15 ms.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import psutil

from headrace_spark.demo.readings import device_name, on_grid

MIB: Final = 1 << 20
BUSIEST: Final = 6
"""How many of the busiest processes are followed besides the demo's own."""
MAX_PROCESSES: Final = 18
"""The maximum number of different processes in the whole run, so that short-lived processes do not create topics
without end.
"""
LOOK_AROUND_S: Final = 2.0
"""Seconds between two scans of all processes for the busiest."""
GONE: Final = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError)

Values = list[tuple[str, float]]


class Sample(NamedTuple):
    """One device's values in one round, by sensor, the most telling first."""

    device: str
    time_ms: int
    values: Values


class Rates:
    """Converts rising counters to rates per second since each was last read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[tuple[str, str], tuple[float, float]] = {}

    def of(self, device: str, counters: Mapping[str, float]) -> Values:
        """Return the rate of each counter that was read before; a counter that fell (a restart) starts again."""
        now = self._clock()
        found: Values = []
        for name, count in counters.items():
            before = self._last.get((device, name))
            self._last[device, name] = (now, count)
            if before is not None and now > before[0] and count >= before[1]:
                found.append((name, (count - before[1]) / (now - before[0])))
        return found

    def forget(self, device: str) -> None:
        """Forget a device's counters."""
        for key in [key for key in self._last if key[0] == device]:
            del self._last[key]


class Machine:
    """This machine as a set of devices."""

    def __init__(self) -> None:
        self._rates = Rates()
        self._own: dict[str, psutil.Process] = {}
        self._busy: dict[str, psutil.Process] = {}
        self._known: set[str] = set()
        self._cpu_times: dict[int, float] = {}
        self._look_at = 0.0
        psutil.cpu_times_percent(percpu=True)  # the first call has nothing to compare with
        self._mounts = _mounts()

    def watch(self, name: str, pid: int) -> None:
        """Follow one of the demo's own processes; a restarted process replaces the former."""
        self._rates.forget(f"demo-{name}")
        with contextlib.suppress(*GONE):
            process = psutil.Process(pid)
            process.cpu_percent()
            self._own[f"demo-{name}"] = process

    def sample(self) -> Iterator[Sample]:
        """Yield a sample of each device; each is read only when it is requested, so that its time is exact."""
        yield from self._cores()
        for device, read in (("machine", self._system), ("memory", _memory)):
            yield _sample(device, read())
        for disk, counters in _counters(psutil.disk_io_counters, perdisk=True):
            if not disk.startswith(("loop", "ram")):
                yield _sample(f"disk-{device_name(disk)}", self._disk(disk, counters))
        for mount, device in self._mounts.items():
            yield _sample(device, _space(mount))
        for nic, counters in _counters(psutil.net_io_counters, pernic=True):
            yield _sample(f"net-{device_name(nic)}", self._rates.of(f"net-{nic}", _net(counters)))
        for device, values in _temperatures():
            yield _sample(device, values)
        self._look_around()
        for followed in (self._own, self._busy):
            for device, process in list(followed.items()):
                try:
                    values = self._process(device, process)
                except GONE:
                    del followed[device]
                    self._rates.forget(device)
                    continue
                yield _sample(device, values)

    def _cores(self) -> Iterator[Sample]:
        for number, core in enumerate(psutil.cpu_times_percent(percpu=True)):
            shares = core._asdict()
            busy = max(100.0 - shares["idle"] - shares.get("iowait", 0.0), 0.0)
            yield _sample(f"core-{number}", [("busy_percent", busy), *((f"{k}_percent", v) for k, v in shares.items())])

    def _system(self) -> Values:
        one, five, fifteen = psutil.getloadavg()
        stats = psutil.cpu_stats()
        counters = {
            "context_switches_per_s": stats.ctx_switches,
            "interrupts_per_s": stats.interrupts,
            "soft_interrupts_per_s": stats.soft_interrupts,
        }
        times = psutil.cpu_times()._asdict()
        times = {f"{name}_seconds_per_s": spent for name, spent in times.items() if not name.startswith("guest")}
        return [
            ("load_1_min", one),
            ("load_5_min", five),
            ("load_15_min", fifteen),
            ("processes", float(len(psutil.pids()))),
            *self._rates.of("machine", counters | times),
        ]

    def _disk(self, disk: str, counters: Any) -> Values:
        raw = counters._asdict()
        rates = {
            "written_mib_per_s": raw["write_bytes"] / MIB,
            "read_mib_per_s": raw["read_bytes"] / MIB,
            "writes_per_s": raw["write_count"],
            "reads_per_s": raw["read_count"],
            "write_ms_per_s": raw["write_time"],
            "read_ms_per_s": raw["read_time"],
        }
        if "busy_time" in raw:
            rates["busy_ms_per_s"] = raw["busy_time"]
        return self._rates.of(f"disk-{disk}", rates)

    def _look_around(self) -> None:
        """Every LOOK_AROUND_S seconds, find the processes that worked most since the last scan."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_AROUND_S
        own = {process.pid for process in self._own.values()}
        spent: dict[int, float] = {}
        work: list[tuple[float, psutil.Process]] = []
        for process in psutil.process_iter(["cpu_times"]):
            times = process.info["cpu_times"]
            if times is None or process.pid in own:
                continue
            spent[process.pid] = times.user + times.system
            worked = spent[process.pid] - self._cpu_times.get(process.pid, spent[process.pid])
            if worked > 0:
                work.append((worked, process))
        self._cpu_times = spent
        busiest = sorted(work, key=lambda one: one[0], reverse=True)[:BUSIEST]
        found: dict[str, psutil.Process] = {}
        for _, process in busiest:
            with contextlib.suppress(*GONE):
                device = f"process-{device_name(process.name())}-{process.pid}"
                if device not in self._known and len(self._known) >= MAX_PROCESSES:
                    continue
                self._known.add(device)
                found[device] = self._busy.get(device, process)
        for device in self._busy.keys() - found.keys():
            self._rates.forget(device)
        self._busy = found

    def _process(self, device: str, process: psutil.Process) -> Values:
        with process.oneshot():
            cpu = process.cpu_percent()
            times, memory, switches = process.cpu_times(), process.memory_info(), process.num_ctx_switches()
            values: Values = [
                ("cpu_percent", cpu),
                ("resident_mib", memory.rss / MIB),
                ("virtual_mib", memory.vms / MIB),
                ("threads", float(process.num_threads())),
            ]
            if hasattr(memory, "shared"):
                values.append(("shared_mib", memory.shared / MIB))
            counters: dict[str, float] = {
                "user_seconds_per_s": times.user,
                "system_seconds_per_s": times.system,
                "waits_per_s": switches.voluntary,
                "preemptions_per_s": switches.involuntary,
            }
            with contextlib.suppress(*GONE, AttributeError):  # another user's process, or not supported by the system
                values.append(("open_files", float(process.num_fds())))
                io = process.io_counters()
                counters |= {
                    "written_mib_per_s": io.write_bytes / MIB,
                    "read_mib_per_s": io.read_bytes / MIB,
                    "write_calls_per_s": io.write_count,
                    "read_calls_per_s": io.read_count,
                }
        return values + self._rates.of(device, counters)


def _sample(device: str, values: Values) -> Sample:
    return Sample(device, time.time_ns() // 1_000_000, [(sensor, on_grid(value)) for sensor, value in values])


def _memory() -> Values:
    """Return memory and swap usage, in percent and MiB."""
    memory, swap = psutil.virtual_memory()._asdict(), psutil.swap_memory()._asdict()
    values = [("used_percent", memory.pop("percent"))]
    values += [(f"{name}_mib", amount / MIB) for name, amount in memory.items()]
    values.append(("swap_percent", swap.pop("percent")))
    return values + [(f"swap_{name}_mib", amount / MIB) for name, amount in swap.items()]


def _space(mount: str) -> Values:
    usage = psutil.disk_usage(mount)
    return [("used_percent", usage.percent), ("used_mib", usage.used / MIB), ("free_mib", usage.free / MIB)]


def _mounts() -> dict[str, str]:
    """Return the readable mount points, each with its name as a device."""
    found = {}
    for partition in psutil.disk_partitions():
        with contextlib.suppress(OSError):
            psutil.disk_usage(partition.mountpoint)
            found[partition.mountpoint] = f"space-{device_name(partition.mountpoint.strip('/') or 'root')}"
    return dict(list(found.items())[:8])


def _counters(ask: Callable[..., Any], **how: bool) -> list[tuple[str, Any]]:
    """Return counters by name; nothing if the system has none or refuses."""
    try:
        return list((ask(**how) or {}).items())
    except (OSError, RuntimeError, psutil.Error):
        return []


def _net(counters: Any) -> dict[str, float]:
    raw = counters._asdict()
    return {
        "received_mib_per_s": raw["bytes_recv"] / MIB,
        "sent_mib_per_s": raw["bytes_sent"] / MIB,
        "received_packets_per_s": raw["packets_recv"],
        "sent_packets_per_s": raw["packets_sent"],
        "errors_per_s": raw["errin"] + raw["errout"],
        "dropped_per_s": raw["dropin"] + raw["dropout"],
    }


def _temperatures() -> Iterator[tuple[str, Values]]:
    ask = getattr(psutil, "sensors_temperatures", None)
    for chip, entries in _counters(ask) if ask else ():
        yield (
            f"temperature-{device_name(chip)}",
            [(device_name(entry.label or f"sensor-{n}"), entry.current) for n, entry in enumerate(entries)],
        )
