"""What figures depend on beside the code. No names of hosts or folders: a record may be published."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "open_clip_torch", "torchvision", "pillow", "simplejpeg", "webdataset")
LOAD = "load at the start"


def machine(threads: int, packages: Sequence[str] = PACKAGES) -> dict[str, object]:
    """What stays from run to run."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "versions": {name: version(name) for name in packages},
    }


def machine_now(threads: int, packages: Sequence[str] = PACKAGES) -> dict[str, object]:
    """With what else the machine has to do; to be asked before the first timing."""
    return machine(threads, packages) | {LOAD: load()}


def load() -> float:
    return round(os.getloadavg()[0], 2)


def in_words(about: dict) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in about["versions"].items())
    busy = f", {LOAD} {about[LOAD]}" if LOAD in about else ""
    return f"{about['processor']}, {about['cores']} cores, {about['threads']} torch threads{busy}; {versions}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
