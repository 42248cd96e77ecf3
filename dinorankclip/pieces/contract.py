"""Defines work in pieces, its name for processes that were started elsewhere, and the choice of a runner."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dinorankclip.types import UserError

Progress = Callable[[float], object]  # gets the items that were done since the last call


class Pieces(ABC):
    """Numbered pieces of work, opened in this process."""

    title: str  # names the progress bar
    unit: str = "item"
    identity: str  # a digest of all that the pieces depend on: every worker must see the same

    @property
    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """Return the items of each piece."""

    @abstractmethod
    def missing(self) -> list[int]:
        """Return the numbers of the pieces that are not there, in the order in which they are best made."""

    @abstractmethod
    def make(self, number: int, progress: Progress) -> None:
        """Compute a piece and commit it. Any number of processes may do so at once, even with the same piece."""

    def prepare(self) -> None:  # noqa: B027 (most work needs no preparation)
        """Do what the first piece needs. Only the leading process does so, if a piece is missing."""

    def gather(self) -> None:  # noqa: B027 (most work has nothing to join)
        """Join what is there. Only the leading process does so: after pieces were made, and at the end."""


@dataclass(frozen=True)
class Work:
    """Names pieces for other processes. Names, settings and counts travel: neither weights nor pixels nor rows.

    `opener` is "module:function" of a function that takes `settings` (whatever JSON holds) and returns `Pieces`.
    """

    opener: str
    settings: dict[str, Any]
    device: str = "auto"

    def open(self) -> Pieces:
        module, _, function = self.opener.partition(":")
        return getattr(importlib.import_module(module), function)(self.settings)


@dataclass(frozen=True)
class RaySettings:
    """Sets which Ray makes the pieces, and with what."""

    address: str | None = None
    """A running cluster: HOST:PORT, or auto on one of its machines. Without it Ray starts on this machine alone, and
    ends with the command."""
    cores: int = 1
    """Cores of each worker."""


@dataclass(frozen=True)
class SlurmSettings:
    """Sets where and how an array job runs."""

    partition: str | None = None
    account: str | None = None
    hours: float = 24.0
    """Time limit of an element; work that needs longer continues when it is submitted again."""
    cpus: int = 16
    """For each GPU process."""
    memory_gb: int = 64
    """For each GPU process."""
    parallel: int = 16
    """Elements of the array that run at a time."""
    cluster: Literal["slurm", "local", "debug"] = "slurm"
    """local and debug run the elements on this machine, as a trial."""


@dataclass(frozen=True)
class Where:
    """Sets who makes the pieces of long work. All workers must see data, model and output under the same paths."""

    on: Literal["here", "slurm", "ray"] = "here"
    """Who makes the pieces: this process (or the ranks of torchrun), an array job, or workers of Ray (extra ray)."""
    workers: int | None = None
    """Workers of slurm or ray; by default --slurm.parallel, or all of Ray's GPUs, or all its cores without a GPU."""
    ray: RaySettings = field(default_factory=RaySettings)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)

    def __post_init__(self) -> None:
        for name, number in (("workers", self.workers), ("ray.cores", self.ray.cores)):
            if number is not None and number < 1:
                raise UserError(f"--{name} {number}: at least 1")


HERE = Where()
