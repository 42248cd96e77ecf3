"""A study of one cell, made by a worker of its queue in this process, as `study work` would make it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dinorankclip_studies.queue_workers import work
from dinorankclip_studies.results import CELLS, RESULT
from dinorankclip_studies.run_cell import RunMaker
from dinorankclip_studies.run_queue import FAILED, LOGS, forget_failures, write_queue
from dinorankclip_studies.study import Run
from tests.train.running import settings_from

FOLDER = Path("studied")


def work_on(pairs: Path) -> None:
    """Make the run of the queue, as a second `study run` would after a failure. Raise if the run failed again."""
    from tools.chaos.jobs import train_words

    settings = settings_from(*train_words(pairs)[1:])
    run = Run("clip", 0, settings)
    FOLDER.mkdir(exist_ok=True)
    forget_failures(FOLDER)
    write_queue(FOLDER, [run], [str(pairs)])
    work(FOLDER, RunMaker(FOLDER), [run.key])
    for path in (FOLDER / FAILED).glob("*.json"):
        print((FOLDER / LOGS / f"{path.stem}.log").read_text(errors="replace"))
        print(f"error: {json.loads(path.read_text())['error']}")
        raise SystemExit(2)


def digest(folder: Path) -> str:
    """Return a digest of the scores and the weights that the study keeps."""
    (place,) = (folder / FOLDER / CELLS).iterdir()
    scores = json.loads((place / RESULT).read_text())["scores"]
    weights = (place / "checkpoints" / "last" / "model.safetensors").read_bytes()
    return json.dumps(scores, sort_keys=True) + hashlib.sha256(weights).hexdigest()
