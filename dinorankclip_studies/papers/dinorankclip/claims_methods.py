"""Claims about the full method against the baselines: main results, shift, fine-grained, probing, data scaling."""

from __future__ import annotations

from collections.abc import Callable

from dinorankclip_studies.claim import (
    AllBelow,
    AllEquivalent,
    AllHold,
    Claim,
    Contrast,
    better,
    named,
    points,
    relative,
    worse,
)
from dinorankclip_studies.papers.dinorankclip.paper_values import PAPER
from dinorankclip_studies.quantities import (
    ACCURACY,
    COARSE_PROBE,
    DECIDES,
    FINE,
    FINE_ERRORS,
    NEAR_MISSES,
    PROBE_AVERAGE,
    QUALITY,
    SHIFT,
    TOP1,
    UNSHIFTED,
    Quantity,
    Score,
    gain,
    of,
    recall,
    relative_gain,
    telemetry,
)
from dinorankclip_studies.verdicts import SMALLEST

_BASELINES = ("clip", "cyclip", "alip", "rankclip")
_SHIFT_COLUMNS = ("V2-M", "V2-T", "V2-Top", "InR")
_FINE_PROBES = ("DTD", "FGVC")  # what the paper calls fine-grained among its ten probes


def _beats_all(score: Score, table: str, column: str, what: str) -> tuple[Contrast, ...]:
    return tuple(better("full", other, score, points(table, column, "full", other), what) for other in _BASELINES)


def _relative(score: Score) -> Quantity:
    return relative_gain("full", "rankclip", score)


def _first_over(way: str, k: int) -> Contrast:
    table, row, over = "tab:main", "full", "rankclip"
    size = relative(table, f"{way} R@1", row, over) - relative(table, f"{way} R@{k}", row, over)
    return named(f"relative gain: {way} R@1 minus R@{k}", _relative(recall(way, 1)) - _relative(recall(way, k)), size)


def _mean_on_shift(of: Callable[[str], float]) -> float:
    return sum(of(column) for column in _SHIFT_COLUMNS) / len(_SHIFT_COLUMNS)


def _fine_over_others() -> float:
    """By how much the paper's probes of texture and aircraft gain more over RankCLIP than its other eight."""
    columns = [column for column in PAPER["tab:lp-component (a)"]["full"] if column != "Avg"]
    gains = {column: points("tab:lp-component (a)", column, "full", "rankclip") for column in columns}
    fine = [gains.pop(column) for column in _FINE_PROBES]
    return sum(fine) / len(fine) - sum(gains.values()) / len(gains)


def _gap(items: str = "") -> Quantity:
    return gain(f"full{items}", f"rankclip{items}", ACCURACY)


def _projected_gap(size: str) -> float:
    told = PAPER["fig:scaling"]
    return (told["full"][size] - told["rankclip"][size]) / 100


COMPARISON_CLAIMS = (
    Claim(
        "main-top1",
        "Zero-shot top-1 of the full method is above all four baselines.",
        "Sec. 5.1, tab. main",
        ("main",),
        AllHold(_beats_all(TOP1, "tab:main", "T@1", "T@1")),
    ),
    Claim(
        "main-i2t",
        "Image-to-text recall@1 of the full method is above all four baselines.",
        "Sec. 5.1, tab. main",
        ("main",),
        AllHold(_beats_all(recall("i2t", 1), "tab:main", "i2t R@1", "i→t R@1")),
    ),
    Claim(
        "main-t2i",
        "Text-to-image recall@1 of the full method is above all four baselines.",
        "Sec. 5.1, tab. main",
        ("main",),
        AllHold(_beats_all(recall("t2i", 1), "tab:main", "t2i R@1", "t→i R@1")),
    ),
    Claim(
        "r1-largest",
        "The relative gain over RankCLIP is largest at recall@1.",
        "Sec. 5.1",
        ("main",),
        AllHold(tuple(_first_over(way, k) for way in ("i2t", "t2i") for k in (5, 10))),
        remark="a ceiling at R@10 makes this easier to find than a property of the method would",
    ),
    Claim(
        "shift-larger",
        "The relative gain over RankCLIP is larger under natural shift than without.",
        "Abstract, Sec. 5.2, tab. ood-fg",
        ("shift",),
        AllHold(
            (
                named(
                    "relative gain: shifted minus unshifted",
                    _relative(SHIFT) - _relative(UNSHIFTED),
                    _mean_on_shift(lambda column: relative("tab:ood-fg", column, "full", "rankclip"))
                    - relative("tab:main", "T@1", "full", "rankclip"),
                ),
            ),
            also=(better("full", "rankclip", SHIFT, what="shift"), better("full", "rankclip", UNSHIFTED, what="T@1")),
        ),
    ),
    Claim(
        "teacher-shift",
        "The teacher, with the students and the fusion that bring it in, improves accuracy under natural shift.",
        "Sec. 5.2, tab. ood-fg (last row)",
        ("shift",),
        AllHold(
            (
                better(
                    "full",
                    "rank-3",
                    SHIFT,
                    _mean_on_shift(lambda column: points("tab:ood-fg", column, "full", "rank-3")),
                    "shift",
                ),
            )
        ),
    ),
    Claim(
        "teacher-fine",
        "The teacher, with the students and the fusion that bring it in, improves the Fine-grained Probe.",
        "Sec. 5.2, tab. ood-fg (last row)",
        ("fine-grained",),
        AllHold(
            (better("full", "rank-3", FINE, points("tab:ood-fg", "FG-avg", "full", "rank-3"), "fine probe"),),
            also=tuple(better("full", other, FINE, what="fine probe") for other in ("rankclip", "clip")),
        ),
        remark="as the paper compares; whether the teacher does it is `teacher-fine-alone`",
    ),
    Claim(
        "teacher-fine-alone",
        "The gain on the Fine-grained Probe is the teacher's: it is above the same students and fusion without one.",
        "Sec. 5.2 (“attributable to DINO injection alone”)",
        ("fine-grained", "controls"),
        AllHold(
            (
                better(
                    "full", "control-no-teacher", FINE, points("tab:ood-fg", "FG-avg", "full", "rank-3"), "fine probe"
                ),
            ),
            also=(better("full", "control-random-teacher", FINE, what="fine probe"),),
        ),
        remark="the paper has no such control, and takes the whole gain over order 3 for the teacher's",
        only="scenes",
    ),
    Claim(
        "fine-more-than-coarse",
        "The teacher's gain is larger on fine-grained sets than on coarse zero-shot classification.",
        "Abstract, Sec. 5.2",
        ("fine-grained", "components"),
        AllHold(
            (
                named(
                    "teacher's gain: fine probe minus T@1",
                    gain("full", "rank-3", FINE) - gain("full", "rank-3", TOP1),
                    points("tab:ood-fg", "FG-avg", "full", "rank-3")
                    - points("tab:lp-component (b)", "T@1", "full", "rank-3"),
                ),
            ),
            also=(
                named(
                    "teacher's gain: fine probe minus coarse probe",
                    gain("full", "rank-3", FINE) - gain("full", "rank-3", COARSE_PROBE),
                ),
            ),
        ),
        remark="the paper sets a probe against zero-shot; the like comparison, probe against probe, is told beside it",
    ),
    Claim(
        "probe-average",
        "Mean linear-probe accuracy of the full method is above all four baselines.",
        "Sec. 5.3, tab. lp-component (a)",
        ("linear-probing",),
        AllHold(_beats_all(PROBE_AVERAGE, "tab:lp-component (a)", "Avg", "probe mean")),
    ),
    Claim(
        "probe-fine-largest",
        "Among linear probes, the gain over RankCLIP is largest on fine-grained sets.",
        "Sec. 5.3",
        ("linear-probing",),
        AllHold(
            (
                named(
                    "gain over RankCLIP: fine probe minus coarse probe",
                    gain("full", "rankclip", FINE) - gain("full", "rankclip", COARSE_PROBE),
                    _fine_over_others(),
                    borrowed="DTD and FGVC minus the other eight",
                ),
            )
        ),
    ),
    Claim(
        "errors-in-family",
        "Fine-grained errors move inside the right family: the full method has more of its errors there than CLIP.",
        "App. case study III",
        ("fine-grained", "controls"),
        AllHold(
            (better("full", "clip", FINE_ERRORS, what="errors in family"),),
            also=tuple(
                better("full", control, FINE_ERRORS, what="errors in family")
                for control in ("control-no-teacher", "control-random-teacher")
            ),
        ),
        only="scenes",
    ),
    Claim(
        "errors-mostly-in-family",
        "The full method's fine-grained errors are predominantly inside the right family.",
        "App. case study III (“predominantly”)",
        ("fine-grained",),
        AllBelow((named("share of the full method's errors in the family", of("full", FINE_ERRORS)),), 0.5, above=True),
        only="scenes",
    ),
    Claim(
        "near-misses",
        "Of captions whose image CLIP misses at rank 1 but has among its first ten, the full method finds most.",
        "App. case study II (“42 of 50”)",
        ("main",),
        AllBelow((named("share that the full method has at rank 1", of("full", NEAR_MISSES)),), 0.5, above=True),
        remark="“most” is taken as more than half; the paper's 42 of 50 are 84 %",
    ),
    Claim(
        "scaling-widens",
        "The gap to RankCLIP widens with the amount of data.",
        "Sec. 5.2, fig. scaling",
        ("scaling",),
        AllHold(
            (
                named(
                    f"gap on all data minus gap on the least (-n1000), {DECIDES}",
                    _gap() - _gap("-n1000"),
                    _projected_gap("2.7") - _projected_gap("0.3"),
                    borrowed="2.7M minus 0.3M pairs",
                ),
            ),
            also=(
                named(f"gap on all data minus gap on -n2000, {DECIDES}", _gap() - _gap("-n2000")),
                named(
                    "gap on all data minus gap on the least (-n1000), T@1",
                    gain("full", "rankclip", TOP1) - gain("full-n1000", "rankclip-n1000", TOP1),
                ),
            ),
        ),
    ),
    Claim(
        "scaling-everywhere",
        "At every amount of data the full method is above RankCLIP, and RankCLIP above CLIP.",
        "fig. scaling",
        ("scaling",),
        AllHold(
            tuple(
                better(
                    f"{cell}{items}",
                    f"{over}{items}",
                    ACCURACY,
                    points("fig:scaling", millions, cell, over),
                    DECIDES,
                    borrowed=f"{millions}M pairs",
                )
                for items, millions in (("-n1000", "0.3"), ("-n2000", "1"), ("", "2.7"))
                for cell, over in (("rankclip", "clip"), ("full", "rankclip"))
            )
        ),
    ),
)


# -------- failures
# The paper's three failure modes.

FAILURE_CLAIMS = (
    Claim(
        "failure-global-captions",
        "On captions that name a category and nothing local, the full method behaves like its order without teacher.",
        "Sec. 7, failure mode (i)",
        ("main", "components"),
        AllEquivalent(
            (named("full - rank-3, T@1 (prompts name a category alone)", gain("full", "rank-3", TOP1)),),
            SMALLEST["points"],
            also=(
                named("text gate at the end", telemetry("full", "fusion/end/text/gate/mean"), unit="number"),
                named("image gate at the end", telemetry("full", "fusion/end/image/gate/mean"), unit="number"),
            ),
        ),
        remark="zero-shot prompts are such captions; where T@1 itself is a few points, a margin of one is wide; gates "
        "start at 0.018, and are measured on scene captions",
    ),
    Claim(
        "failure-text-branch",
        "With a text teacher that is not aligned to the images, the image-only variant is preferable.",
        "Sec. 7, failure mode (ii)",
        ("components",),
        AllHold(
            (better("full-no-text", "full", ACCURACY, what=DECIDES),),
            also=(
                better("full-no-text", "full", TOP1, what="T@1"),
                better("full-no-text", "full", SHIFT, what="shift"),
            ),
        ),
        remark="the text teacher here, MiniLM, is a sentence encoder that never saw an image",
    ),
    Claim(
        "failure-warm-start",
        "The high-order head is sensitive to the warm-start: without stages it is worse.",
        "Sec. 4.3 (“essential”), Sec. 7, failure mode (iii)",
        ("warm-start",),
        AllHold(
            (worse("full-unstaged", "full", ACCURACY, what=DECIDES),),
            also=(
                worse("full-unstaged", "full", TOP1, what="T@1"),
                worse("full-unstaged", "full", QUALITY, what="ranking τ-b"),
            ),
        ),
    ),
)
