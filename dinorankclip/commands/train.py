"""`dinorankclip train`: put the rooms together and run."""

from __future__ import annotations

import dataclasses
import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dinorankclip.config import FIXED_ORDER, METHODS, PRESETS, TrainSettings, as_dict, preset
from dinorankclip.types import Evaluator, UserError

if TYPE_CHECKING:
    from dinorankclip.pretrain.assemble import Parts

HELP = """\
Train a model. The same command again resumes the run; Ctrl-C saves first.

  dinorankclip train --preset scenes --method clip --run runs/first
  dinorankclip train --preset finetune --data photos.csv --init runs/first --run runs/mine
  torchrun --nproc-per-node 8 -m -- dinorankclip train --preset cc3m --data 'cc3m/{0000..0331}.tar'
"""


@dataclass(frozen=True)
class Invocation(TrainSettings):
    restart: bool = False
    """Move an existing run folder aside and begin anew."""
    dry_run: bool = False
    """Time three real steps, print what the whole run would take, write nothing."""


def main(argv: list[str]) -> None:
    settings, restart, dry = parse(argv)
    from dinorankclip import comm

    run(settings, restart, dry)
    # Only after success: taking a group apart waits for the others, who may be waiting for a failed process.
    comm.leave()


def parse(argv: list[str]) -> tuple[TrainSettings, bool, bool]:
    """Settings of the preset and method named in `argv`, changed by the other flags."""
    import tyro

    name, method = _value_of(argv, "--preset", PRESETS, "scenes"), _value_of(argv, "--method", METHODS, None)
    base = preset(name)
    method = method or base.method
    if method in FIXED_ORDER:
        base = dataclasses.replace(base, loss=dataclasses.replace(base.loss, order=FIXED_ORDER[method]))
    default = Invocation(**{f.name: getattr(base, f.name) for f in dataclasses.fields(base)})
    asked = tyro.cli(Invocation, args=argv, default=default, description=HELP, prog="dinorankclip train")
    fields = {f.name: getattr(asked, f.name) for f in dataclasses.fields(TrainSettings)}
    settings = TrainSettings(**fields)
    if settings.run is None:
        settings = dataclasses.replace(settings, run=f"runs/{settings.preset}-{settings.method}")
    fixed = FIXED_ORDER.get(settings.method)
    if fixed is not None and settings.loss.order != fixed:
        raise UserError(
            f"--method {settings.method} is order {fixed}; for --loss.order {settings.loss.order} use --method rank"
        )
    if settings.method == "distil" and settings.distil.cache is None:
        raise UserError("--method distil learns from a teacher alone: give --distil.cache (dinorankclip teacher cache)")
    if settings.record.keep < 1:
        raise UserError("--record.keep must be at least 1: a run resumes from its newest checkpoint")
    if not 0 <= settings.loss.order <= 5:
        raise UserError(f"--loss.order {settings.loss.order}: orders 0 to 5 exist")
    return settings, asked.restart, asked.dry_run


def _value_of(argv: list[str], flag: str, known, default: str | None) -> str | None:
    """Look ahead for a flag that decides the defaults of all others."""
    value = default
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            value = argv[i + 1]
        elif word.startswith(flag + "="):
            value = word.split("=", 1)[1]
    if value is not None and value not in known:
        close = difflib.get_close_matches(value, list(known), 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"{flag} {value}: there are {', '.join(known)}{hint}")
    return value


def run(settings: TrainSettings, restart: bool, dry: bool) -> None:
    from dinorankclip import comm
    from dinorankclip.pretrain.assemble import assemble, resume
    from dinorankclip.pretrain.dry_run import dry_run
    from dinorankclip.pretrain.loop import pretrain
    from dinorankclip.pretrain.records import claim, say

    comm.join(settings.budget.device)
    folder = Path(settings.run)
    if not dry:
        claim(folder, as_dict(settings), restart)
    parts = assemble(settings)
    if dry:
        dry_run(parts.state, parts.loader, parts.length, settings, parts.placement)
        return
    resume(parts, folder)
    before = starting_scores(parts, folder) if settings.init or settings.model.weights else {}
    to_go = parts.length.steps - parts.state.step
    say(f"{folder}: {to_go} of {parts.length.steps} steps to go")
    watching = evaluators(parts, "val")
    finished = to_go == 0 or pretrain(
        parts.state, parts.loader, parts.length, watching, settings, parts.placement, folder
    )
    if finished:
        final_scores(parts, before, folder)
    else:
        say(f"stopped at step {parts.state.step}; everything is saved, the same command resumes")


def evaluators(parts: Parts, *splits: str) -> list[Evaluator]:
    from dinorankclip.scoring.evaluators import RetrievalEvaluator

    if parts.settings.method == "distil":  # the trunk does not learn: its retrieval says nothing
        return []
    image = parts.state.model.trunk.image_spec
    return [
        RetrievalEvaluator(split, parts.held_out[split], image, parts.tokenizer)
        for split in splits
        if split in parts.held_out
    ]


def take(parts: Parts) -> dict[str, float]:
    model = parts.state.model.eval()
    scores = {f"{e.name}/{name}": value for e in evaluators(parts, "val", "test") for name, value in e(model)}
    model.train()
    return scores


def take_fidelity(parts: Parts) -> dict[str, float]:
    """How faithful the students are to the cached teacher; nothing without distillation."""
    distil = parts.settings.distil
    if distil.cache is None:
        return {}
    from dinorankclip.scoring.evaluators import FidelityEvaluator

    sources = {"train": parts.train} | parts.held_out
    own = dict(parts.state.objective.distillation.projectors.items())
    evaluator = FidelityEvaluator(distil.cache, distil.compare_grid, sources, parts.tokenizer, own)
    model = parts.state.model.eval()
    scores = dict(evaluator(model))
    model.train()
    return scores


def starting_scores(parts: Parts, folder: Path) -> dict[str, float]:
    """Scores of the starting weights, so that fine-tuning can show before and after; taken once a run."""
    from dinorankclip import comm
    from dinorankclip.pretrain.records import BEFORE, write_json

    if comm.world().leads and not (folder / BEFORE).exists():
        write_json(folder / BEFORE, take(parts))
    comm.wait_for_all()
    return json.loads((folder / BEFORE).read_text())


def final_scores(parts: Parts, before: dict[str, float], folder: Path) -> None:
    """Score the last weights on the held-out parts, print the table, write scores.json."""
    from dinorankclip import comm
    from dinorankclip.pretrain.records import SCORES, say, write_json

    if comm.world().leads:
        scores = take(parts)
        faithful = take_fidelity(parts)
        found = {"checkpoint": "last", "step": parts.state.step, "scores": scores, "before": before}
        write_json(folder / SCORES, found | ({"fidelity": faithful} if faithful else {}))
        if scores:
            say(score_table(scores, before))
        for name, value in faithful.items():
            say(f"held-out {name:<32}{value:8.3f}")
        say(f"\nrun folder: {folder}")
    comm.wait_for_all()


def score_table(scores: dict[str, float], before: dict[str, float]) -> str:
    """Percentages, a line for each held-out part and direction; the starting weights above, if they were scored."""
    columns = ("R@1", "R@5", "R@10")
    lines = [f"{'held-out retrieval, %':<28}" + "".join(f"{name:>8}" for name in columns)]
    for part in dict.fromkeys(name.split("/")[0] for name in scores):
        for way, words in (("i2t", "image → text"), ("t2i", "text → image")):
            for when, values in (("before", before), ("after" if before else "", scores)):
                cells = [values[f"{part}/{way} {name}"] for name in columns] if values else []
                if cells:
                    lines.append(f"{part:<6}{words:<14}{when:<8}" + "".join(f"{100 * cell:>8.2f}" for cell in cells))
        lines.append(f"{part:<6}{'chance':<22}{100 * scores[f'{part}/chance R@1']:>8.2f}")
    return "\n".join(lines)
