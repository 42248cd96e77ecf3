"""Cost of trackers beside a training step: python -m bench.trackers --trackers tensorboard wandb mlflow trackio

A round takes some real steps of the preset scenes, and then sends their log line many times to each tracker. Both are
core-seconds of this process. The share is that of a line in the steps between two lines (`record.log_every`). A
tracker's own processes are counted apart, with its opening and closing, once a run.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from bench.harness import arguments, in_words, machine_now, options_record, today, write_dated
from dinorankclip.config import as_dict
from dinorankclip.given_settings import settings_from
from dinorankclip.train.assemble import assemble
from dinorankclip.train.loop import step_numbers
from dinorankclip.train.step import backward
from dinorankclip.train.trackers import TRACKERS, TrackedRun, chosen_trackers
from dinorankclip.types import Progress

STEPS, LINES = 3, 50  # of a round
WANTED = 0.002


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trackers", nargs="+", default=["tensorboard"], choices=list(TRACKERS))
    options = parser.parse_args(argv)
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")
    folder = Path(tempfile.mkdtemp()) / "run"
    folder.mkdir()
    os.environ["TRACKIO_DIR"] = str(folder)
    settings = settings_from(None, preset="scenes", budget={"threads": options.threads}, reading={"workers": 0})
    chosen_trackers(settings_from(settings, **{"record.trackers": options.trackers}).record)
    about, rounds = machine_now(options.threads), options.rounds or (2 if options.quick else 5)
    parts = assemble(settings)
    progress = Progress(500, 1000, 10)
    names = tuple(options.trackers)
    once, open_trackers = {}, {}
    for name in names:
        run = TrackedRun(folder, "bench", as_dict(settings), 0)
        once[name] = seconds(lambda name=name, run=run: open_trackers.__setitem__(name, TRACKERS[name].open(run)))
    shares: dict[str, list[float]] = {name: [] for name in names}
    lines: dict[str, list[float]] = {name: [] for name in names}
    steps, at = [], 0
    with closing(iter(parts.loader)) as batches:
        for number in range(rounds + 1):  # the first round warms up
            taken = {}

            def some_steps(taken: dict = taken) -> None:
                for _ in range(STEPS):
                    terms = backward(
                        parts.state.model, parts.state.objective, next(batches), progress, parts.placement, None, True
                    )
                    norm = parts.state.updater.step(progress, parts.state.model.logit_scale)
                taken["numbers"] = step_numbers(terms, norm, parts.state, progress)

            step = seconds(some_steps) / STEPS
            for name in names:

                def some_lines(tracker=open_trackers[name], start=at, numbers=taken["numbers"]) -> None:
                    for line in range(LINES):
                        tracker.log(start + line + 1, numbers)

                line = seconds(some_lines) / LINES
                if number:
                    lines[name].append(line)
                    shares[name].append(line / (settings.record.log_every * step))
            at += LINES
            if number:
                steps.append(step)
    for name in names:
        before = children()
        once[name] += seconds(open_trackers[name].close) + children() - before
    record = {
        "date": today(), "machine": about, "options": options_record(options), "step": statistics.median(steps),
        "numbers a line": len(taken["numbers"]), "log_every": settings.record.log_every, "wanted": WANTED,
        "trackers": {name: {"line": statistics.median(lines[name]), "shares": shares[name], "once": once[name]}
                     for name in names},
    }  # fmt: skip
    text = [
        f"# Trackers beside a step, {today()}", "", in_words(about) + ".", "",
        f"A step of the preset scenes (batch {settings.budget.batch}) takes {statistics.median(steps):.3g} "
        f"core-seconds; one line of {len(taken['numbers'])} numbers in {settings.record.log_every} steps is sent. "
        f"Wanted: at most {100 * WANTED:g} % of the steps. Medians (ranges) over {rounds} rounds.", "",
        "| tracker | a line, core-ms | share of the steps, % | reached | open and close, own processes included, s |",
        "| --- | --: | --: | --- | --: |",
        *(f"| {name} | {1000 * statistics.median(lines[name]):.3f} | {100 * statistics.median(shares[name]):.3f} "
          f"({100 * min(shares[name]):.3f}–{100 * max(shares[name]):.3f}) | "
          f"{'yes' if statistics.median(shares[name]) <= WANTED else 'NO'} | {once[name]:.2f} |" for name in names),
    ]  # fmt: skip
    write_dated(options.out, "trackers" + "-quick" * options.quick, today(), record, "\n".join(text))


if __name__ == "__main__":
    main()
