"""Runs commands of the project in forked children, with a fault planted in them.

The parent imports torch and the rooms once. A child is a fork of it, so a trial costs no start of Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinorankclip.commands.entry import in_words

PATIENCE = 90.0  # seconds after which a child counts as hung
ENV = "DINORANKCLIP_CHAOS_SHIM"  # set in a process that has the shim
_WRITES = ("w", "a", "+", "x")
_EVENTS = ("os.rename", "os.symlink", "os.mkdir", "os.remove", "os.truncate", "os.rmdir", "shutil.rmtree")
Plant = Callable[[Path], None]  # called in the child, with its folder, before its work
_effects: list[Callable[[], bool]] = []  # of planted faults that do not kill: whether they took effect


class Lost(Exception):
    """Reports that the project lost something, hung, or ended without words."""


@dataclass(frozen=True)
class Outcome:
    """Holds how a child ended: its exit status (None: killed by a signal), all it printed, and whether the fault that
    was planted in it took effect."""

    status: int | None
    text: str
    struck: bool = False

    def demand_words(self) -> None:
        """Demand that the child was killed, succeeded, or ended with an error in words."""
        if "Traceback (most recent call last)" in self.text:
            raise Lost(f"a traceback:\n{self.text[-3000:]}")
        if self.status not in (None, 0, 130, 143) and "error:" not in self.text and self.status != 1:
            raise Lost(f"status {self.status} without a word:\n{self.text[-2000:]}")


def start(work: Callable[[], Any], folder: Path, plant: Plant | None = None, **environment: str) -> int:
    """Fork a child that works in `folder` and prints to a file of its own there. Return its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 99
    with contextlib.suppress(BaseException):
        status = _in_child(work, folder, plant, environment)
    os._exit(status)


def _in_child(work: Callable[[], Any], folder: Path, plant: Plant | None, environment: dict[str, str]) -> int:
    os.environ.update(environment)
    os.chdir(folder)
    output = os.open(output_of(folder, os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    status = 0
    try:
        if plant is not None:
            plant(folder)
        work()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(bool(ending.code))
    except Exception as error:  # of work that is no command, and has no `main` to put it in words
        text = in_words(error)
        status = 1 if text is None else 2
        if text is None:
            traceback.print_exc()
        else:
            print(f"error: {text}")
    if any(took_effect() for took_effect in _effects):
        _mark_of(folder, os.getpid()).touch()
    disarm()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def output_of(folder: Path, child: int) -> Path:
    return folder.parent / f"{folder.name}.output-{child}"


def _mark_of(folder: Path, child: int) -> Path:
    """Return the file that a child leaves if its fault took effect."""
    return folder.parent / f"{folder.name}.output-{child}.struck"


def finish(child: int, folder: Path, seconds: float = PATIENCE, kill_after: float | None = None) -> Outcome:
    """Wait for a child, and kill it after `kill_after` seconds; a child that takes too long is lost."""
    begun, killed = time.monotonic(), False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        taken = time.monotonic() - begun
        if kill_after is not None and taken > kill_after and not killed:
            os.kill(child, signal.SIGKILL)
            killed = True
        if taken > seconds:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise Lost(f"it hangs: no end after {seconds:.0f} seconds\n{_text(folder, child)[-2000:]}")
        time.sleep(0.002)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    return Outcome(code, _text(folder, child), code is None or _mark_of(folder, child).exists())


def _text(folder: Path, child: int) -> str:
    path = output_of(folder, child)  # absent if the child was killed before its first line
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def run(
    work: Callable[[], Any],
    folder: Path,
    plant: Plant | None = None,
    kill_after: float | None = None,
    **environment: str,
) -> Outcome:
    return finish(start(work, folder, plant, **environment), folder, kill_after=kill_after)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# --- faults that are planted in a child


def count_events(into: Path) -> Plant:
    """Write the names of all changes of files below the child's folder to `into`, one a line."""

    def plant(folder: Path) -> None:
        lines = open(into, "a", buffering=1)  # noqa: SIM115 (for the life of the child)
        _watch(folder, lambda number, name: lines.write(f"{name}\n"))

    return plant


def kill_at(number: int) -> Plant:
    """Kill the child just before its change of a file with this number, the first being 1."""

    def plant(folder: Path) -> None:
        def look(count: int, name: str) -> None:
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

        _watch(folder, look)

    return plant


def _watch(folder: Path, look: Callable[[int, str], Any]) -> None:
    count, inside = 0, False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count, inside
        if inside or not args or not isinstance(args[0], str | bytes | os.PathLike):
            return
        writes = event == "open" and isinstance(args[1], str) and any(letter in args[1] for letter in _WRITES)
        if not writes and event not in _EVENTS:
            return
        inside = True
        path = os.path.abspath(os.fsdecode(args[0]))
        if path.startswith(f"{folder}{os.sep}"):
            count += 1
            look(count, f"{event} {os.path.relpath(path, folder)}")
        inside = False

    sys.addaudithook(hook)


FULL, WRITE_ERROR, FLUSH_ERROR, READ_ERROR, SHORT_READS, SLOW = 1, 2, 3, 4, 5, 6  # modes of shim.c


def has_shim() -> bool:
    return bool(os.environ.get(ENV))


def failing_disk(mode: int, countdown: int) -> Plant:
    def plant(folder: Path) -> None:
        shim = ctypes.CDLL(None)
        shim.chaos_arm(mode, os.fsencode(f"{folder}{os.sep}"), ctypes.c_long(countdown))
        _effects.append(lambda: bool(shim.chaos_struck()))

    return plant


def disarm() -> None:
    if has_shim():
        ctypes.CDLL(None).chaos_arm(0, b"", ctypes.c_long(0))


def jumping_clock(seconds: float, calls: int) -> Plant:
    """Let the clock of the wall jump by `seconds` after some looks at it."""

    def plant(folder: Path) -> None:
        real, count = time.time, 0

        def jumped() -> float:
            nonlocal count
            count += 1
            return real() + (seconds if count > calls else 0.0)

        time.time = jumped
        _effects.append(lambda: count > calls)

    return plant
