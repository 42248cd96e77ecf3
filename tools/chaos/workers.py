"""Runs the trials of a campaign, in one process or in several that share a stage. Most of a trial is waiting: for a
disk, for a hung process, for the processor of a busy machine."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tools.chaos import children
from tools.chaos.jobs import Stage
from tools.chaos.kinds import Kind, Skipped, Trial
from tools.chaos.tally import Tally


@dataclass(frozen=True)
class Campaign:
    """Says what is tried: turns from `first` on, in each of which every kind is tried once, until a time."""

    stage: Stage
    kinds: dict[str, Kind]
    seed: int
    first: int
    most: int | None
    ends: float  # of time.monotonic()

    def run(self, scratch: Path, workers: int) -> Tally:
        """Run all trials; workers take turns at turns."""
        if workers == 1:
            return self.trials(scratch, self._turns(0, 1))
        processes = {}
        for number in range(workers):
            part = scratch / f"part-{number}"
            part.mkdir()
            sys.stdout.flush()
            if (process := os.fork()) == 0:
                self._work(part, self._turns(number, workers))
            processes[part] = process
        tally = Tally()
        for part, process in processes.items():
            os.waitpid(process, 0)
            tally.add(Tally.from_record(json.loads((part / "tally.json").read_text())))
        return tally

    def _turns(self, number: int, step: int) -> Iterable[int]:
        return count(self.first + number, step) if self.most is None else range(
            self.first + number, self.first + self.most, step
        )  # fmt: skip

    def _work(self, part: Path, turns: Iterable[int]) -> None:
        try:
            (part / "tally.json").write_text(json.dumps(self.trials(part, turns).record()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def trials(self, scratch: Path, turns: Iterable[int]) -> Tally:
        tally = Tally()
        for turn in turns:
            if time.monotonic() > self.ends:
                break
            for name, kind in self.kinds.items():
                if name not in tally.skipped and time.monotonic() < self.ends:
                    self._trial(scratch, tally, turn, name, kind)
        return tally

    def _trial(self, scratch: Path, tally: Tally, turn: int, name: str, kind: Kind) -> None:
        draws = random.Random(f"{self.seed} {name} {turn}")
        trial = Trial(self.stage, scratch / f"trial-{tally.tried.total()}", draws)
        try:
            kind(trial)
        except Skipped as reason:
            tally.skipped[name] = str(reason)
            return
        except Exception as error:  # a result that cannot be read is lost, too
            why = str(error) if isinstance(error, children.Lost) else traceback.format_exc()
            tally.lost[name] += 1
            print(f"LOST  --trial '{self.seed} {name} {turn}'  ({trial.folder}): {why}\n", flush=True)
        else:
            tally.kills[name] += trial.kills_of_training
            shutil.rmtree(trial.folder, ignore_errors=True)
            for output in scratch.glob(f"{trial.folder.name}.output-*"):
                output.unlink()
        tally.tried[name] += 1
        tally.struck[name] += trial.struck
