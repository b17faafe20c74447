"""`headrace stream`: sets of topics with one policy."""

from typing import Annotated, Any

import typer

from headrace.cli.access_options import (
    Admin,
    Consume,
    Copy,
    Produce,
    Topic,
    expressions,
    items,
    print_warnings,
    split_warnings,
)
from headrace.cli.admin import call
from headrace.cli.formatting import described
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_table
from headrace.cli.units import parse_duration, parse_size, show_duration, show_size
from headrace.local.hints import quoted

app = typer.Typer(help="Create, list, show, alter and delete streams.", no_args_is_help=True)

Path = Annotated[str, typer.Argument(metavar="PATH", help="For example /factory/sensors", show_default=False)]
Ttl = Annotated[str | None, typer.Option("--ttl", help="Time to live of records: 12h, 7d, forever", show_default=False)]
Retention = Annotated[
    str | None, typer.Option("--retention-bytes", help="Limit per partition: 10GiB, unlimited", show_default=False)
]
Partitions = Annotated[
    int | None,
    typer.Option("--partitions", min=1, help="Partitions of topics created without a number", show_default=False),
]
AutoCreate = Annotated[
    bool | None, typer.Option("--auto-create/--no-auto-create", help="Create topics on first use", show_default=False)
]
MaxMessage = Annotated[str | None, typer.Option("--max-message", help="Largest record batch: 1MiB", show_default=False)]
TimestampType = Annotated[
    str | None, typer.Option("--timestamp-type", help="CreateTime or LogAppendTime", show_default=False)
]
Volume = Annotated[
    str | None,
    typer.Option("--volume", help="The volume that holds its records: `headrace volume`", show_default=False),
]
Description = Annotated[str | None, typer.Option("--description", show_default=False, help="Free text")]


@app.command()
def create(
    path: Path,
    ttl: Ttl = None,
    retention_bytes: Retention = None,
    partitions: Partitions = None,
    auto_create: AutoCreate = None,
    max_message: MaxMessage = None,
    timestamp_type: TimestampType = None,
    volume: Volume = None,
    description: Description = None,
    produce: Produce = None,
    consume: Consume = None,
    topic: Topic = None,
    copy: Copy = None,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a stream, a set of topics with one policy.

    By default records are kept for ever, and topics are created by their first record, with one partition each.
    While security is on the stream is yours alone, unless expressions let others in: `--produce 'u:alice |
    g:sensors'`.

    \b
    Example:
      headrace stream create /factory/sensors --ttl 7d --partitions 2
    """
    policy = _policy(ttl, retention_bytes, partitions, auto_create, max_message, timestamp_type, volume, description)
    params: dict[str, Any] = {"path": path, "policy": policy}
    if access := expressions(produce, consume, topic, copy, admin):  # older nodes lack the parameter
        params["access"] = access
    _show(split_warnings(call(bootstrap, data, "stream.create", params)), output)
    note(f"made {path}; try `headrace produce {quoted(f'{path}:my-topic')}`")


@app.command(name="list")
def list_streams(bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """List all streams.

    \b
    Example:
      headrace stream list
    """
    streams = call(bootstrap, data, "stream.list", {})
    if output is OutputFormat.JSON:
        print_json(streams)
        return
    print_table(
        ("stream", "ttl", "retention", "partitions", "auto-create", "topics"),
        (
            (
                stream["path"],
                show_duration(stream["ttl_ms"]),
                show_size(stream["retention_bytes"]),
                stream["default_partitions"],
                "yes" if stream["auto_create"] else "no",
                stream.get("topics"),
            )
            for stream in streams
        ),
        right=("partitions", "topics"),
    )


@app.command()
def show(path: Path, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """Show a stream: policy, sizes, links into it.

    \b
    Example:
      headrace stream show /factory/sensors
    """
    shown = call(bootstrap, data, "stream.show", {"path": path, "figures": True})
    links = [each for each in call(bootstrap, data, "link.list", {}) if each["stream"] == path]
    if links:
        shown["links"] = [f"{each['name']} ({each['state']})" for each in links]
    _show(shown, output)


@app.command()
def alter(
    path: Path,
    ttl: Ttl = None,
    retention_bytes: Retention = None,
    partitions: Partitions = None,
    auto_create: AutoCreate = None,
    max_message: MaxMessage = None,
    timestamp_type: TimestampType = None,
    volume: Volume = None,
    description: Description = None,
    produce: Produce = None,
    consume: Consume = None,
    topic: Topic = None,
    copy: Copy = None,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change a stream; options left out keep their values.

    \b
    Example:
      headrace stream alter /factory/sensors --ttl 30d
    """
    changes = _policy(ttl, retention_bytes, partitions, auto_create, max_message, timestamp_type, volume, description)
    access = expressions(produce, consume, topic, copy, admin)
    if not changes and not access:
        raise typer.BadParameter("give what to change, for example --ttl 7d")
    if access:  # first, since an invalid expression is refused
        print_warnings(call(bootstrap, data, "access.set", {"items": items(path, access)}))
    _show(call(bootstrap, data, "stream.alter", {"path": path, "changes": changes}), output)


@app.command()
def delete(
    path: Path,
    force: Annotated[bool, typer.Option("--force", help="Delete its topics and their records too")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a stream.

    A stream that has topics is only deleted with --force.

    \b
    Example:
      headrace stream delete /factory/sensors --force
    """
    call(bootstrap, data, "stream.delete", {"path": path, "force": force})
    if output is OutputFormat.JSON:
        print_json({"deleted": path})
    else:
        note(f"deleted {path}")


def _policy(
    ttl: str | None,
    retention_bytes: str | None,
    partitions: int | None,
    auto_create: bool | None,
    max_message: str | None,
    timestamp_type: str | None,
    volume: str | None,
    description: str | None,
) -> dict[str, Any]:
    """The policy's fields that were given, in the catalog's words and units."""
    fields = {
        "ttl_ms": None if ttl is None else parse_duration(ttl),
        "retention_bytes": None if retention_bytes is None else parse_size(retention_bytes),
        "default_partitions": partitions,
        "auto_create": auto_create,
        "max_message_bytes": None if max_message is None else parse_size(max_message),
        "timestamp_type": timestamp_type,
        "volume": volume,
        "description": description,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _show(stream: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(stream)
    else:
        print_fields(described(stream))
