"""Turns the loss of a training process into one sentence that names it.

A process that ends closes its connections, and exchanges of the others fail at once. A process that hangs makes them
fail after `answer_within()`. Either way each of the others writes its rank to the store where processes met, waits a
few seconds for the ranks of its fellows, and names those that are missing. Nothing of this happens while all is well.
While others wait for the leading process, which may score for an hour, it writes to the store that it lives.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from dinorankclip.types import UserError

PATIENCE = timedelta(hours=3)  # for waits in which the leading process scores or writes, and others have nothing to do
ANSWER_WITHIN = timedelta(minutes=30)  # for exchanges in which all processes take part after the same amount of work
SECONDS = "DINORANKCLIP_ANSWER_SECONDS"  # environment variable instead of ANSWER_WITHIN
_ROLL_CALL = 4.0  # seconds
_LINGER = 1.0  # seconds for which process 0, which may keep the store, lets later callers finish
_BEAT = "beat"  # entry of the store: changes while the leading process works alone
_GO_ON = "start all processes again with the same command: the run resumes from its last checkpoint"


class LostProcess(UserError):
    """Reports that another process of the group ended or hangs."""


def answer_within() -> timedelta:
    """Return the time after which a process that takes no part in an exchange counts as hung."""
    text = os.environ.get(SECONDS, "")
    if not text:
        return ANSWER_WITHIN
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"{SECONDS}={text}: give a number of seconds, at least 1")
    return timedelta(seconds=int(text))


@contextlib.contextmanager
def noticing(store: dist.Store | None) -> Iterator[None]:
    """Raise `LostProcess` instead of the errors with which exchanges inside the block fail."""
    try:
        yield
    except RuntimeError as error:
        if not dist.is_initialized():
            raise
        hung = "imed out" in str(error) or "imeout" in str(error)
        missing = _missing(store, dist.get_rank(), dist.get_world_size())
        raise LostProcess(_sentence(missing, hung)) from error


@contextlib.contextmanager
def living(store: dist.Store | None) -> Iterator[None]:
    """Show in the store, from a thread, that this process lives while it works in the block."""
    ended = threading.Event()

    def beat() -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone, and with it who would look
            while store is not None and not ended.wait(_between_looks()):
                store.set(_BEAT, str(time.time_ns()))

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_for(leader: dist.Work, store: dist.Store | None) -> None:
    """Wait for what the leading process sends when its work is done, as long as that process lives."""
    begun = time.monotonic()
    watch = _Watch(store)
    while not leader.is_completed():
        now = time.monotonic()
        time.sleep(min(0.05, 0.001 + (now - begun) / 20))
        if store is not None and now - begun > _between_looks():
            watch.begin()
            if now - max(begun, watch.changed) > answer_within().total_seconds():
                raise LostProcess(_sentence([0], hung=True))
    watch.end()
    leader.wait()


class _Watch:
    """Looks from a thread when the leading process last showed that it lives: a look itself hangs if that process keeps
    the store."""

    def __init__(self, store: dist.Store | None) -> None:
        self.changed = 0.0  # by this process's clock
        self._store, self._ended = store, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def begin(self) -> None:
        if not self._thread.ident:
            self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread.ident:
            self._thread.join(_between_looks())

    def _look(self) -> None:
        last = b""
        with contextlib.suppress(RuntimeError):
            while self._store is not None and not self._ended.wait(_between_looks() / 4):
                beat = self._store.get(_BEAT) if self._store.check([_BEAT]) else b""
                if beat != last:
                    last, self.changed = beat, time.monotonic()


def _between_looks() -> float:
    return answer_within().total_seconds() / 4


def _sentence(missing: list[int], hung: bool) -> str:
    rank, size = dist.get_rank(), dist.get_world_size()
    names = f"process{'es' * (len(missing) > 1)} {', '.join(map(str, missing))}" if missing else "another process"
    have = "have" if len(missing) > 1 else "has"
    if hung:
        what = f"{names} of {size} {have} not answered for {answer_within().total_seconds():.0f} seconds"
        return f"{what}, so process {rank} stops too; end what is left of it, then {_GO_ON}"
    return f"{names} of {size} {have} ended, so process {rank} stops too; see the other's message, then {_GO_ON}"


def _missing(store: dist.Store | None, rank: int, size: int) -> list[int]:
    """Return the ranks that do not answer a roll call; empty if that cannot be found out."""
    if size == 2:
        return [1 - rank]
    found: list[list[int]] = []

    def call(store: dist.Store) -> None:
        others = [other for other in range(size) if other != rank]
        try:
            store.set(f"answers/{rank}", "here")
            deadline = time.monotonic() + _ROLL_CALL
            while others and time.monotonic() < deadline:
                time.sleep(0.1)
                others = [other for other in others if not store.check([f"answers/{other}"])]
        except RuntimeError:  # the process that keeps the store has ended, before its answer or after it
            if 0 in others:
                return
        found.append(others)

    if store is not None:
        caller = threading.Thread(target=call, args=(store,), daemon=True)  # waits for ever if that process hangs
        caller.start()
        caller.join(2 * _ROLL_CALL)
        if rank == 0:
            time.sleep(_LINGER)
    return found[0] if found else []
