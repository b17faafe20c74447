"""Describes the machine of a measurement, and waits until it is idle."""

import platform
import resource
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which a measurement was taken."""

    cores: int
    memory_gib: float
    cpu: str
    kernel: str
    python: str
    java: str
    open_files: int
    """The maximum number of open files of a process: the limit that Kafka, with at least one file per partition,
    reaches first.
    """
    memory_maps: int
    """The maximum number of memory maps of a process (vm.max_map_count): Kafka maps two index files for each partition.
    """

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def this_machine() -> Machine:
    """Return the machine that runs this."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    java = "none"
    if shutil.which("java"):
        lines = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
        java = lines[0] if lines else "none"
    return Machine(
        cores=psutil.cpu_count() or 0,
        memory_gib=round(psutil.virtual_memory().total / (1 << 30), 1),
        cpu=model,
        kernel=platform.release(),
        python=platform.python_version(),
        java=java,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        memory_maps=int(Path("/proc/sys/vm/max_map_count").read_text()),
    )


def wait_until_idle(*, below_percent: float = 8.0, for_s: float = 2.0, at_most_s: float = 120.0) -> float:
    """Wait until all cores together were busy less than `below_percent` for `for_s`; give up after `at_most_s`.

    Returns the last busy percentage, so that results from a busy machine are marked.
    """
    deadline = time.monotonic() + at_most_s
    while True:
        busy = psutil.cpu_percent(interval=for_s)
        if busy < below_percent or time.monotonic() > deadline:
            return busy
