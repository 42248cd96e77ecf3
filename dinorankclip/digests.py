"""Short stable names for combinations of values: of data, models, settings, whatever is kept on disk under one."""

from __future__ import annotations

import hashlib


def digest(*parts: object) -> str:
    """A short stable name for a combination of values."""
    summary = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        summary.update(len(data).to_bytes(8, "little") + data)
    return summary.hexdigest()
