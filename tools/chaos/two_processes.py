"""Faults of a group of two training processes: one is killed, stopped for good, or asked to end; or both are killed."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from tools.chaos import children
from tools.chaos.children import Lost, Outcome, Plant
from tools.chaos.jobs import run_digest, train
from tools.chaos.kinds import Kind, Trial

ANSWER = 2  # seconds until a process counts as hung, in a group that is disturbed
ABSENT = "cannot connect to the others"  # of a process that was lost before it joined the group
PATIENT = 60  # the same where nothing is disturbed: on a busy machine a step may take seconds


class Pair:
    """Starts two processes of one run, as torchrun would."""

    def __init__(
        self,
        trial: Trial,
        folder: Path,
        plants: tuple[Plant | None, Plant | None] = (None, None),
        answer: int = ANSWER,
    ) -> None:
        self.folder = folder
        group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(children.free_port())}
        group["DINORANKCLIP_ANSWER_SECONDS"] = str(answer)
        pairs = trial.stage.pairs
        self.processes = [
            children.start(lambda: train(pairs), folder, plant, RANK=str(rank), LOCAL_RANK=str(rank), **group)
            for rank, plant in enumerate(plants)
        ]

    def finish(self) -> list[Outcome]:
        return [children.finish(process, self.folder) for process in self.processes]


def undisturbed(trial: Trial, known: dict[str, str]) -> str:
    if not known:
        place = trial.folder.with_name("undisturbed pair")
        place.mkdir()
        begun = time.monotonic()
        outcomes = Pair(trial, place, answer=PATIENT).finish()
        if any(outcome.status != 0 for outcome in outcomes):
            raise Lost("two undisturbed processes failed:\n" + "\n".join(outcome.text for outcome in outcomes))
        known |= {"seconds": str(time.monotonic() - begun), "digest": run_digest(place)}
        shutil.rmtree(place)
    return known["digest"]


def demand_the_same(trial: Trial, expected: str) -> None:
    outcomes = Pair(trial, trial.folder, answer=PATIENT).finish()
    for outcome in outcomes:
        outcome.demand_words()
        if outcome.status != 0:
            raise Lost(f"two processes do not go on:\n{outcome.text[-2000:]}")
    if run_digest(trial.folder) != expected:
        raise Lost("other weights than those of two undisturbed processes")


def kinds() -> dict[str, Kind]:
    known: dict[str, str] = {}

    def lose_one(how: int, *sentences: str) -> Kind:
        def kind(trial: Trial) -> None:
            expected = undisturbed(trial, known)
            trial.folder.mkdir()
            pair = Pair(trial, trial.folder)
            rank = trial.draws.randrange(2)
            time.sleep(trial.draws.uniform(0.3, 1.0) * float(known["seconds"]))
            _send(pair.processes[rank], how)
            try:
                other = children.finish(pair.processes[1 - rank], trial.folder)
            finally:
                _send(pair.processes[rank], signal.SIGKILL)
                gone = children.finish(pair.processes[rank], trial.folder)
            trial.struck += gone.status != 0
            trial.kills_of_training += gone.status is None
            other.demand_words()
            if other.status == 2 and not any(sentence in other.text for sentence in sentences):
                raise Lost(f"the loss of a process is not named:\n{other.text[-1500:]}")
            demand_the_same(trial, expected)

        return kind

    def lose_one_at_a_point(trial: Trial) -> None:
        """The leading process, which writes all files, is killed before it changes one of them."""
        expected = undisturbed(trial, known)
        trial.folder.mkdir()
        plant = children.kill_at(trial.draws.randint(1, trial.stage.jobs["train"].events))
        leader, other = Pair(trial, trial.folder, (plant, None)).finish()
        trial.count(leader, trial.stage.jobs["train"])
        other.demand_words()
        sentences = ("of 2 has ended", "not answered", ABSENT)
        if other.status == 2 and not any(sentence in other.text for sentence in sentences):
            raise Lost(f"the loss of the leading process is not named:\n{other.text[-1500:]}")
        demand_the_same(trial, expected)

    def lose_both(trial: Trial) -> None:
        expected = undisturbed(trial, known)
        trial.folder.mkdir()
        pair = Pair(trial, trial.folder)
        time.sleep(trial.draws.uniform(0.3, 1.0) * float(known["seconds"]))
        for process in pair.processes:
            _send(process, signal.SIGKILL)
        for outcome in pair.finish():
            trial.count(outcome, trial.stage.jobs["train"])
        demand_the_same(trial, expected)

    return {
        "two processes, one killed": lose_one(signal.SIGKILL, "of 2 has ended", "not answered", ABSENT),
        "two processes, the first killed at a point": lose_one_at_a_point,
        "two processes, both killed": lose_both,
        "two processes, one hangs": lose_one(signal.SIGSTOP, "has not answered", "of 2 has ended", ABSENT),
        "two processes, SIGTERM to one": lose_one(signal.SIGTERM, "of 2 has ended", "not answered", ABSENT),
    }


def _send(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return
