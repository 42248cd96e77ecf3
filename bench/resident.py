"""What a process holds in memory, now and at the most. From /proc, since getrusage's maximum survives exec: a child
would start at its parent's peak.
"""

from __future__ import annotations

from pathlib import Path


def resident(which: str) -> int:
    """Bytes of this process in memory: now (VmRSS) or at the most (VmHWM). 0 where there is no /proc."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    return 1024 * int(next(line for line in status.read_text().splitlines() if line.startswith(which)).split()[1])


def forget_peak() -> None:
    reset = Path("/proc/self/clear_refs")
    if reset.is_file():
        reset.write_text("5")  # see proc(5): resets the peak resident set size
