"""Verdicts of two studies of the same cells side by side, and cells that are the same runs under two names."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dinorankclip_studies.claim import Contrast, judged
from dinorankclip_studies.claims_page import all_claims, claims_markdown
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.extra_tables import paired_differences
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.quantities import Context, gain
from dinorankclip_studies.results import Results
from dinorankclip_studies.verdicts import VERDICTS
from dinorankclip_studies.verdicts_beside import HEADING, about_study
from tests.studies.kinds import SCENES
from tests.studies.test_claims_page import rows_under
from tests.studies.worlds import as_claimed, bench, opposite, results

EQUAL = {f"{name}-quick": name for name in ("rank-2", "rank-3", "full")}


def as_run(cell: str) -> dict[str, float]:
    return as_claimed(EQUAL.get(cell, cell))


def tuned(scores=as_run, seeds: int = 8, noise: float = 1e-7) -> Results:
    """Made-up results of the tuned study with the keys and settings of its own runs; all cells have so many seeds."""
    study = STUDIES["tuned"]().with_seeds(seeds)
    keys = {(run.cell, run.seed): run.key for run in study.runs()}
    made = results(scores, noise=noise, seeds=seeds, name="tuned")
    runs = tuple(replace(run, key=keys[run.cell, run.seed]) for run in made.runs if (run.cell, run.seed) in keys)
    scored = {(run.cell, run.seed): run.scores for run in runs}  # equal runs have equal scores
    runs = tuple(replace(run, scores=scored[EQUAL.get(run.cell, run.cell), run.seed]) for run in runs)
    epochs = {"budget": {**runs[0].settings["budget"], "epochs": 8}}
    return replace(made, runs=tuple(replace(run, settings=run.settings | epochs) for run in runs))


@pytest.fixture(scope="module")
def page() -> str:
    return claims_markdown([results(opposite), tuned()], bench())


def sections(page: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return counts by verdict, and cells by claim, of the part with the verdicts side by side."""
    rows = rows_under(page, HEADING)
    split = next(at for at, row in enumerate(rows) if row[0] == "claim")
    by_claim = {row[0].split("(#")[1].rstrip(")"): row[1:] for row in rows[split + 2 :]}
    return {row[0]: row[1:] for row in rows[:split]}, by_claim


def test_each_study_has_a_column_that_says_what_it_stood_on(page):
    head = page.split(f"## {HEADING}\n")[1].split("| --- |")[0]
    assert "| full: with AdamW, 30 epochs, CLIP at 3.3 % | tuned: with Muon, 8 epochs, CLIP at 30.0 % |" in head
    without_clip = Results("tuned", (tuned().of("full")[0],))
    assert about_study(without_clip) == "with Muon, 8 epochs, CLIP not run yet"


def test_the_counts_are_those_of_each_study_alone(page):
    counts, _ = sections(page)
    for place, study in enumerate((results(opposite), tuned())):
        own = Counter(each.evidence.verdict for each in judged(study, bench()) if each.counts)
        assert {verdict: int(counts[verdict][place]) for verdict in VERDICTS} == {v: own[v] for v in VERDICTS}
        assert int(counts["all"][place]) == own.total()
    assert int(counts["contradicted"][0]) > 30 and int(counts["supported"][1]) > 30


def test_old_and_new_verdicts_stand_in_one_row(page):
    _, by_claim = sections(page)
    old, new = by_claim["adds-gate"]
    assert old.startswith("**contradicted**") and new.startswith("**supported**")
    assert "full - full-no-gate, R@1: +2.00 [2.00, 2.00] points, detectable 0.00 points" in new
    assert "so far" not in new, "all planned seeds are there"
    text = page.replace("\n", " ")
    assert "claims that full and tuned have both measured" in text
    assert "those of full with AdamW and those of tuned with Muon" in text


def test_few_seeds_are_inconclusive_so_far():
    _, by_claim = sections(claims_markdown([results(), tuned(seeds=2)], bench()))
    old, new = by_claim["adds-high-order"]
    assert old.startswith("**supported**<br>")
    assert new.startswith("**inconclusive**: 2 of 8 seeds so far<br>rank-3 - rankclip, R@1: +2.00 points")


def test_what_has_not_run_says_so_beside_the_old_verdict():
    begun = replace(tuned(seeds=1), runs=tuned(seeds=1).runs[:1])
    page = claims_markdown([results(), begun], bench())
    counts, by_claim = sections(page)
    assert by_claim["adds-high-order"][1] == "**not run**"
    assert "Study tuned has 1 of 201 runs so far; verdicts may change." in page.replace("\n", " ")
    assert int(counts["not run"][1]) > 40 and counts["not run"][0] == "0"


def test_one_study_alone_has_no_such_part(tmp_path):
    assert HEADING not in claims_markdown([results()], bench())
    for name, study in (("full", results(seeds=3)), ("tuned", Results("tuned", ()))):
        folder = tmp_path / "study" / name
        folder.mkdir(parents=True)
        study.save(folder / "results.json")
    alone = all_claims(PAPER, tmp_path, tmp_path / "none", "")
    assert HEADING not in alone and "study tuned" not in alone, "a study without runs changes nothing"
    tuned(seeds=1).save(tmp_path / "study" / "tuned" / "results.json")
    both = all_claims(PAPER, tmp_path, tmp_path / "none", "")
    assert HEADING in both and both.index("## Verdicts, study full") < both.index("## Verdicts, study tuned")


def test_the_same_runs_are_no_comparison():
    study = tuned()
    assert study.are_same_runs("rank-3-quick", "rank-3") and not study.are_same_runs("rank-3", "rank-2")
    assert not study.are_same_runs("rank-3", "rank-3") and not study.are_same_runs("rank-3", "none")
    contrast = Contrast("fast - plain", gain("rank-3-quick", "rank-3", SCENES.mean_r1))
    assert contrast.measured(Context(study, SCENES)).n == 0
    assert contrast.measured(Context(results(seeds=3), SCENES)).n == 3, "in the other study they are two cells"
    (quick,) = (each for each in judged(study, bench()) if each.claim.id == "order-quick")
    assert quick.evidence.verdict == "supported"
    assert "all heads have that rate in this study" in quick.evidence.remarks[0]
    labels = {line.label for line in quick.evidence.shown if line.effect.n}
    assert not any("rank-3-quick - rank-3" in label or "full-quick - full" in label for label in labels)
    (order,) = (each for each in judged(study, bench()) if each.claim.id == "adds-high-order")
    assert not any("cannot teach the heads" in remark for remark in order.evidence.remarks)


def test_tables_do_not_compare_the_same_runs():
    material = StudyMaterial(Path("none"), STUDIES["tuned"](), tuned(), Path("none"))
    (differences,) = paired_differences(material)
    labels = [row[0] for row in differences.rows]
    assert "order 3 − RankCLIP" in labels and not any("fast heads" in label for label in labels)
    quick = material.table("quick-heads")
    assert [row.cell for row in quick.rows] == ["rankclip", "rank-2", "rank-3", "full", "full-movable"]
    assert not any(row.unmatched for row in quick.rows)
