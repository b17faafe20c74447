"""The options of librdkafka's clients for a measurement over TLS; what is not measured stays on the plain listener."""

import argparse
from pathlib import Path

from bench.certificates import Certificates


def add_tls_options(parse: argparse.ArgumentParser) -> None:
    """Add the options that `measured_connection` reads, beside `--bootstrap`."""
    parse.add_argument("--tls-bootstrap", help="the listener to measure, instead of --bootstrap")
    parse.add_argument("--certificates", type=Path, help="folder of certificates.py: authenticate as its user there")


def measured_connection(options: argparse.Namespace) -> dict[str, str]:
    """Return librdkafka's settings for the connections that are measured."""
    if options.tls_bootstrap is None:
        return {"bootstrap.servers": options.bootstrap}
    return {"bootstrap.servers": options.tls_bootstrap, **Certificates.found(options.certificates).librdkafka()}
