"""Which ports the nodes of an embedded cluster listen on.

Without a requested port: those of the last start, for a new folder 9092 and the next ones; a taken port is replaced by
a free one. With a requested port: that one and the next ones, or an error. With 0: free ports.
"""

import time
from collections.abc import Sequence

from headrace.base.errors import HeadraceError
from headrace.local.processes import free_port, port_holder, port_is_free

DEFAULT_PORT = 9092
HIGHEST_PORT = 65_535
PORT_WAIT_S = 2.0
POLL_S = 0.02


class PortTaken(HeadraceError):
    """Another process listens on a requested port."""


class Ports:
    """Chooses ports, none twice. `notices`: lines for the user about ports that were replaced."""

    def __init__(self, host: str) -> None:
        self.notices: list[str] = []
        self._host = host
        self._chosen: set[int] = set()

    def choose(self, kept: Sequence[int | None], asked: int | None) -> tuple[int, ...]:
        """A port for each node; `kept`: the ports of their last starts, None for a new node.

        Raises PortTaken, also if there are not enough ports from `asked` on.
        """
        if asked == 0:
            return tuple(self._free() for _ in kept)
        if asked is not None:
            return self._from(asked, len(kept))
        ports: list[int] = []
        following = max((port + 1 for port in kept if port is not None), default=DEFAULT_PORT)
        for port in kept:
            ports.append(self._this_or_free(following if port is None else port, patient=port is not None))
            following = max(following, ports[-1] + 1)
        return tuple(ports)

    def next_to(self, port: int) -> int:
        """The port after `port` for one more node, or a free one."""
        return self._this_or_free(port + 1, patient=False)

    def _from(self, first: int, count: int) -> tuple[int, ...]:
        ports = tuple(range(first, first + count))
        if ports[-1] > HIGHEST_PORT:
            raise PortTaken(f"{count} nodes from port {first} on end above {HIGHEST_PORT}: name a lower --port")
        for port in ports:
            if not soon_free(self._host, port):
                holder = port_holder(port)
                by = f" by {holder}" if holder else ""
                raise PortTaken(f"port {port} is taken{by}: leave out --port, or name another")
        self._chosen.update(ports)
        return ports

    def _this_or_free(self, wanted: int, *, patient: bool) -> int:
        usable = wanted <= HIGHEST_PORT and wanted not in self._chosen
        if usable and (soon_free(self._host, wanted) if patient else port_is_free(self._host, wanted)):
            self._chosen.add(wanted)
            return wanted
        port = self._free()
        if usable:
            self.notices.append(f"port {wanted} is taken by {port_holder(wanted) or 'another process'}; using {port}")
        return port

    def _free(self) -> int:
        while (port := free_port(self._host)) in self._chosen:
            continue
        self._chosen.add(port)
        return port


def soon_free(host: str, port: int) -> bool:
    """Whether the port becomes free within a moment: leftovers of a killed node may hold it a little longer."""
    until = time.monotonic() + PORT_WAIT_S
    while not port_is_free(host, port):
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)
    return True
