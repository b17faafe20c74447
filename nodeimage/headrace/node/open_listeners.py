"""The check that listeners open to anybody are on loopback, unless `--allow-anonymous` allows them elsewhere. No
I/O."""

from collections.abc import Iterable

from headrace.base.admission import is_local
from headrace.security.listener_config import ListenerConfig, ListenersRefused


def check_open(
    address: str, *, named: Iterable[str], configured: Iterable[ListenerConfig], allowed: bool, secure: bool
) -> None:
    """Raise ListenersRefused for a listener at `address`, beyond loopback, that admits clients without proof of who
    they are.

    `named`: the listeners of `--listener`. `allowed`: `--allow-anonymous`. `secure`: access expressions decide what
    such clients may do, which is nothing unless an expression says so.
    """
    if allowed or secure or address == "localhost" or is_local(address):
        return
    listeners = list(configured)
    found = [] if any(each.is_main for each in listeners) else ["the listener of --port"]
    found += [f"--listener {name}" for name in named]
    found += [f"listener {each.name} ({each.protocol})" for each in listeners if each.lets_anybody_in]
    if found:
        raise ListenersRefused(
            f"{found[0]} lets anybody in who reaches {address}: make the cluster secure (--secure), have clients prove "
            'who they are (SASL, or SSL with client_auth = "required", in --listeners, with main = true for that of '
            "--port), or add --allow-anonymous"
        )
