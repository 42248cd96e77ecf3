"""Numbers in tables, worked by hand; what is bold, what is labelled, and where a row comes from."""

import csv
import io
import json
import math
from dataclasses import replace

import pytest

from dinorankclip.formatting import Form, form_of
from dinorankclip.methods import LABEL
from dinorankclip_studies.claim import judged
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.papers.paper_data import PaperValue
from dinorankclip_studies.results import Results
from dinorankclip_studies.study import Column, Experiment, Row
from dinorankclip_studies.study_tables import build_table
from dinorankclip_studies.table_files import (
    as_csv,
    as_latex,
    as_markdown,
    difference_grid,
    grids,
    latex,
    notes,
    trace,
    value_grid,
    write_table,
)
from tests.studies.synthetic import TEACHER, made_up, record

T975 = 4.3027  # 97.5 % quantile of Student's t, two degrees of freedom
SHARE, ANGLE = Column("s/T@1", "T@1"), Column("s/cone", "cone °", percent=False, better="lower")


def results(**values: list[float]) -> Results:
    """cell=[share of seed 0, of seed 1, …]; the angle is 100 times the share."""
    runs = [
        record(cell.replace("_", "-"), seed, {"s/T@1": value, "s/cone": 100 * value})
        for cell, found in values.items()
        for seed, value in enumerate(found)
    ]
    return Results("small", tuple(runs))


def experiment(*rows: Row, columns=(SHARE, ANGLE), reference="clip", **more) -> Experiment:
    return Experiment("made-up", "Made up & tested", rows, columns, reference, **more)


def text_of(grid) -> list[list[str]]:
    return [[words.text for words in row] for row in grid.rows]


def bold_of(grid) -> list[tuple[str, str]]:
    """(row, column heading) of what is bold."""
    return [(row[0].text, grid.headings[at]) for row in grid.rows for at, words in enumerate(row) if words.bold]


def test_means_intervals_and_paired_differences():
    found = results(clip=[0.10, 0.12, 0.14], rankclip=[0.20, 0.23, 0.23])
    table = build_table(experiment(Row("CLIP", "clip"), Row("RankCLIP", "rankclip")), found)
    half = 100 * T975 * 0.02 / math.sqrt(3)
    assert text_of(value_grid(table))[0] == ["CLIP", "3", f"12.00 ± {half:.2f}", f"12.00 ± {half:.2f}"]
    # Differences 10, 11 and 9 points: mean 10, standard deviation 1, far tighter than either mean.
    assert text_of(difference_grid(table)) == [["RankCLIP", "3", "+10.00 ± 2.48 *", "+10.00 ± 2.48 *"]]
    assert difference_grid(table).headings == ("minus CLIP", "n", "T@1", "cone °")


def test_seeds_that_only_one_has_are_not_paired():
    table = build_table(
        experiment(Row("CLIP", "clip"), Row("full", "full")), results(clip=[0.1, 0.2, 0.3, 0.4], full=[0.2, 0.3])
    )
    effect = table.rows[1].measured[0].effect
    assert effect.n == 2 and effect.mean == pytest.approx(0.1)
    assert text_of(value_grid(table))[0][1] == "4" and text_of(difference_grid(table))[0][1] == "2"


def test_bold_needs_three_seeds_and_a_clear_margin_to_the_runner_up():
    several = experiment(Row("CLIP", "clip"), Row("RankCLIP", "rankclip"), Row("full", "full"))
    clip, ahead = [0.1, 0.2, 0.1], [0.3, 0.401, 0.3]
    clear = build_table(several, results(clip=clip, rankclip=[0.11, 0.2101, 0.11], full=ahead))
    assert bold_of(value_grid(clear)) == [("CLIP", "cone °"), ("full", "T@1")]
    # full leads by 1, 9 and 5 points: with three seeds that is no margin.
    unclear = build_table(several, results(clip=clip, rankclip=[0.15, 0.2, 0.15], full=[0.16, 0.29, 0.2]))
    assert bold_of(value_grid(unclear)) == []
    # RankCLIP is nearest and surely behind; CLIP is farther behind, but not surely.
    spread = build_table(several, results(clip=[0.35, 0.1, 0.1], rankclip=[0.29, 0.391, 0.2901], full=ahead))
    assert ("full", "T@1") not in bold_of(value_grid(spread))
    few = build_table(several, results(clip=clip[:2], rankclip=[0.11, 0.2101], full=ahead[:2]))
    assert bold_of(value_grid(few)) == [] and "*" not in text_of(difference_grid(few))[1][2]
    alone = build_table(several, results(clip=[0.1], rankclip=[0.2], full=[0.9]))
    assert bold_of(value_grid(alone)) == []
    assert text_of(value_grid(alone))[2] == ["full", "1", "90.00", "90.00"]
    assert any("n < 3" in note for note in notes(alone)) and not any("±" in note for note in notes(alone))


@pytest.mark.parametrize(("seeds", "bold"), [(3, []), (5, []), (6, [("full", "T@1"), ("CLIP", "cone °")])])
def test_the_same_difference_with_every_seed_needs_six_seeds(seeds, bold):
    clip = [0.125 * (1 + seed % 3) for seed in range(seeds)]  # exact in binary, as shares of 1,024 images are
    found = results(clip=clip, full=[value + 0.25 for value in clip])
    table = build_table(experiment(Row("CLIP", "clip"), Row("full", "full")), found)
    assert sorted(bold_of(value_grid(table))) == sorted(bold)
    assert ("*" in text_of(difference_grid(table))[0][2]) == bool(bold)


def test_one_seed_of_the_best_is_never_bold():
    table = build_table(
        experiment(Row("CLIP", "clip"), Row("full", "full")), results(clip=[0.1, 0.11, 0.12], full=[0.9])
    )
    assert bold_of(value_grid(table)) == []
    assert "n < 3" in " ".join(notes(table)) and "Bold:" in " ".join(notes(table))


def test_unmatched_rows_do_not_compete():
    rows = Row("CLIP", "clip"), Row("RankCLIP", "rankclip"), Row("large", "control-large-trunk")
    clip, rankclip = [0.1, 0.2, 0.1], [0.3, 0.401, 0.3]
    several = experiment(*rows, columns=(SHARE,), unmatched={"control-large-trunk": ("model.trunk",)})
    # Its lead over RankCLIP is not shown, and it does not have to be: it does not compete.
    grid = value_grid(build_table(several, results(clip=clip, rankclip=rankclip, control_large_trunk=[0.2, 0.5, 0.1])))
    assert bold_of(grid) == [("RankCLIP", "T@1")] and grid.rows[2][0].text == "large †"
    # A bold number beside a higher one would be read as the best.
    grid = value_grid(build_table(several, results(clip=clip, rankclip=rankclip, control_large_trunk=[0.8])))
    assert bold_of(grid) == []


def test_what_was_not_run_and_what_was_not_scored():
    found = results(clip=[0.1, 0.2])
    columns = (SHARE, Column("s/other", "other"))
    table = build_table(experiment(Row("CLIP", "clip"), Row("full", "full"), columns=columns), found)
    assert text_of(value_grid(table))[0][3] == "–" and text_of(value_grid(table))[1] == ["full", "–", "–", "–"]
    assert notes(table)[-1] == "–: not run or not scored." and table.unfinished == ("full",)
    assert difference_grid(table) is None


def with_chance(clip: list[float], full: list[float]) -> Results:
    return replace(results(clip=clip, full=full), chances={"s/T@1": 0.25})


def test_chance_stands_below_and_marks_columns_that_nobody_masters():
    several = experiment(Row("CLIP", "clip"), Row("full", "full", {"T@1": PaperValue(9.06, black=True)}))
    lost = build_table(several, with_chance([0.2, 0.3], [0.251, 0.257]))
    grid = value_grid(lost)
    assert [words.text for words in grid.rows[-1]] == ["chance", "–", "25.00", "–", "–"]
    assert grid.headings == ("", "n", "T@1 [near chance]", "cone °", "T@1")  # the last is the paper's
    assert difference_grid(lost).headings[2] == "T@1 [near chance]" and "chance" not in str(difference_grid(lost).rows)
    assert any(note.startswith("[near chance]: no row is shown") for note in notes(lost))
    assert {row["chance"] for row in csv.DictReader(io.StringIO(as_csv(lost)))} == {"0.25", ""}
    found = build_table(several, with_chance([0.2, 0.3], [0.4, 0.5]))
    assert value_grid(found).headings[2] == "T@1" and not any("[near chance]" in note for note in notes(found))
    sure = build_table(several, with_chance([0.2, 0.21, 0.2], [0.25, 0.261, 0.25]))
    assert bold_of(value_grid(sure)) == [("CLIP", "cone °")]  # who is ahead at chance is no finding


def test_a_quotient_of_chance_is_not_shown():
    drop = Column("s/cone", "drop, %", better="lower", over="s/T@1")
    rows = Row("CLIP", "clip"), Row("full", "full"), Row("RankCLIP", "rankclip")
    found = replace(results(clip=[0.2, 0.2], full=[0.5, 0.5], rankclip=[0.6, 0.7]), chances={"s/T@1": 0.25})
    table = build_table(experiment(*rows, columns=(SHARE, drop), reference="full"), found)
    assert [row[3] for row in text_of(value_grid(table))] == ["–", "5,000.00", "6,500.00", "–"]
    assert [row[3] for row in text_of(difference_grid(table))] == ["–", "+1,500.00"]
    assert notes(table)[-1] == "–: a quotient of scores at chance."
    table = build_table(experiment(*rows, columns=(drop,), reference="clip"), found)
    assert difference_grid(table) is None  # there is nothing to compare with


@pytest.mark.parametrize("count", [2, 6])
def test_the_papers_values_always_stand_under_their_label(count):
    columns = tuple(Column("s/T@1", f"c{at}") for at in range(count))
    paper = {column.heading: PaperValue(10.5 + at, black=False) for at, column in enumerate(columns)}
    table = build_table(
        experiment(Row("CLIP", "clip"), Row("full", "full", paper), columns=columns),
        results(clip=[0.1, 0.2], full=[0.3, 0.4]),
    )
    shown = 0
    for grid in grids(table):
        for row in grid.rows:
            for words, group in zip(row, grid.groups):
                if words.text in ("10.5", "11.5", "12.5", "13.5", "14.5", "15.5"):
                    assert group == LABEL
                    shown += 1
    assert shown == count
    for text in (as_markdown(table), as_latex(table)):
        assert "10.5" in text and LABEL in text
    for line in as_markdown(table).splitlines():
        if "c0" in line and "less" not in line and line.count("c0") > 1:
            assert f"c0, {LABEL}" in line
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert next(row["paper_projected"] for row in rows if row["cell"] == "full") == "10.5"
    assert all(row["paper_projected"] == "" for row in rows if row["cell"] == "clip")


def test_what_the_paper_prints_as_a_result_is_marked():
    black, red = ({"T@1": PaperValue(value, is_black)} for value, is_black in ((9.06, True), (11.3, False)))
    found = results(clip=[0.1], full=[0.3])
    table = build_table(experiment(Row("CLIP", "clip", black), Row("full", "full", red), columns=(SHARE,)), found)
    assert [row[-1] for row in text_of(value_grid(table))] == ["9.06 ‡", "11.30"]
    reported = " ".join(notes(table))
    assert "‡: printed as a result" in reported and "without a mark are projections" in reported
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert [(row["paper_projected"], row["paper_colour"]) for row in rows] == [("9.06", "black"), ("11.3", "red")]
    assert r"$\ddagger$" in as_latex(table)
    table = build_table(experiment(Row("CLIP", "clip"), Row("full", "full", red), columns=(SHARE,)), found)
    assert "They are projections" in " ".join(notes(table)) and "‡" not in " ".join(notes(table))


def test_at_the_papers_scale_tables_and_claims_find_their_scores():
    study = STUDIES["cc3m"]()
    found = made_up(study, seeds=2)
    tables = [build_table(experiment, found) for experiment in study.experiments]
    assert not [one for table in tables for row in table.rows for one in row.measured if one.why_missing]
    # One control is not part of that study; the others need telemetry or a bench, which nobody made up here.
    without = {one.claim.id for one in judged(found) if one.evidence.verdict == "not run"}
    assert without == {"control-large-trunk", "angle-small", "angle-bound", "near-misses"}


def test_without_a_paper_value_there_is_no_label():
    table = build_table(experiment(Row("CLIP", "clip"), Row("full", "full")), results(clip=[0.1], full=[0.3]))
    assert LABEL not in as_markdown(table) + as_latex(table)


def test_inert_orders_and_teachers_are_told():
    spread = {"spread2_image": 0.3, "spread2_text": 0.1, "spread3_image": 2e-4, "spread3_text": 9e-4}
    runs = (record("clip", 0, {"s/T@1": 0.1}), record("full", 0, {"s/T@1": 0.2}, telemetry=spread, teacher=TEACHER))
    table = build_table(experiment(Row("CLIP", "clip"), Row("full", "full"), columns=(SHARE,)), Results("small", runs))
    assert text_of(value_grid(table))[1][0] == "full [order 3 inert]"
    assert f"Teacher of full: {TEACHER}." in notes(table)


def test_csv_holds_shares_and_all_seeds():
    table = build_table(
        experiment(Row("CLIP", "clip"), Row("full", "full"), columns=(SHARE,)),
        results(clip=[0.1, 0.2, 0.3], full=[0.2, 0.4, 0.6]),
    )
    clip, full = csv.DictReader(io.StringIO(as_csv(table)))
    assert (clip["mean"], clip["n"], clip["unit"], clip["difference"]) == ("0.2", "3", "share", "")
    assert (full["difference"], full["difference_n"], full["seeds"]) == ("0.2", "3", "0 1 2")
    assert float(full["high"]) == pytest.approx(0.4 + T975 * 0.2 / math.sqrt(3), rel=1e-4)
    assert len(full["keys"].split()) == 3


def test_latex_prints_what_was_written():
    assert latex("50 % of a_b & {c} #1 ~ ^ \\ <x>") == (
        r"50 \% of a\_b \& \{c\} \#1 \textasciitilde{} \textasciicircum{} \textbackslash{} \textless{}x\textgreater{}"
    )
    table = build_table(experiment(Row("a_b 5 %", "clip"), Row("full", "full")), results(clip=[0.1], full=[0.2]))
    text = as_latex(table)
    assert r"a\_b 5 \%" in text and r"\caption{Made up \& tested}" in text and r"\toprule" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2


def test_markdown_cells_stay_cells():
    table = build_table(experiment(Row("a|b *c* <i>", "clip"), Row("full", "full")), results(clip=[0.1], full=[0.2]))
    row = next(line for line in as_markdown(table).splitlines() if "a\\|b" in line)
    assert row == r"| a\|b \*c\* &lt;i> | 1 | 10.00 | 10.00 |"


def test_a_cell_traces_to_its_runs(tmp_path):
    table = build_table(experiment(Row("CLIP", "clip"), Row("o3", "rank-3")), results(clip=[0.1], rank_3=[0.2, 0.3]))
    names = [path.name for path in write_table(table, tmp_path / "tables")]
    assert names == ["made-up.md", "made-up.tex", "made-up.csv", "made-up.trace.json"]
    reported = json.loads((tmp_path / "tables" / "made-up.trace.json").read_text())
    assert reported["table"] == trace(table)["table"] and reported["scores"] == {"T@1": "s/T@1", "cone °": "s/cone"}
    row = reported["rows"][1]
    assert row["cell"] == "rank-3" and [run["seed"] for run in row["runs"]] == [0, 1]
    assert all(run["folder"] == f"cells/{run['key']}" and run["revision"] == "abc123" for run in row["runs"])
    assert row["settings"]["loss"]["order"] == 3 and row["settings"]["method"] == "rank"


def test_digits_follow_the_size_of_a_column():
    assert form_of([0.123], percent=True).plain(0.123456) == "12.35"
    assert form_of([61.2, 3.0], percent=False).plain(61.234) == "61.23"
    assert form_of([0.2], percent=False).signed(0.0123) == "+0.0123"
    assert form_of([5_400_000.0], percent=False).plain(5_400_000) == "5,400,000"


def test_what_rounds_to_zero_has_no_minus():
    form = Form(100.0, 2)
    assert (form.plain(-1e-6), form.signed(-1e-6), form.signed(-1e-3)) == ("0.00", "+0.00", "-0.10")
