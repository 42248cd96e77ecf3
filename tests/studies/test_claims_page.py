import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dinorankclip.methods import LABEL
from dinorankclip_studies.claim import AT_CHANCE, EvidenceLine
from dinorankclip_studies.claim_words import seeds_text
from dinorankclip_studies.claims_page import claims_markdown
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.plans import CLAIMS
from dinorankclip_studies.results import Results
from dinorankclip_studies.verdicts import VERDICTS, level, seeds_needed
from tests.studies.worlds import bench, results

CAVEAT = "teacher efficientnet-lite0 (ImageNet-supervised): not DINOv3"
CONTROLS = sum(claim.control and not claim.same_as for claim in CLAIMS)
APART = "full, premises and controls that the paper lacks"
JUDGED = [claim for claim in CLAIMS if claim.only != ("cc3m",)]
ONCE = len([claim for claim in JUDGED if not claim.same_as])  # one comparison in two wordings is counted once


@pytest.fixture(scope="module")
def page() -> str:
    photos = results(seeds=3, name="flickr8k")
    return claims_markdown([results(), Results("flickr8k", photos.runs[:2])], bench(), machine="two cores")


def rows_under(page: str, heading: str) -> list[list[str]]:
    """Cells of the rows below a table's head."""
    part = page.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in part.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def test_it_is_complete_before_anything_has_run():
    empty = claims_markdown([])
    rows = rows_under(empty, "Verdicts, study full")
    assert len(rows) == len(JUDGED)
    assert {row[-1] for row in rows} == {"**not run**"}
    counts = {"full": str(ONCE - CONTROLS), APART: str(CONTROLS)}
    assert rows_under(empty, "Summary") == [[name, n, "0", "0", "0", "0", n] for name, n in counts.items()]
    assert "no finished run yet" in empty and "not measured yet" in empty


def test_every_claim_has_a_row_with_effect_interval_n_and_verdict(page):
    rows = rows_under(page, "Verdicts, study full")
    assert len(rows) == len(JUDGED)
    gate = next(row for row in rows if "adds-gate" in row[0])
    assert gate[1] == "components"
    assert gate[2].startswith("full - full-no-gate, R@1: +2.00 [2.00, 2.00] points")
    assert gate[3] == "0.20 points" and gate[4] == "12"
    assert gate[6] == f"**supported**<br>{CAVEAT}"
    order = next(row for row in rows if "adds-high-order" in row[0])
    assert order[6] == "**supported**", "no teacher, no caveat"


def test_at_the_papers_scale_nothing_is_said_of_small_trunks(page):
    assert "tiny trunks" in page and CAVEAT in page
    at_scale = claims_markdown([Results("cc3m", results(name="cc3m").runs)])
    assert "tiny trunks" not in at_scale and CAVEAT not in at_scale and "#teacher-generations" in at_scale


def test_costs_count_rounds_and_borrowed_sizes_say_whose(page):
    (cost,) = (row for row in rows_under(page, "Verdicts, study full") if "#cost-order-3" in row[0])
    (control,) = (row for row in rows_under(page, "Verdicts, study full") if "#control-no-teacher" in row[0])
    assert cost[4] == "5 rounds" and control[4] == "12"
    assert control[3] == "3.10 points (of full - rank-3)"


def test_the_summary_counts_all_of_them(page):
    found = {row[0]: [int(cell) for cell in row[1:]] for row in rows_under(page, "Summary")}
    controls = found[APART]
    assert found["full"][0] == ONCE - CONTROLS == found["full"][1], "in this world the paper is right"
    assert controls[:2] == [CONTROLS, CONTROLS]
    for counts in found.values():
        assert len(counts) == 1 + len(VERDICTS) and counts[0] == sum(counts[1:])
    assert found["flickr8k"][-1] == found["flickr8k"][0], "its runs lack the photo sets' scores"


def test_the_summary_is_told_in_sentences_with_what_was_measured(page):
    part = page.split("## Summary\n")[1].split("\n## ")[0]
    assert part.count("- *Supported:*") == ONCE - CONTROLS and "- *Contradicted:*" not in part
    assert f"{ONCE - CONTROLS} claims of the paper" in part.replace("\n", " ")
    study = results()
    assert f"{len(study.runs)} runs of {len(study.cells())} cells, 12 seeds each" in part.replace("\n", " ")
    assert "What this does not show" in part and "AdamW" in part and " % mean R@1" in part.replace("\n", " ")
    gate = next(line for line in part.splitlines() if "(#adds-gate)" in line)
    assert "Measured: full - full-no-gate, R@1: +2.00 [2.00, 2.00] points." in gate
    assert "- *Not run:* 20 claims. What they compare has not been measured." in part, "those of flickr8k"


def test_details_are_found_from_the_row_and_lead_to_the_tables(page):
    for claim in JUDGED:
        assert f"(#{claim.id})" in page and f"### {claim.id}\n" in page
        for name in claim.experiments:
            assert f"[{name}](study/full/tables/{name}.md)" in page
    best = page.split("### best-order\n")[1].split("\n### ")[0]
    assert best.count("full - full-") == 30, "all comparisons of a family are listed"


def test_the_contradictions_are_listed_under_the_label(page):
    part = page.split("## Where the paper contradicts itself\n")[1]
    assert LABEL in part.split("###")[0]
    assert part == PAPER.contradictions.split("## Where the paper contradicts itself\n")[1]
    groups = part.split("\n### ")[1:]
    assert len(groups) == 5 and all(group.count("\n| ") - 2 >= 4 for group in groups)
    assert all(f"the paper says ({LABEL})" in group for group in groups)


def test_claimed_sizes_stand_under_the_label_alone(page):
    heads = [line for line in page.split("\n") if line.startswith("|") and "| claimed" in line]
    assert heads and all(f"claimed, {LABEL}" in line for line in heads)


def test_rows_have_as_many_cells_as_their_head(page):
    width = None
    for line in page.split("\n"):
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        assert width is None or cells is None or cells == width, line
        width = cells


def test_what_could_be_detected_is_told_as_the_verdict_took_it():
    """At 5 % over the number of comparisons, in the overview and in the details alike."""
    blurred = claims_markdown([results(noise=1e-4, seeds=8)], bench())
    row = next(row for row in rows_under(blurred, "Verdicts, study full") if "(#gap-closes)" in row[0])
    details = blurred.split("### gap-closes\n")[1].split("\n### ")[0].split("\n")
    reported = [[cell.strip() for cell in line.split("|")[1:-1]] for line in details if line.startswith("| rank")]
    assert [cells[4] for cells in reported] == row[5].split("<br>")[:2]
    assert len(set(row[5].split("<br>"))) > 1


def test_a_verdict_names_its_teacher_in_few_words_and_the_detail_in_all():
    whole = "lite0 (ImageNet-supervised, not self-supervised), minilm (a sentence encoder, not aligned with images)"
    runs = tuple(replace(run, teacher=whole) if run.cell == "full" else run for run in results().runs)
    text = claims_markdown([Results("full", tuple(run for run in runs if run.cell in ("full", "rank-3")))])
    says = "| The teacher, with the students and the fusion that bring it in, improves the Fine-grained"
    row = next(line for line in text.splitlines() if line.startswith(says))
    assert row.endswith("teacher lite0 (ImageNet-supervised), minilm (a sentence encoder): not DINOv3 |")
    assert f"Teacher {whole}: not DINOv3." in text.split("### teacher-fine")[1].split("###")[0]


def test_seeds_are_counted_where_seeds_decide():
    """A difference that is open needs seeds; near chance, of equality, or of one cell's level nothing is counted."""
    effect = level(dict(enumerate([0.01, 0.0, 0.02])))
    line = EvidenceLine("a - b", effect, "points", 1, 0.01, (), deciding=True)

    def claim(*lines, marks=()):
        return SimpleNamespace(evidence=SimpleNamespace(verdict="inconclusive", shown=lines, marks=marks))

    n = seeds_needed(effect.sd, 0.01)
    group = "at most 8" if n <= 8 else "9 to 30"
    assert f"needs this many seeds to show: {group} in 1." in seeds_text([claim(line)])
    assert seeds_text([claim(replace(line, deciding=False)), claim(replace(line, level=True))]) == ""
    assert "the other 1 are near chance" in seeds_text([claim(line), claim(line, marks=(AT_CHANCE,))])
    assert seeds_text([claim(replace(line, size=0.0))])  # where the paper prints no size, the smallest of interest
