"""Distillation fidelity of a trained run, taken from its folder: which data, which cached teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinorankclip.data.opening import open_stored, splits_of
from dinorankclip.run_files import read_settings
from dinorankclip.scoring.evaluators import FidelityEvaluator
from dinorankclip.scoring.fidelity import comparable
from dinorankclip.scoring.run_data import stored_reading
from dinorankclip.scoring.scores import Score, mean_score
from dinorankclip.scoring.suite import SetResult
from dinorankclip.types import UserError

NAME, VERSION = "fidelity", 2  # 2: captions without two common words are left out of the Gram distance


def run_fidelity(run: Path, model: Any) -> SetResult | None:
    """Fidelity on the run's held-out pairs; None for a run without students or teacher, or whose cache is gone."""
    settings = read_settings(run)
    distil = settings.get("distil", {})
    taught = distil.get("branches", "image").split("+")
    if distil.get("cache") and distil.get("into") == "trunk":
        model.parts.teach_trunk(*taught)
    if not distil.get("cache") or "image" not in model.parts.learners:
        return None
    if not Path(distil["cache"]).is_dir():
        raise UserError(f"the teacher cache {distil['cache']} of {run} is not there; fidelity needs it")
    reading = stored_reading(settings["reading"])
    parts = ["train", "val"] + (["test"] if "test" in splits_of(settings["data"], reading) else [])
    sources = {part: open_stored(settings["data"], reading, part) for part in parts}
    evaluator = FidelityEvaluator(
        distil["cache"], distil.get("compare_grid"), sources, model.tokenizer, max_pixels=reading.max_pixels
    )
    scored = sources[parts[-1]]
    result = SetResult("distillation", "fidelity", parts[-1], len(scored), scored.fingerprint)
    for branch in taught:
        for score in _scores(evaluator.measure(model.parts, branch), branch):
            result.scores[score.name] = score
    return result


def _scores(found: Any, branch: str) -> list[Score]:
    """The columns that are means over items; their contributions are the items' own values, of those that have one."""
    columns = {
        "cosine": found.cosine,
        "cosine of the mean": found.cosine_of_mean,
        "centred cosine": found.centred_cosine,
        "gram distance": comparable(found.held_out.gram_distance),
    }
    return [
        mean_score(f"{branch} {name}", values.numpy(), unit="number") for name, values in columns.items() if len(values)
    ]
