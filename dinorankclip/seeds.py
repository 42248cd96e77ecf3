"""Named randomness: each part of a model draws from its own stream, so switching one off changes no other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager


def named_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on the run's seed and a name, the same on every machine and in every version."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@contextmanager
def drawing_from(seed: int, *names: str | int) -> Iterator[None]:
    """Within the block torch's global CPU generator is the named stream; afterwards it is as it was before."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(named_seed(seed, *names))  # torch.manual_seed would seed GPUs as well
        yield
