"""Names random streams: each part of a model draws from its own, so switching a part off changes no other part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager


def named_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed for a run's seed and a name, the same on every machine and in every version."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@contextmanager
def drawing_from(seed: int, *names: str | int) -> Iterator[None]:
    """Replace torch's global CPU generator by the named stream for the length of the block."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(named_seed(seed, *names))  # torch.manual_seed would seed GPUs as well
        yield
