"""Asks the operating system what systems answer differently: cores, core-seconds, memory, open files, forks, signals.

Linux answers everything here. Where macOS or Windows has no answer, a function returns what its docstring says, and no
other file looks at the platform. Files and folders are the concern of io.py and checked_files.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal


def _resource() -> ModuleType | None:
    """Return Python's module of resource limits, which Windows does not have."""
    try:
        import resource
    except ImportError:
        return None
    return resource


def usable_cores() -> int:
    """Return the number of cores that this process may use; of all cores where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_method() -> Literal["fork"] | None:
    """Return "fork" where new processes may be forked; None for the system's own way. Forks of macOS are not safe."""
    return "fork" if sys.platform == "linux" else None


def core_seconds(children: Iterable[int]) -> float:
    """Return the seconds that all cores have spent on this process, its ended children, and these living ones.

    Windows does not tell about children. macOS tells about children that have ended.
    """
    spent = time.process_time()
    if resource := _resource():
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent += ended.ru_utime + ended.ru_stime
    return spent + sum(map(_core_seconds_of, children))


def _core_seconds_of(process: int) -> float:
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):  # no /proc, or no sysconf
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def peak_memory() -> float | None:
    """Return the largest resident size of this process so far in bytes; None on Windows."""
    resource = _resource()
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def most_open_files() -> tuple[int, int] | None:
    """Return how many files this process may open now, and how many it may ask for; None if there is no such limit."""
    resource = _resource()
    if resource is None:
        return None
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return soft, hard


def allow_open_files(number: int) -> None:
    """Raise the limit of open files of this process to a number that `most_open_files` allows."""
    if resource := _resource():
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def lives(process: int) -> bool:
    """Return whether a process of this machine lives. On Windows True: there `os.kill` would end the process."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a program to end: Ctrl-C, SIGTERM, and the end of its terminal, unless the system has
    no such signal or the program ignores it (`nohup`)."""
    of_terminal = getattr(signal, "SIGHUP", None)
    heard = of_terminal is not None and signal.getsignal(of_terminal) != signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *((of_terminal,) if heard else ()))


@contextlib.contextmanager
def signals_held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Let these signals wait until the block ends. Processes that are forked in the block hold them back, too.

    The mask holds for this thread and for what it forks. Another thread, of a numeric library say, may still take a
    signal of the process, and Python would then call the handler here. So handlers of the block only note the signal,
    and it is sent again at the end. Windows delivers signals at once; there, and in threads other than the main one,
    which run no handlers, nothing is noted."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    noted: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        if threading.current_thread() is threading.main_thread():
            known = {number: signal.getsignal(number) for number in numbers}
            for number, handler in known.items():
                if handler not in (None, signal.SIG_IGN):  # None: set by another language, and not ours to replace
                    handlers[number] = handler
                    signal.signal(number, lambda got, _: noted.append(got))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for taken in dict.fromkeys(noted):
            signal.raise_signal(taken)
