"""Made-up results of a study: a world in which the paper is right, its opposite, and one without any effect."""

import math
from collections.abc import Callable

from dinorankclip.config import as_dict, changed_at
from dinorankclip.presets import preset
from dinorankclip_studies.papers.dinorankclip.plans import AT_SCALE_CELLS, CELLS
from dinorankclip_studies.papers.paper_data import ABOVE_09
from dinorankclip_studies.results import Results, RunRecord
from dinorankclip_studies.run_times import PAPER_TRUNK, Bench
from tests.studies.kinds import SCENES

_ACCURACY = {
    "clip": 0.30, "cyclip": 0.31, "alip": 0.31, "rankclip": 0.32, "rank-2": 0.33, "rank-3": 0.34, "rank-4": 0.3395,
    "rank-5": 0.339, "full-0": 0.36, "full-1": 0.375, "full-2": 0.39, "full": 0.40, "full-4": 0.3995, "full-5": 0.399,
    "full-image-no-gate": 0.36, "full-no-gate": 0.38, "full-no-text": 0.405, "distil-only": 0.30,
    "rank-2-quick": 0.345, "rank-3-quick": 0.36, "full-quick": 0.41,
    "control-clip-longer": 0.37, "rankclip-longer": 0.38, "rank-3-longer": 0.40, "full-longer": 0.42,
    "full-dinov1": 0.37, "full-dinov2": 0.385,
    "clip-n300": 0.30, "rankclip-n300": 0.305, "full-n300": 0.31,
    "clip-n1000": 0.30, "rankclip-n1000": 0.31, "full-n1000": 0.32,
    "clip-n2000": 0.30, "rankclip-n2000": 0.315, "full-n2000": 0.335,
}  # fmt: skip
_TOP1 = {
    "clip": 0.10, "cyclip": 0.105, "alip": 0.106, "rankclip": 0.11, "rank-2": 0.13, "rank-3": 0.145, "rank-4": 0.14,
    "rank-5": 0.135, "full-0": 0.13, "full-1": 0.135, "full-2": 0.14, "full": 0.15, "full-4": 0.148, "full-5": 0.147,
    "distil-only": 0.10,
}  # fmt: skip
_SHIFT = {"clip": 0.04, "rankclip": 0.05, "rank-2": 0.06, "rank-3": 0.07, "full": 0.09}
_FINE = {"clip": 0.20, "cyclip": 0.20, "alip": 0.20, "rankclip": 0.21, "rank-3": 0.22, "full": 0.30}
_COARSE = {"clip": 0.15, "cyclip": 0.15, "alip": 0.15, "rankclip": 0.16, "rank-3": 0.17, "full": 0.20}
_CONE = {
    "clip": 60.0,
    "rankclip": 58.0,
    "rankclip-detached": 58.0,
    "rank-3-detached": 56.0,
    "rank-2": 57.0,
    "rank-3": 56.0,
    "full-0": 58.0,
    "full": 54.0,
}
_COSINE = {"full-mse": 0.7, "full-rkd": 0.8, "full": 0.95}
_GRAM = {"full-mse": 0.65, "full": 0.3}


def as_claimed(cell: str) -> dict[str, float]:
    """Scores of a cell if all the paper says were so."""
    plain = not cell.startswith(("full", "control"))
    accuracy = _ACCURACY.get(cell, 0.37)
    found = {
        SCENES.mean_r1: accuracy,
        SCENES.top1: _TOP1.get(cell, 0.12),
        SCENES.shift: _SHIFT.get(cell, 0.045 if plain else 0.08),
        SCENES.fine_probe: _FINE.get(cell, 0.21 if plain else 0.25),
        SCENES.coarse_probe: _COARSE.get(cell, 0.15),
        SCENES.fine_errors_in_family: 0.6 if cell == "full" else 0.4,
        SCENES.near_misses: 0.84,
        SCENES.cone: _CONE.get(cell, 55.0),
        SCENES.ranking_quality: accuracy,
        "fidelity/image cosine": _COSINE.get(cell, 0.75),
        ABOVE_09: _COSINE.get(cell, 0.75) - 0.5,
        "fidelity/image centred cosine": _COSINE.get(cell, 0.75),
        "fidelity/image gram distance": _GRAM.get(cell, 0.5),
    }
    found[SCENES.probe_average] = (found[SCENES.fine_probe] + found[SCENES.coarse_probe]) / 2
    for way, more in (("i2t", 0.05), ("t2i", -0.05)):
        for k, base, share in ((1, more, 1.0), (5, 0.5, 0.5), (10, 0.7, 0.3)):
            found[SCENES.recall(way, k)] = base + share * accuracy
    return found


_PATTERNS = ((1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))
# The last one is no difference of cells, and must not move the others to other patterns.
_PLACES = {score: place for place, score in enumerate(sorted(as_claimed("full"), key=lambda n: ("near" in n, n)))}


def opposite(cell: str) -> dict[str, float]:
    """Every order, and every order of relative gains, the other way round."""
    return {name: (1e4 if name == SCENES.cone else 0.01) / value for name, value in as_claimed(cell).items()}


def flat(cell: str) -> dict[str, float]:
    return dict.fromkeys(as_claimed(cell), 1.0)


def telemetry(spread: float = 0.01, angle: float = 5.0) -> dict[str, float]:
    found = {f"spread{order}_{side}": spread for order in (2, 3, 4, 5) for side in ("image", "text")}
    found |= {f"fusion/end/{side}/angle/{of}": angle for side in ("image", "text") for of in ("mean", "max")}
    found |= {f"fusion/end/{side}/bound/max": angle + 10 for side in ("image", "text")}
    return found | {f"fusion/end/{side}/gate/mean": 0.02 for side in ("image", "text")}


def results(
    scores: Callable[[str], dict[str, float]] = as_claimed,
    noise: float = 1e-7,
    seeds: int = 12,  # so many that even a family of 30 differences without spread is shown by flipping signs
    changes: dict[tuple[str, str], float] | None = None,
    reported: dict[str, float] | None = None,
    name: str = "full",
) -> Results:
    """`noise` grows with the cell's place, faster than it so that differences of differences keep some, and differs by
    score; over four or eight seeds its mean is zero, and so is that of any difference."""
    runs = []
    base = preset("scenes") if name == "tuned" else changed_at(preset("scenes"), "optim.name", "adamw")
    for place, cell in enumerate((*CELLS, *AT_SCALE_CELLS), 1):
        settings = as_dict(cell.settings(base, 0))
        teacher = _teacher(settings["distil"], name)
        for seed in range(seeds):
            planted = {score: value for (which, score), value in (changes or {}).items() if which == cell.name}
            values = scores(cell.name) | planted
            noisy = {score: value + noise * place**1.1 * _wobble(score, seed) for score, value in values.items()}
            logged = {
                name: value * (1 + 1e-4 * _PATTERNS[0][seed % 4]) for name, value in (reported or telemetry()).items()
            }
            runs.append(
                RunRecord(
                    cell.name,
                    seed,
                    f"{cell.name}-{seed}",
                    f"cells/{cell.name}-{seed}",
                    "abc",
                    settings,
                    noisy,
                    logged,
                    1.0,
                    40000,
                    310,
                    {},
                    None,
                    teacher,
                )
            )
    return Results(name, tuple(runs))


def _teacher(distil: dict, study: str) -> str | None:
    """As a run would tell it."""
    if distil["cache"] is None:
        return None
    if study == "cc3m":
        distil["teacher"] = "timm:vit_large_patch16_dinov3.lvd1689m"
    return distil["teacher"] + {"efficientnet-lite0": " (ImageNet-supervised)"}.get(distil["teacher"], "")


def _wobble(score: str, seed: int) -> float:
    """No two scores alike, degrees in their own unit."""
    degrees = 20.0 if score == SCENES.cone else 1.0
    place = _PLACES[score]
    return degrees * (1 + 0.3 * place) * _PATTERNS[place % 3][seed % 4]


def bench(costs: tuple[float, ...] = (1.0, 1.0365, 1.156, 1.259, 1.369, 1.482), full: float = 1.26) -> Bench:
    """By default what the paper projects."""
    rounds = [1 + 0.002 * math.sin(at) for at in range(5)]
    seconds = {f"order {order}": [cost * one for one in rounds] for order, cost in enumerate(costs)}
    seconds["order 3"] = [costs[3] * one * (1 + 0.001 * (-1) ** at) for at, one in enumerate(rounds)]
    whole = {Bench.full(): [full * one * (1 + 0.001 * (-1) ** at) for at, one in enumerate(rounds)]}
    timed = {"small trunk": seconds | whole, PAPER_TRUNK: {"order 0": rounds} | whole}
    return Bench("orders.json", "a machine", timed)
