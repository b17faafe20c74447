"""`headrace link`: streams that are copied from other clusters; and `move-home`, for topics and whole streams."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.base.errors import HeadraceError
from headrace.base.properties import parse_properties
from headrace.cli.admin import call
from headrace.cli.formatting import described, rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_line, print_table
from headrace.cli.units import parse_size
from headrace.local.hints import quoted
from headrace.security.client_security import of_security

app = typer.Typer(help="Copy streams of other clusters, at the same offsets.", no_args_is_help=True)

LIST_COLUMNS: Final = (
    *("name", "stream", "source", "source_stream", "state"),
    *("partitions", "lag_records", "lag_bytes", "lag_time", "problem"),
)
MOVED_COLUMNS: Final = ("topic", "home", "moved", "not_replicated", "error")
MOVE_TIMEOUT_S: Final = 600.0
FILES: Final = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.truststore.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}
"""Properties that name a file, and the properties that hold such a file's contents instead."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="A link: see `headrace link list`", show_default=False)]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topics", metavar="PATTERN", help="Topics to copy, by name, with * and ?; may repeat", show_default=False
    ),
]
Direction = Annotated[
    str | None,
    typer.Option("--direction", help="pull, or both: the source gets a link that pulls from here", show_default=False),
]
Reach = Annotated[
    str | None,
    typer.Option(
        "--reach", metavar="HOST:PORT,...", help="Address at which the source reaches this cluster", show_default=False
    ),
]
ForwardWrites = Annotated[
    bool | None,
    typer.Option(
        "--forward-writes/--no-forward-writes",
        help="Forward records produced to copies to the home",
        show_default=False,
    ),
]
Throttle = Annotated[
    str | None,
    typer.Option("--throttle", help="Most bytes per second on each node: 5MB, unlimited", show_default=False),
]
Credentials = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        help="File with client properties, like Kafka's --command-config; an empty file: none",
        show_default=False,
    ),
]

ReverseCredentials = Annotated[
    Path | None,
    typer.Option(
        "--reverse-credentials",
        metavar="FILE",
        help="With --direction both: as whom the source pulls from here, a user of this cluster with `copy`",
        show_default=False,
    ),
]


@app.command()
def create(
    source: Annotated[
        str,
        typer.Option(
            "--source", metavar="HOST:PORT,.../PATH", help="Where the stream is; without a path: Apache Kafka"
        ),
    ],
    target: Annotated[
        str | None, typer.Option("--target", metavar="PATH", help="[default: the source's path]", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="[default: from the source]", show_default=False)] = None,
    topics: Topics = None,
    direction: Direction = None,
    reach: Reach = None,
    forward_writes: ForwardWrites = None,
    throttle: Throttle = None,
    credentials: Credentials = None,
    reverse_credentials: ReverseCredentials = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed where the same link exists")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Copy a stream of another cluster into this one.

    Copies its topics, its records at their offsets and its cursors, and then everything that follows. Without a
    path the source is an Apache Kafka cluster.

    \b
    Example:
      headrace link create --source north:9092/factory/sensors
    """
    addresses, path = split_source(source)
    if not path and target is None:
        raise HeadraceError(
            "a source without a path is an Apache Kafka cluster; say with --target which stream it fills"
        )
    fields = link_fields(topics, direction, reach, forward_writes, throttle, credentials, reverse_credentials)
    fields |= {"source": addresses, "source_stream": path, "stream": target or path}
    if name is not None:
        fields["name"] = name
    if if_not_exists:
        fields["if_not_exists"] = True
    shown = call(bootstrap, data, "link.create", fields)
    _show(shown, output)
    note(f"made link {shown['name']}; `headrace link show {quoted(shown['name'])}` shows its progress")


@app.command(name="list")
def list_links(bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """List this cluster's links and their progress.

    \b
    Example:
      headrace link list
    """
    links = call(bootstrap, data, "link.list", {})
    if output is OutputFormat.JSON:
        print_json(links)
        return
    if not links:
        note("no links; `headrace link create --source HOST:PORT/PATH` makes one")
        return
    columns, rows, numbers = rows_of([_in_line(each) for each in links], LIST_COLUMNS)
    print_table(columns, rows, right=numbers)


@app.command()
def show(name: Name, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE) -> None:
    """Show a link: progress, refusals, what it set aside.

    \b
    Example:
      headrace link show NAME
    """
    _show(call(bootstrap, data, "link.show", {"name": name}), output)


@app.command()
def alter(
    name: Name,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="HOST:PORT,...",
            help="New addresses of the same cluster; give its --credentials again, if it has any",
            show_default=False,
        ),
    ] = None,
    topics: Topics = None,
    direction: Direction = None,
    reach: Reach = None,
    forward_writes: ForwardWrites = None,
    throttle: Throttle = None,
    credentials: Credentials = None,
    reverse_credentials: ReverseCredentials = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change a link; options left out keep their values.

    It continues where it was.

    \b
    Example:
      headrace link alter NAME --throttle 5MB
    """
    fields = link_fields(topics, direction, reach, forward_writes, throttle, credentials, reverse_credentials)
    if source is not None:
        fields["source"] = [each.strip() for each in source.split(",") if each.strip()]
    if not fields:
        raise typer.BadParameter("give what to change, for example --topics 'pump-*'")
    _show(call(bootstrap, data, "link.alter", {"name": name, **fields}), output)


@app.command()
def pause(
    name: Name, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """Pause a link: it copies nothing until it is resumed.

    \b
    Example:
      headrace link pause NAME
    """
    _show(call(bootstrap, data, "link.pause", {"name": name}), output)


@app.command()
def resume(
    name: Name, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """Resume a paused link where it was.

    \b
    Example:
      headrace link resume NAME
    """
    _show(call(bootstrap, data, "link.resume", {"name": name}), output)


@app.command()
def delete(
    name: Name, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """Delete a link; what it copied stays, as a copy.

    `headrace stream move-home` makes this cluster the home of the copy.

    \b
    Example:
      headrace link delete NAME
    """
    call(bootstrap, data, "link.delete", {"name": name})
    if output is OutputFormat.JSON:
        print_json({"deleted": name})
    else:
        note(f"deleted link {name}; its copies stay")


@app.command()
def adopt(
    name: Name,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="[default: all that clash]", show_default=False)
    ] = None,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Follow the source's topics where names clash.

    The source is the home of topics that this cluster has too. This cluster's records are set aside into
    TOPIC.diverged, and the topic follows the source.

    \b
    Example:
      headrace link adopt NAME press-7
    """
    fields: dict[str, Any] = {"name": name}
    if topics:
        fields["topics"] = topics
    adopted = call(bootstrap, data, "link.adopt", fields, timeout_s=MOVE_TIMEOUT_S)
    if output is OutputFormat.JSON:
        print_json(adopted)
        return
    columns, rows, numbers = rows_of(adopted, ("topic", "records", "into", "error"))
    print_table(columns, rows, right=numbers)
    _fail_if_any(adopted)


# --- moving home


To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="CLUSTER",
        help="Id of the new home [default: the cluster that the command talks to]",
        show_default=False,
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Take over without the present home; records that were not replicated stay there"),
]


def move_home(
    stream: str, topics: list[str] | None, to: str | None, force: bool, bootstrap: Bootstrap, data: DataFolder
) -> list[dict[str, Any]]:
    """Move the home of a stream's topics; the result for each topic."""
    fields: dict[str, Any] = {"stream": stream}
    if topics is not None:
        fields["topics"] = topics
    if to is not None:
        fields["to"] = to
    if force:
        fields["force"] = True
    moved: list[dict[str, Any]] = call(bootstrap, data, "home.move", fields, timeout_s=MOVE_TIMEOUT_S)
    return moved


def move_topic_home(
    topic: Annotated[str, typer.Argument(metavar="STREAM:TOPIC", show_default=False)],
    to: To = None,
    force: Force = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Move a topic's home, the cluster that accepts writes.

    It moves to the cluster that the command talks to, or to another with --to.

    \b
    Example:
      headrace topic move-home /factory/sensors:press-7
    """
    stream, colon, name = topic.rpartition(":")
    if not colon or not name:
        raise HeadraceError(f"{topic!r} names no topic: write STREAM:TOPIC")
    _show_moved(move_home(stream or "/default", [name], to, force, bootstrap, data), output)


def move_stream_home(
    path: Annotated[str, typer.Argument(metavar="PATH", help="For example /factory/sensors", show_default=False)],
    to: To = None,
    force: Force = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Move the home of all topics of a stream.

    The home is the cluster that accepts writes to a topic. It moves to the cluster that the command talks to, or to
    another with --to.

    \b
    Examples:
      headrace stream move-home /factory/sensors
      headrace stream move-home /factory/sensors --force
    """
    _show_moved(move_home(path, None, to, force, bootstrap, data), output)


def _show_moved(moved: list[dict[str, Any]], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(moved)
        return
    columns, rows, numbers = rows_of([move_row(each) for each in moved], MOVED_COLUMNS)
    print_table(columns, rows, right=numbers)
    count = sum(bool(each["moved"]) for each in moved)
    note(f"moved {count} topic{'' if count == 1 else 's'}, {len(moved) - count} left as they were")
    if problem := move_problem(moved):
        raise HeadraceError(problem)


def move_problem(moved: list[dict[str, Any]]) -> str:
    """What is wrong with moved topics, "" if nothing is: how many could not be moved, how many were moved but are not
    complete, and the first of each."""
    found = [each for each in moved if each.get("error")]
    failed = [each for each in found if not each["moved"]]
    incomplete = [each for each in found if each["moved"]]
    problems = [_problem(failed, of=moved, what="failed")] if failed else []
    if incomplete:
        problems.append(_problem(incomplete, of=moved, what="moved, but not completely"))
    return "; ".join(problems)


def move_row(moved: dict[str, Any]) -> dict[str, Any]:
    """A moved topic as a table shows it. After a forced move it may be unknown what was not replicated."""
    missing = moved.get("not_replicated")
    return {**moved, "not_replicated": "unknown" if missing is None and moved["moved"] else missing}


def _fail_if_any(results: list[dict[str, Any]]) -> None:
    failed = [each for each in results if each.get("error")]
    if failed:
        raise HeadraceError(_problem(failed, of=results, what="failed"))


def _problem(found: list[dict[str, Any]], *, of: list[dict[str, Any]], what: str) -> str:
    return f"{len(found)} of {len(of)} {what}: {found[0]['topic']}: {found[0]['error']}"


# --- options, and output


def split_source(source: str) -> tuple[list[str], str]:
    """Split `a:9092,b:9092/path/of/stream` into its addresses and its path, "" for none. Raises HeadraceError."""
    addresses, slash, path = source.partition("/")
    if (slash and not path) or not addresses.strip():
        raise HeadraceError(f"{source!r} is not a source: write HOST:PORT/PATH, for example north:9092/factory/sensors")
    return [each.strip() for each in addresses.split(",") if each.strip()], f"/{path}" if slash else ""


def link_fields(
    topics: list[str] | None,
    direction: str | None,
    reach: str | None,
    forward_writes: bool | None,
    throttle: str | None,
    credentials: Path | None,
    reverse_credentials: Path | None = None,
) -> dict[str, Any]:
    """The link's fields that were given, in the cluster's words and units. Raises HeadraceError for an invalid
    value."""
    fields = {
        "topics": None if not topics else [part for each in topics for part in each.split(",") if part],
        "direction": direction,
        "bootstrap": None if reach is None else [each.strip() for each in reach.split(",") if each.strip()],
        "forward_writes": forward_writes,
        "throttle": None if throttle is None else max(0, parse_size(throttle.removesuffix("/s"))),
        "credentials": None if credentials is None else _properties(credentials),
        "reverse_credentials": None if reverse_credentials is None else _with_files(_properties(reverse_credentials)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _properties(path: Path) -> dict[str, str]:
    return of_security(parse_properties(_text(path)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise HeadraceError(f"{path} is not UTF-8: {error}") from error


def _with_files(properties: dict[str, str]) -> dict[str, str]:
    """The properties with the contents of the files that they name, since the nodes that receive them do not have these
    files. Raises OSError, HeadraceError."""
    found = dict(properties)
    for location, pem in FILES.items():
        path = found.pop(location, None)
        if path is not None:
            found[pem] = _text(Path(path))
    return found


def _show(link: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json(link)
        return
    inside = {"refused", "blocked", "diverged"}
    print_fields(described(link_row({name: value for name, value in link.items() if name not in inside})))
    for title in ("refused", "blocked", "diverged"):
        if link.get(title):
            columns, rows, numbers = rows_of(link[title])
            print_line()
            print_table(columns, rows, title=title, right=numbers)


def link_row(link: dict[str, Any]) -> dict[str, Any]:
    """A link in the form for people."""
    shown = dict(link)
    seconds = shown.pop("lag_seconds", None)
    throttle = shown.pop("throttle", 0)
    failed_ms = shown.pop("last_error_ms", None)
    return {
        **shown,
        "lag_time": None if seconds is None else f"{seconds:.1f} s",
        "throttle_bytes": throttle or None,
        "last_error_at_ms": failed_ms,
    }


def _in_line(link: dict[str, Any]) -> dict[str, Any]:
    problem = link.get("last_error") or (f"{len(link['refused'])} topics refused" if link.get("refused") else None)
    return {**link_row(link), "source": ",".join(link["source"]), "problem": problem}
