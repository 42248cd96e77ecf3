"""The kinds of faults: each is a function of a trial that raises `Lost` if the project lost anything.

After a fault the same command is given again. It must succeed and leave what the undisturbed command leaves, bit for
bit. A damaged file may be refused instead, in words that name it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.chaos import children
from tools.chaos.children import Lost, Plant
from tools.chaos.jobs import Job, Stage


@dataclass
class Trial:
    """Holds what a kind may use: the stage, a folder of its own (not made yet), and random numbers of its own. Counts
    what happened: faults that took effect, and kills of training whose weights are compared at the end."""

    stage: Stage
    folder: Path
    draws: random.Random
    struck: int = 0
    kills_of_training: int = 0

    def begin(self, job: Job) -> Path:
        return self.stage.lay_out(self.folder, job.needs)

    def count(self, outcome: children.Outcome, job: Job | None = None) -> children.Outcome:
        """Count the fault of a child, if it took effect; return the child's outcome."""
        self.struck += outcome.struck
        self.kills_of_training += outcome.status is None and job is not None and job.trains
        return outcome


Kind = Callable[[Trial], None]
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def demand_result(trial: Trial, job: Job) -> None:
    """Give the command again, undisturbed; demand success and the expected result."""
    if job.once and job.result(trial.folder) == job.expected:
        return
    outcome = children.run(job.work, trial.folder)
    outcome.demand_words()
    if outcome.status != 0:
        raise Lost(f"the same command does not go on (status {outcome.status}):\n{outcome.text[-2000:]}")
    found = job.result(trial.folder)
    if found != job.expected:
        raise Lost(f"another result than undisturbed: {found[:200]} instead of {job.expected[:200]}")
    left = sorted(path.name for path in trial.folder.iterdir() if path.name.endswith((".unfinished", ".lock", ".old")))
    if left:
        raise Lost(f"left behind: {', '.join(left)}")


def disturbed(trial: Trial, job: Job, plant: Plant | None, kill_after: float | None = None) -> children.Outcome:
    trial.begin(job)
    outcome = trial.count(children.run(job.work, trial.folder, plant, kill_after), job)
    outcome.demand_words()
    if job.name == "export" and not (trial.folder / "run").exists():
        raise Lost("the source of an export is gone")
    return outcome


def kill_at_a_point(name: str) -> Kind:
    def kind(trial: Trial) -> None:
        job = trial.stage.jobs[name]
        disturbed(trial, job, children.kill_at(trial.draws.randint(1, job.events)))
        while trial.draws.random() < 0.4:  # another kill, during the resumption
            again = children.run(job.work, trial.folder, children.kill_at(trial.draws.randint(1, job.events)))
            trial.count(again, job).demand_words()
        demand_result(trial, job)

    return kind


def kill_at_a_moment(name: str) -> Kind:
    def kind(trial: Trial) -> None:
        job = trial.stage.jobs[name]
        disturbed(trial, job, None, kill_after=trial.draws.uniform(0, 1.1 * job.seconds))
        demand_result(trial, job)

    return kind


def replacing_export(trial: Trial) -> None:
    """A kill while an export replaces an older one leaves one of the two, whole."""
    job = trial.stage.jobs["export"]
    trial.stage.lay_out(trial.folder, ("run", "exported"))
    trial.count(children.run(job.work, trial.folder, children.kill_at(trial.draws.randint(1, job.events + 3))))
    if not (trial.folder / "exported" / "model.json").is_file():
        raise Lost("neither the old nor the new export is there")
    demand_result(trial, job)


def signals(*names: str) -> Kind:
    """SIGTERM, Ctrl-C or the end of the terminal, once or twice: the command ends, and when given again goes on."""

    def kind(trial: Trial) -> None:
        job = trial.stage.jobs[trial.draws.choice(names)]
        trial.begin(job)
        child = children.start(job.work, trial.folder)
        sent = [trial.draws.choice(STOPS)]
        if trial.draws.random() < 0.4:
            sent.append(trial.draws.choice(STOPS))
        time.sleep(trial.draws.uniform(0, job.seconds))
        for number in sent:
            os.kill(child, number)  # the child is not waited for yet, so its id is its own
            time.sleep(trial.draws.choice([0, 0.002, 0.05]))
        outcome = children.finish(child, trial.folder)
        outcome.demand_words()
        trial.struck += outcome.status != 0
        if outcome.status not in (None, 0, *(128 + number for number in STOPS)):
            raise Lost(f"status {outcome.status} after a signal:\n{outcome.text[-1500:]}")
        demand_result(trial, job)

    return kind


def two_at_once(trial: Trial) -> None:
    """The same command twice at the same time: each ends as if alone, or says in words that the other one works."""
    job = trial.stage.jobs[trial.draws.choice(["train", "score", "cache", "embed", "export", "index", "make", "pack",
                                               "report", "study"])]  # fmt: skip
    trial.begin(job)
    first = children.start(job.work, trial.folder)
    time.sleep(trial.draws.choice([0, 0.2, 0.8]) * job.seconds)
    second = children.start(job.work, trial.folder)
    for child in (first, second):
        outcome = children.finish(child, trial.folder)
        outcome.demand_words()
        if outcome.status not in (0, 2):
            raise Lost(f"status {outcome.status} beside the same command:\n{outcome.text[-1500:]}")
    trial.struck += 1
    demand_result(trial, job)


def search_after_a_killed_server(trial: Trial) -> None:
    """A killed server leaves a note for `search`, which must not wait for it."""
    serve, index = trial.stage.jobs["serve"], trial.stage.jobs["index"]
    trial.begin(serve)
    trial.count(children.run(serve.work, trial.folder, kill_after=trial.draws.uniform(0.2, 1.0) * serve.seconds))
    demand_result(trial, index)


def failing_disk(mode: int, *names: str) -> Kind:
    def kind(trial: Trial) -> None:
        job = trial.stage.jobs[trial.draws.choice(names)]
        outcome = disturbed(trial, job, children.failing_disk(mode, trial.draws.randint(0, 3 * job.events)))
        if mode == children.FULL and outcome.status == 2 and not _names_a_file(outcome.text):
            raise Lost(f"the message of a full disk names no file:\n{outcome.text[-1500:]}")
        if outcome.status == 0 and job.result(trial.folder) != job.expected:
            raise Lost("success was reported, with another result")
        demand_result(trial, job)

    return kind


def _names_a_file(text: str) -> bool:
    line, places = text[text.rfind("error:") :], ("run", "built", "cache", "embedded", "exported", "photos", "made")
    return any(place in line for place in (*places, "packed", "studied"))


def full_tmpfs(trial: Trial) -> None:
    """A disk that is really full: a small file system, which is then enlarged."""
    job = trial.stage.jobs["train"]
    trial.folder.mkdir()
    size = trial.draws.randint(1, 90)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "chaos", str(trial.folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        raise Skipped("no file system may be mounted here")
    try:
        outcome = children.run(job.work, trial.folder)
        outcome.demand_words()
        trial.struck += outcome.status == 2
        if outcome.status not in (0, 2):
            raise Lost(f"status {outcome.status} on a disk of {size} MB:\n{outcome.text[-1500:]}")
        subprocess.run(["mount", "-o", "remount,size=512m", str(trial.folder)], check=True)
        demand_result(trial, job)
    finally:
        subprocess.run(["umount", str(trial.folder)], check=True)


class Skipped(Exception):
    """Reports that a kind cannot be tried on this machine."""


def jumping_clock(trial: Trial) -> None:
    job = trial.stage.jobs[trial.draws.choice(["train", "score", "cache", "embed", "index", "pack", "study"])]
    seconds = trial.draws.choice([-1, 1]) * 10 ** trial.draws.uniform(0, 9)
    outcome = disturbed(trial, job, children.jumping_clock(seconds, trial.draws.randint(0, 20)))
    if outcome.status != 0:
        raise Lost(f"status {outcome.status} after a jump of {seconds:.0f} seconds:\n{outcome.text[-1500:]}")
    demand_result(trial, job)


def folder_removed(trial: Trial) -> None:
    """The run folder vanishes during training: an error in words, and a new run as if there had been none."""
    job = trial.stage.jobs["train"]
    trial.begin(job)
    child = children.start(job.work, trial.folder)
    time.sleep(trial.draws.uniform(0, job.seconds))
    trial.struck += (trial.folder / "run").exists()
    shutil.rmtree(trial.folder / "run", ignore_errors=True)
    children.finish(child, trial.folder).demand_words()
    shutil.rmtree(trial.folder / "run", ignore_errors=True)
    demand_result(trial, job)


def kinds() -> dict[str, Kind]:
    """Return all kinds of faults that disturb a job, by name."""
    jobs = (
        "train",
        "score",
        "cache",
        "embed",
        "export",
        "index",
        "make",
        "pack",
        "report",
        "study",
        "serve",
        "explore",
    )
    found: dict[str, Kind] = {f"kill at a point: {name}": kill_at_a_point(name) for name in jobs}
    found |= {f"kill at a moment: {name}": kill_at_a_moment(name) for name in jobs}
    found |= {
        "kill while replacing an export": replacing_export,
        "search after a killed server": search_after_a_killed_server,
        "signals: train": signals("train"),
        "signals: others": signals("score", "cache", "embed", "export", "index", "make", "pack", "report", "study"),
        "two commands at once": two_at_once,
        "clock jumps": jumping_clock,
        "run folder removed": folder_removed,
        "full file system: train": full_tmpfs,
    }
    if children.has_shim():
        written = ("train", "score", "cache", "embed", "export", "index", "pack", "make", "study")
        found |= {
            "full disk: train": failing_disk(children.FULL, "train"),
            "full disk: others": failing_disk(children.FULL, *written[1:]),
            "EIO in a write": failing_disk(children.WRITE_ERROR, *written),
            "EIO in a flush": failing_disk(children.FLUSH_ERROR, *written),
            "EIO in a read": failing_disk(children.READ_ERROR, *written),
            "short reads": failing_disk(children.SHORT_READS, *written),
            "slow disk": failing_disk(children.SLOW, *written),
        }
    return found
