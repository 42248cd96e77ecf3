"""A study that nobody ran: every cell and seed with made-up scores that have known means and differences."""

import zlib

import numpy as np

from dinorankclip.config import as_dict
from dinorankclip_studies.papers import measures_of
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.papers.paper_data import ABOVE_09, COSINE, GRAM_DISTANCE
from dinorankclip_studies.results import Results, RunRecord
from dinorankclip_studies.study import Study

TEACHER = "efficientnet-lite0 (ImageNet-supervised)"


def record(cell: str, seed: int, scores: dict[str, float], study: Study | None = None, **more) -> RunRecord:
    study = study or STUDIES["small"]()
    known = {one.name: one for one in study.cells}
    settings = as_dict(known[cell].settings(study.base, seed)) if cell in known else as_dict(study.base)
    key = f"{zlib.crc32(f'{cell}/{seed}'.encode()):012x}"
    values = {
        "revision": "abc123", "telemetry": {}, "seconds": 60.0, "pairs_seen": 10240, "steps": 80,
        "parameters": {"model": 5_400_000, "heads": 12_000},
    } | more  # fmt: skip
    return RunRecord(cell=cell, seed=seed, key=key, folder=f"cells/{key}", settings=settings, scores=scores, **values)


def made_up(study: Study, seeds: int | None = None, without: tuple[str, ...] = ()) -> Results:
    """Scores grow with the cell's place in the study; a seed shifts all cells alike, and a little noise stays."""
    scores = sorted({column.score for experiment in study.experiments for column in experiment.columns})
    measures = measures_of(study.name)
    scores += [name for name in (measures.fine_errors_in_family, measures.cone) if name not in scores]
    runs = []
    for place, cell in enumerate(study.cells):
        if cell.name in without:
            continue
        for seed in range(seeds or study.seeds[cell.name]):
            rng = np.random.default_rng([place, seed])
            common = 0.01 * np.random.default_rng(seed).normal()
            found = {}
            for score in scores:
                value = 0.3 + 0.004 * place + common + 0.003 * rng.normal()
                found[score] = float(100 * value if score.endswith(("separation", "half-angle")) else value)
            if cell.method == "dinorankclip":
                found |= {COSINE: 0.8, ABOVE_09: 0.03, GRAM_DISTANCE: 0.3}
            spread = {"spread2_image": 0.1, "spread2_text": 0.2, "spread3_image": 1e-4, "spread3_text": 2e-4}
            teacher = TEACHER if cell.method == "dinorankclip" else None
            order = cell.settings(study.base, 0).loss.order
            telemetry = {name: value for name, value in spread.items() if int(name[6]) <= order}
            runs.append(record(cell.name, seed, found, study, telemetry=telemetry, teacher=teacher))
    return Results(
        study.name, tuple(runs), {"clip": {"chosen": 0.001, "tried": {"0.001": 0.2, "0.002": 0.1}}}, study.title
    )
