"""Named randomness: each part of a model draws from its own stream, so switching one off changes no other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


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


# -------- draws
# Random numbers that depend on *where* a sample stands, not on what was drawn before it.
#
# Philox is a counter-based generator: key and counter name a point of its stream. We put (seed, purpose) in the
# key and (epoch, index, attempt) in the counter, so any process or worker can make the generator of any sample
# without visiting the samples before it. The lowest word of the counter is left to the generator itself.

# What the numbers are for. Different purposes never share a stream, so that switching one off moves no other.
ORDER, VIEW, CAPTION, REPLACEMENT, SHARDS = range(5)

_WORD = (1 << 64) - 1


def _philox(seed: int, purpose: int, epoch: int, index: int, attempt: int) -> np.random.Philox:
    key = np.array([seed & _WORD, purpose], dtype=np.uint64)
    counter = np.array([0, attempt, index, epoch], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter)


def generator(seed: int, purpose: int, epoch: int, index: int, attempt: int = 0) -> np.random.Generator:
    """The generator of one sample, for one purpose."""
    return np.random.Generator(_philox(seed, purpose, epoch, index, attempt))


def permutation(seed: int, epoch: int, size: int, purpose: int = ORDER) -> np.ndarray:
    """The order in which an epoch visits `size` samples.

    Sorting raw 64-bit draws rather than `Generator.permutation`: numpy promises that the raw stream never
    changes, so a run can be resumed after numpy was updated. Equal draws are kept in order by the stable sort.
    """
    return np.argsort(_philox(seed, purpose, epoch, 0, 0).random_raw(size), kind="stable")


def below(draws: np.random.Generator, limit: int) -> int:
    """A whole number in 0 … limit-1. (`Generator.integers` may change between numpy versions; this does not.)"""
    return min(int(draws.random() * limit), limit - 1)
