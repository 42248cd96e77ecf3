"""A study of a few seconds: two cells, two seeds, 64 scenes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dinorankclip.config import BudgetSettings, RecordSettings
from dinorankclip.presets import preset
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.study import Cell, Column, Experiment, Row, Scenes, Study
from tests.systems import demand_posix

FOLDER = Path("runs/study-tiny")
NO_CLASSES = dict.fromkeys(("kinds_train", "kinds_test", "fine_train", "fine_test"), 0)


def tiny(cells=None, seeds=2, epochs=2, **others) -> Study:
    scenes = Scenes("built/tiny", 64, 16, 16, NO_CLASSES)
    base = replace(
        preset("scenes"),
        data=f"{scenes.folder}/pairs",
        budget=BudgetSettings(batch=16, epochs=epochs, threads=1),
        record=RecordSettings(log_every=1, save_every=1, keep=1, tensorboard=False),
    )
    cells = cells or (Cell("clip", "clip"), Cell("rank-2", "rank", {"loss.order": 2}))
    table = experiment(*(cell.name for cell in cells))
    counts = {cell.name: seeds for cell in cells}
    whole = {"experiments": (table,), "pairs": 64, "scenes": scenes} | others
    return Study("tiny", "two cells", base, cells, counts, (scenes.folder + "/pairs",), **whole)


def experiment(*cells: str, unmatched: Mapping[str, tuple[str, ...]] | None = None) -> Experiment:
    rows = tuple(Row(name, name) for name in cells)
    return Experiment("table", "a table", rows, (Column("val/mean R@1", "R@1"),), cells[0], unmatched=unmatched or {})


def run_tiny(*flags: str) -> None:
    """`study run tiny` in a process of its own would import torch once more; its workers do that already."""
    from dinorankclip_studies.command import main

    STUDIES["tiny"] = tiny
    try:
        main(["run", "tiny", "--workers", "1", *flags])
    finally:
        del STUDIES["tiny"]


def start_tiny() -> subprocess.Popen:
    """The same as a process, to be killed."""
    script = "from tests.studies.studying import run_tiny; run_tiny()"
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, env=env)


def wait_for(condition, process: subprocess.Popen, timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline, "it did not get there in time"
        time.sleep(0.005)


def kill(pids: list[int]) -> None:
    demand_posix()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
