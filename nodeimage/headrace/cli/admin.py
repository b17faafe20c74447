"""A single call of Headrace's admin API, for commands that make just one."""

from typing import Any

from headrace.cli.options import Bootstrap, DataFolder


def call(
    bootstrap: Bootstrap, data: DataFolder, method: str, params: dict[str, Any], *, timeout_s: float | None = None
) -> Any:
    """The call's result. `timeout_s`: None: the default. Raises HeadraceError."""
    from headrace.cli.connect import TIMEOUT_S, connected  # imported late, so that `--help` does not wait for it

    with connected(bootstrap, data, timeout_s=timeout_s or TIMEOUT_S) as cluster:
        return cluster.admin(method, params)
