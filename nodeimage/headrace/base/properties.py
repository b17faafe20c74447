"""Java's properties, as the files of Kafka's clients have them. Pure."""

from headrace.base.errors import HeadraceError


def parse_properties(text: str) -> dict[str, str]:
    """What they say, by name.

    Raises HeadraceError for a line without `=`, and says nothing of the line: it may be a secret.
    """
    found: dict[str, str] = {}
    for line in text.replace("\r\n", "\n").replace("\\\n", "").splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise HeadraceError("a line of the credentials is not NAME=VALUE")
        found[name.strip()] = value.strip()
    return found
