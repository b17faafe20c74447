"""One of Headrace's own calls, for commands that make just that one."""

from typing import Any

from headrace.cli.options import Bootstrap, DataFolder


def call(
    bootstrap: Bootstrap, data: DataFolder, method: str, params: dict[str, Any], *, timeout_s: float | None = None
) -> Any:
    """Its result. `timeout_s`: None means as for any other. Raises HeadraceError."""
    from headrace.cli.connect import TIMEOUT_S, connected  # what a client needs, `--help` does not wait for

    with connected(bootstrap, data, timeout_s=timeout_s or TIMEOUT_S) as cluster:
        return cluster.admin(method, params)
