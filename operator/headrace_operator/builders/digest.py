"""A short digest of what is asked for, by which a change is detected. Pure."""

import hashlib
import json


def digest(of: object) -> str:
    """Return the digest of any value that JSON can hold; the order of a mapping's entries does not matter."""
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]
