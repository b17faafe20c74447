"""A storage node's process: `python -m headrace.node`.

Exit codes: 0 stopped, 2 refused to start (one line on stderr says why), 70 the disk failed (invariant 13).
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
import uvloop

from headrace.base.descriptor_plan import MIN_DESCRIPTORS, raise_limit
from headrace.base.errors import FolderRefused, HeadraceError
from headrace.base.log_limits import LogLimits
from headrace.base.log_output import log_to, telling
from headrace.node.environment import EXIT_DISK_FAILED, EXIT_REFUSED
from headrace.node.node import Node
from headrace.node.options import Options, parse
from headrace.partitions.cluster_layout import NodeIdentity

log = structlog.get_logger()

GC_THRESHOLDS = (50_000, 20, 1_000)
"""Thresholds of the garbage collector. A request creates tens of objects that reference counting frees; collecting all
others often would stall the loop."""
SWITCH_S = 0.001
"""Seconds that a thread may keep the interpreter while the loop waits for it; Python's default is 5 ms."""


async def serve(options: Options) -> int:
    """Run a node until SIGTERM or SIGINT, which also end a node that is still starting; the exit code."""
    loop = asyncio.get_running_loop()
    node = Node(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.ended.set)
    ended = loop.create_task(node.ended.wait())
    starting = loop.create_task(node.start())
    try:
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            log.info("stopping before it was ready")
            starting.cancel()
            await asyncio.wait({starting})
        if starting.cancelled():
            await node.stop()
            return 0
        identity = starting.result()
    except BaseException:
        starting.cancel()
        await node.stop()
        raise
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    log.info("ready", node=identity.node_id, address=f"{identity.host}:{identity.port}", pid=os.getpid())
    if options.ready_file is not None:
        _write_ready(options.ready_file, identity, admin_port=node.admin_port, metrics_port=node.metrics_port)
    waited: set[asyncio.Future[Any]] = {ended, node.catalog.failed}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    failure = node.catalog.failed.exception() if node.catalog.failed.done() else None
    if failure is not None:
        log.critical("the catalog failed, this process ends", error=repr(failure))
    log.info("stopping", node=identity.node_id)
    ended.cancel()
    await node.stop()
    if failure is not None and isinstance(failure.__cause__, FolderRefused):
        raise failure.__cause__
    return 0 if failure is None else EXIT_DISK_FAILED


async def _serve_bounded(options: Options, limits: LogLimits) -> int:
    async with telling(limits):
        return await serve(options)


def _write_ready(path: Path, identity: NodeIdentity, **ports: int | None) -> None:
    temporary = path.with_suffix(".tmp")
    ready_fields = {"id": identity.node_id, "host": identity.host, "port": identity.port, "pid": os.getpid()}
    ready_fields |= {name: port for name, port in ports.items() if port is not None}
    temporary.write_text(json.dumps(ready_fields))
    temporary.rename(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The node's process; the exit code."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    limit = raise_limit()
    limits = LogLimits()
    log_to(sys.stderr, limits)
    if limit < MIN_DESCRIPTORS:
        log.warning("few file descriptors: raise the limit of open files", limit=limit, least=MIN_DESCRIPTORS)
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # exempt imported modules: collecting them would stall the loop for 40 ms when the node is ready
    try:
        return uvloop.run(_serve_bounded(options, limits))
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except OSError as error:
        print(f"headrace: cannot start in {options.data}: {error}", file=sys.stderr)
        return EXIT_REFUSED
