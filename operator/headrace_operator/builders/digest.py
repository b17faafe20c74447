"""A short name for what is asked for, by which a change of it is noticed. Pure."""

import hashlib
import json


def digest(of: object) -> str:
    """Of anything that JSON can say; the order of a mapping's entries does not count."""
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]
