"""`headrace topic`: creates and deletes topics by Kafka's admin APIs, lists and shows them by Headrace's."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from headrace.base.errors import Code
from headrace.cli.arguments import LARGEST_INT32
from headrace.cli.connect import Cluster, check, connected
from headrace.cli.formatting import described, rows_of
from headrace.cli.options import Bootstrap, DataFolder, Output, TopicName
from headrace.cli.output import OutputFormat, note, print_fields, print_json, print_line, print_table
from headrace.cli.topic_names import parse_settings
from headrace.wire.api_keys import ApiKey

app = typer.Typer(help="Create, list, show and delete topics.", no_args_is_help=True)

CREATE_VERSION: Final = 5
DELETE_VERSION: Final = 5
TIMEOUT_MS: Final = 30_000
PAGE: Final = 5_000
TopicNames = Annotated[list[str], typer.Argument(metavar="STREAM:TOPIC...", show_default=False)]


@app.command()
def create(
    topics: TopicNames,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, max=LARGEST_INT32, help="[default: the stream's]", show_default=False
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", metavar="NAME=VALUE", help="A topic config of Kafka's; may repeat", show_default=False
        ),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed where a topic exists")] = False,
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create topics.

    \b
    Example:
      headrace topic create /factory/sensors:press-7 --partitions 4
    """
    configs = parse_settings(config or [])
    with connected(bootstrap, data) as cluster:
        answers = create_topics(cluster, topics, partitions=partitions, configs=configs)
    made = [str(answer.name) for answer in answers if not answer.error_code]
    for answer in answers:
        if not (if_not_exists and int(answer.error_code) == Code.TOPIC_ALREADY_EXISTS):
            check(answer.error_code, answer.error_message, what=str(answer.name))
    if output is OutputFormat.JSON:
        print_json([{"topic": str(a.name), "partitions": int(a.num_partitions)} for a in answers if a.name in made])
    else:
        note(f"made {len(made)} topic{'' if len(made) == 1 else 's'}")


@app.command(name="list")
def list_topics(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="Path of the stream")] = "/default",
    prefix: Annotated[str, typer.Option("--prefix", help="Only topics with this prefix")] = "",
    bootstrap: Bootstrap = None,
    data: DataFolder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List a stream's topics, in order of name.

    With --output json it prints one object a line.

    \b
    Example:
      headrace topic list /factory/sensors
    """
    with connected(bootstrap, data) as cluster:
        for topic in _pages(cluster, stream, prefix):
            if output is OutputFormat.JSON:
                print_json(topic)
            else:
                print_line(f"{stream}:{topic['name']}")


@app.command()
def show(
    topic: TopicName, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """Show a topic: configs, leaders and offsets.

    \b
    Example:
      headrace topic show /factory/sensors:press-7
    """
    with connected(bootstrap, data) as cluster:
        shown = cluster.admin("topic.show", {"topic": topic})
    if output is OutputFormat.JSON:
        print_json(shown)
        return
    columns, rows, numbers = rows_of(shown.pop("partitions"))
    print_fields(described(shown))
    print_line()
    print_table(columns, rows, right=numbers)


@app.command()
def delete(
    topics: TopicNames, bootstrap: Bootstrap = None, data: DataFolder = None, output: Output = OutputFormat.TABLE
) -> None:
    """Delete topics and their records.

    \b
    Example:
      headrace topic delete /factory/sensors:press-7
    """
    with connected(bootstrap, data) as cluster:
        fields = {"topic_names": list(topics), "timeout": TIMEOUT_MS}
        answers = cluster.kafka(ApiKey.DELETE_TOPICS, DELETE_VERSION, fields).responses
    for answer in answers:
        check(answer.error_code, getattr(answer, "error_message", None), what=str(answer.name))
    if output is OutputFormat.JSON:
        print_json([{"deleted": str(answer.name)} for answer in answers])
    else:
        note(f"deleted {len(answers)} topic{'' if len(answers) == 1 else 's'}")


def create_topics(
    cluster: Cluster, topics: Sequence[str], *, partitions: int | None = None, configs: dict[str, str] | None = None
) -> Sequence[Any]:
    """Call Kafka's CreateTopics for all topics at once; the answer's topics, each with its error code."""
    pairs = [{"name": name, "value": value} for name, value in (configs or {}).items()]
    wanted = [
        {
            "name": topic,
            "num_partitions": partitions or -1,
            "replication_factor": -1,
            "assignments": [],
            "configs": pairs,
        }
        for topic in topics
    ]
    fields = {"topics": wanted, "timeout": TIMEOUT_MS, "validate_only": False}
    answers: Sequence[Any] = cluster.kafka(ApiKey.CREATE_TOPICS, CREATE_VERSION, fields).topics
    return answers


def create_missing(cluster: Cluster, topics: Sequence[str]) -> None:
    """Create the topics that do not exist yet, with the stream's defaults. Raises KafkaError."""
    for answer in create_topics(cluster, topics):
        if int(answer.error_code) != Code.TOPIC_ALREADY_EXISTS:
            check(answer.error_code, answer.error_message, what=str(answer.name))


def _pages(cluster: Cluster, stream: str, prefix: str) -> Iterator[dict[str, Any]]:
    after = ""
    while True:
        page = cluster.admin("topic.list", {"stream": stream, "prefix": prefix, "after": after, "limit": PAGE})
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1]["name"]
