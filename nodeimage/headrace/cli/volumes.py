"""`headrace volume`: how many replicas, where, and when a record counts as acknowledged."""

from typing import Annotated, Any

import typer

from headrace.cli.admin import call
from headrace.cli.formatting import described, rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_table
from headrace.cli.topic_names import parse_settings
from headrace.cli.units import parse_size
from headrace.local.hints import quoted

app = typer.Typer(help="Set how many replicas there are, and on which nodes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="For example plant-a", show_default=False)]
Replicas = Annotated[
    int | None, typer.Option("--replicas", help="Replicas of each container: 1 to 9", show_default=False, metavar="N")
]
MinInSync = Annotated[
    int | None,
    typer.Option("--min-in-sync", help="Refuse writes with fewer replicas in sync", show_default=False, metavar="N"),
]
Spread = Annotated[
    str | None,
    typer.Option("--spread", help="Each replica on another host: preferred or required", show_default=False),
]
Zones = Annotated[
    str | None,
    typer.Option("--zones", metavar="A,B", help="Only nodes of these zones; any: all nodes", show_default=False),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="NAME=VALUE", help="Only nodes with all of these labels; any: all nodes", show_default=False
    ),
]
SizeLimit = Annotated[
    str | None, typer.Option("--size-limit", help="Limit for all its records: 500GiB, unlimited", show_default=False)
]
Durability = Annotated[
    str | None,
    typer.Option("--durability", help="Replicas acknowledge from disk or from memory: fsync, memory"),
]
ANY = "any"


@app.command()
def create(
    name: Name,
    replicas: Replicas = None,
    min_in_sync: MinInSync = None,
    spread: Spread = None,
    zones: Zones = None,
    label: Labels = None,
    size_limit: SizeLimit = None,
    durability: Durability = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a volume: how many replicas, and where.

    By default it has as many replicas as the default volume, and a majority of them as --min-in-sync.

    \b
    Example:
      headrace volume create scratch --replicas 1
    """
    fields = volume_fields(replicas, min_in_sync, spread, zones, label, size_limit, durability)
    _show(call(bootstrap, data, "volume.create", {"name": name, **fields}), output)
    note(f"made volume {name}; try `headrace stream create /my-stream --volume {quoted(name)}`")


@app.command(name="list")
def list_volumes(bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """List all volumes.

    \b
    Example:
      headrace volume list
    """
    volumes = call(bootstrap, data, "volume.list", {})
    if output is OutputFormat.JSON:
        print_json(volumes)
        return
    columns, rows, numbers = rows_of([_told(each) for each in volumes])
    print_table(columns, rows, right=numbers)


@app.command()
def show(name: Name, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """Show one volume, and which demands are not met.

    \b
    Example:
      headrace volume show default
    """
    _show(call(bootstrap, data, "volume.show", {"name": name}), output)


@app.command()
def alter(
    name: Name,
    replicas: Replicas = None,
    min_in_sync: MinInSync = None,
    spread: Spread = None,
    zones: Zones = None,
    label: Labels = None,
    size_limit: SizeLimit = None,
    durability: Durability = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change a volume; options left out keep their values.

    Its containers are changed one after the other: `headrace status` shows the progress.

    \b
    Example:
      headrace volume alter default --min-in-sync 1
    """
    fields = volume_fields(replicas, min_in_sync, spread, zones, label, size_limit, durability)
    if not fields:
        raise typer.BadParameter("give what to change, for example --replicas 3")
    _show(call(bootstrap, data, "volume.alter", {"name": name, **fields}), output)


def volume_fields(
    replicas: int | None,
    min_in_sync: int | None,
    spread: str | None,
    zones: str | None,
    labels: list[str] | None,
    size_limit: str | None,
    durability: str | None,
) -> dict[str, Any]:
    """The volume's fields that were given, in the cluster's words and units. Raises HeadraceError for an invalid
    value."""
    fields = {
        "replicas": replicas,
        "min_in_sync": min_in_sync,
        "spread": spread,
        "zones": None if zones is None else _zones(zones),
        "labels": None if labels is None else {} if labels == [ANY] else parse_settings(labels),
        "size_limit": None if size_limit is None else max(0, parse_size(size_limit)),
        "durability": durability,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _zones(text: str) -> list[str]:
    return [] if text == ANY else [zone.strip() for zone in text.split(",") if zone.strip()]


def _show(volume: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(volume)
    else:
        print_fields(described(_told(volume)))


def _told(volume: dict[str, Any]) -> dict[str, Any]:
    """The volume in the form for people: `-` for fields that are not set."""
    return {**volume, "zones": volume["zones"] or None, "labels": volume["labels"] or None}
