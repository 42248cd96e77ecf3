"""Hostile and damaged inputs for the readers of project files, as tools/fuzz_inputs.py makes them."""

from __future__ import annotations

import random

from tools.chaos import children
from tools.chaos.children import Lost
from tools.chaos.kinds import Kind, Trial

KINDS = 4  # of files in a trial
EXAMPLES = 2  # damaged copies of each kind of file in a trial


def fuzzed(trial: Trial) -> None:
    trial.folder.mkdir()
    seed = trial.draws.randrange(1 << 30)
    outcome = children.run(lambda: _fuzz(trial, seed), trial.folder, DINORANKCLIP_HOME=str(trial.folder / "home"))
    outcome.demand_words()
    trial.struck += KINDS * EXAMPLES
    if outcome.status != 0:
        raise Lost(outcome.text[-2000:])


def _fuzz(trial: Trial, seed: int) -> None:
    from tools.fuzz_inputs import fuzz
    from tools.fuzzed_files import prepare, project_kinds

    folder = prepare(trial.folder / "files")
    kinds = random.Random(seed).sample(project_kinds(), KINDS)
    _, lost = fuzz(kinds, folder, EXAMPLES, seed)
    if lost:
        print("\n".join(lost))
        raise SystemExit(3)


def kinds() -> dict[str, Kind]:
    return {"hostile project files": fuzzed}
