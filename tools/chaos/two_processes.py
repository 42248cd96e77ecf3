"""Faults of a group of two training processes: one is killed, stopped for good, or asked to end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from pathlib import Path

from tools.chaos import children
from tools.chaos.children import Lost, Outcome
from tools.chaos.jobs import run_digest, train
from tools.chaos.kinds import Kind, Trial

ANSWER = 2  # seconds until a process counts as hung


class Pair:
    """Starts two processes of one run, as torchrun would."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder = folder
        group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        group["DINORANKCLIP_ANSWER_SECONDS"] = str(ANSWER)
        pairs = trial.stage.pairs
        self.processes = [
            children.start(lambda: train(pairs), folder, RANK=str(rank), LOCAL_RANK=str(rank), **group)
            for rank in range(2)
        ]

    def finish(self) -> list[Outcome]:
        return [children.finish(process, self.folder) for process in self.processes]


def undisturbed(trial: Trial, known: dict[str, str]) -> str:
    if not known:
        place = trial.folder.with_name("undisturbed pair")
        place.mkdir()
        begun = time.monotonic()
        outcomes = Pair(trial, place).finish()
        if any(outcome.status != 0 for outcome in outcomes):
            raise Lost("two undisturbed processes failed:\n" + "\n".join(outcome.text for outcome in outcomes))
        known |= {"seconds": str(time.monotonic() - begun), "digest": run_digest(place)}
        shutil.rmtree(place)
    return known["digest"]


def demand_the_same(trial: Trial, expected: str) -> None:
    outcomes = Pair(trial, trial.folder).finish()
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
                children.finish(pair.processes[rank], trial.folder)
            other.demand_words()
            if other.status == 2 and not any(sentence in other.text for sentence in sentences):
                raise Lost(f"the loss of a process is not named:\n{other.text[-1500:]}")
            demand_the_same(trial, expected)

        return kind

    return {
        "two processes, one killed": lose_one(signal.SIGKILL, "of 2 has ended", "not answered"),
        "two processes, one hangs": lose_one(signal.SIGSTOP, "has not answered", "of 2 has ended"),
        "two processes, SIGTERM to one": lose_one(signal.SIGTERM, "of 2 has ended", "not answered"),
    }


def _send(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return
