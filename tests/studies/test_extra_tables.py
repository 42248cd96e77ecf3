"""Paired differences, best orders, costs, and the paper's values that stand beside nothing: numbers worked by hand."""

import json
from pathlib import Path

import pytest

from dinorankclip.methods import LABEL
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.extra_tables import (
    best_orders,
    cost_tables,
    paired_differences,
    paper_only,
    student_costs,
)
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.results import Results
from tests.studies.kinds import FLICKR8K, SCENES
from tests.studies.synthetic import TEACHER, made_up, record


def material_of(name: str, bench: Path = Path("no-bench")) -> StudyMaterial:
    study = STUDIES[name]()
    return StudyMaterial(Path("nowhere"), study, made_up(study, seeds=1), bench)


def difference_tables(study: str, runs):
    return paired_differences(StudyMaterial(Path("nowhere"), STUDIES[study](), Results(study, tuple(runs))))


def test_differences_are_paired_by_seed_with_an_interval():
    clip = [record("clip", seed, {SCENES.mean_r1: value}) for seed, value in enumerate((0.10, 0.20, 0.30, 0.90))]
    full = [
        record("full", seed, {SCENES.mean_r1: value}, teacher=TEACHER) for seed, value in enumerate((0.21, 0.3, 0.4))
    ]
    (table,) = difference_tables("full", clip + full)
    (row,) = table.rows
    # 11, 10 and 10 points at the three seeds that both have: 10.33 ± 4.3027 · 0.57735/√3
    assert row[:3] == ("full − CLIP", "3", "+10.33 [8.90, 11.77]")
    assert set(row[3:]) == {"–"} and len(row) == len(table.headings)
    assert TEACHER in table.note


def test_two_seeds_have_no_interval_and_ranking_quality_keeps_its_digits():
    values = {"clip": (0.2, 0.2), "rankclip": (0.2104, 0.2102)}
    score = "scenes-pairs/t2i tau-b"
    (table,) = difference_tables(
        "full", [record(c, s, {score: v}) for c, both in values.items() for s, v in enumerate(both)]
    )
    (row,) = table.rows
    assert row[table.headings.index("τ-b t→i")] == "+0.0103"


def test_an_interval_that_reaches_zero_keeps_its_sign():
    values = {"clip": (0.2, 0.2, 0.2), "rankclip": (0.20011, 0.20015, 0.20001)}
    score = "scenes-pairs/t2i tau-b"
    (table,) = difference_tables(
        "full", [record(c, s, {score: v}) for c, both in values.items() for s, v in enumerate(both)]
    )
    (row,) = table.rows
    # 0.00009 ± 4.3027 · 0.0000721/√3 = [-0.00009, 0.00027]
    assert row[table.headings.index("τ-b t→i")] == "+0.0001 [-0.0001, 0.0003]"
    values = {"clip": (0.2, 0.2, 0.2), "rankclip": (0.20011, 0.20015, 0.20006)}
    (table,) = difference_tables(
        "full", [record(c, s, {score: v}) for c, both in values.items() for s, v in enumerate(both)]
    )
    (row,) = table.rows
    # 0.000107 ± 0.000112
    assert row[table.headings.index("τ-b t→i")] == "+0.0001 [-0.0000, 0.0002]"


def test_photos_have_one_column_of_ranking_and_no_controls():
    cells = ("clip", "cyclip", "alip", "rankclip", "rank-2", "rank-3", "full")
    study = STUDIES["flickr8k"]()
    (table,) = difference_tables("flickr8k", [record(cell, 0, {FLICKR8K.mean_r1: 0.1}, study) for cell in cells])
    assert [row[0] for row in table.rows][-2:] == ["full − RankCLIP", "full − order 3 without a teacher"]
    assert table.headings[4:] == ("ranking τ-b", "cone separation °")


def test_nothing_shared_means_no_table():
    assert (
        difference_tables("full", [record("clip", 0, {SCENES.mean_r1: 0.1}), record("full", 1, {SCENES.mean_r1: 0.1})])
        == []
    )


SUITES = (
    SCENES.top1, SCENES.shift, SCENES.recall("i2t", 1), SCENES.recall("t2i", 1), SCENES.coarse_probe, SCENES.fine_probe,
)  # fmt: skip
PLAIN = ("clip", "rankclip", "rank-2", "rank-3", "rank-4", "rank-5")


def best_order_rows(by_order: list[list[float]]) -> list[tuple[str, ...]]:
    """Every suite has these values of the plain orders, one a seed."""
    runs = [
        record(cell, seed, dict.fromkeys(SUITES, value))
        for cell, values in zip(PLAIN, by_order)
        for seed, value in enumerate(values)
    ]
    (table,) = best_orders(StudyMaterial(Path("nowhere"), STUDIES["full"](), Results("full", tuple(runs))))
    return list(table.rows)


def test_the_best_order_is_named_with_its_lead_over_order_3():
    found = best_order_rows(
        [[0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [0.31, 0.32, 0.33], [0.2, 0.22, 0.23], [0.1] * 3, [0.1] * 3]
    )
    assert len(found) == 6  # the sweep with a teacher has not run
    # Leads of 11, 10 and 10 points: 10.33 ± 4.3027 · 0.57735/√3
    assert found[0] == ("T@1", "plain", "3", "2", "32.00", "0.78", "+10.33 ± 1.43", "yes", "3 ‡", "11.3")


def test_the_lead_is_corrected_for_being_the_best_of_five():
    # Leads of 3, 5 and 4 points: alone they would do (p = 0.02), as the best of five rivals they do not.
    found = best_order_rows([[0.1] * 3, [0.2] * 3, [0.33, 0.36, 0.34], [0.3, 0.31, 0.3], [0.1] * 3, [0.1] * 3])
    assert found[0][6:8] == ("+4.00 ± 2.48", "no")


def test_all_seeds_of_the_two_orders_tell_them_apart():
    # Three seeds of the sweep put order 1 ahead; the eight that it shares with order 3 do not.
    one, three = [0.3, 0.31, 0.32, 0.1, 0.1, 0.1, 0.1, 0.1], [0.2, 0.21, 0.22, 0.2, 0.2, 0.2, 0.2, 0.2]
    found = best_order_rows([[0.1] * 3, one, [0.1] * 3, three, [0.1] * 3, [0.1] * 3])
    assert found[0][2:4] == ("3", "1") and found[0][6].startswith("-2.50") and found[0][7] == "no"


def test_near_chance_no_order_is_told_from_another():
    found = best_order_rows(
        [[0.008] * 3, [0.012, 0.0121, 0.0122], [0.008] * 3, [0.009, 0.0091, 0.0091], [0.008] * 3, [0.008] * 3]
    )
    assert found[0][3] == "1" and found[0][7] == "near chance"


def test_only_seeds_that_all_orders_have_count():
    # By its mean over all seeds order 1 would be best.
    found = best_order_rows([[0.1, 0.1], [0.2, 0.2, 0.9], [0.1, 0.1], [0.3, 0.3], [0.1, 0.1], [0.1, 0.1]])
    assert found[0][2:8] == ("2", "3", "30.00", "0.78", "–", "–")


def test_of_equal_orders_the_smallest_is_named_and_two_seeds_tell_nothing():
    found = best_order_rows([[0.1, 0.1], [0.3, 0.4], [0.3, 0.4], [0.2, 0.2], [0.1, 0.1], [0.1, 0.1]])
    assert found[0][3:8] == ("1", "35.00", "0.78", "+15.00", "no")


def test_a_sweep_with_a_hole_and_a_study_without_suites_have_no_best_order():
    assert best_order_rows([[0.1], [0.2], [], [0.3], [0.1], [0.1]]) == []
    photos = Results("flickr8k", (record("clip", 0, {FLICKR8K.top1: 0.1}),))
    assert best_orders(StudyMaterial(Path("nowhere"), STUDIES["flickr8k"](), photos)) == []


def test_students_are_told_as_they_were_benched(tmp_path):
    rows = [
        {"student": "vit-micro", "parameters": 164_864, "p50 ms": 0.834},
        {"student": "resnet50", "parameters": 23_508_032, "p50 ms": 52.92},
        {"part": "image: trunk", "parameters": 1, "p50 ms": 1.0},
    ]
    (tmp_path / "latency-2026-01-02.json").write_text(json.dumps(rows))
    (tmp_path / "latency-2026-01-02.md").write_text("A machine, 2 threads. 60 rounds.\n\n| preset |\n")
    table = student_costs(material_of("full", tmp_path))
    reported = {row[1]: row for row in table.rows}
    assert "A machine, 2 threads. 60 rounds." in table.notes and LABEL in table.headings[-1]
    # What the paper says of its students does not stand beside ours, which are smaller.
    assert reported["vit-micro"] == ("full", "vit-micro", "0.16 M", "0.23 M", "0.83", "–", "–")
    assert reported["resnet50"] == ("the paper's own", "resnet50", "23.51 M", "25.56 M", "52.92", "25.6 ‡", "12.4 ‡")
    assert reported["mobilenetv3-large"][2:4] == ("2.97 M", "5.48 M")
    assert reported["vit-tiny"][2:] == ("5.52 M", "5.72 M", "–", "5.7 ‡", "8.6 ‡")  # not benched here


def test_at_the_papers_scale_its_students_are_cells(tmp_path):
    table = student_costs(material_of("cc3m", tmp_path))
    assert [row[:2] for row in table.rows] == [
        ("full-resnet-ablation", "resnet50"), ("full-mobilenet-ablation", "mobilenetv3-large"),
        ("full-ablation", "vit-tiny"),
    ]  # fmt: skip
    assert "not measured yet" in table.notes


@pytest.mark.parametrize("name", ["full", "flickr8k", "cc3m"])
def test_every_value_stands_somewhere_once(name):
    material = material_of(name)
    plain = (*best_orders(material), *cost_tables(material))
    beside = {value.place for table in material.tables for row in table.rows for value in row.paper if value}
    beside |= {value.place for table in plain for value in table.paper}
    note, tables = paper_only(material)
    numbers = [cell for table in tables for row in table.rows for cell in row[1:] if cell != "–"]
    values = sum(len(reported) for rows in PAPER.values.values() for reported in rows.values())
    assert len(numbers) + len(beside - {None}) == values
    for table in tables:
        assert all(heading.endswith(LABEL) for heading in table.headings[1:])
    assert "‡: printed as a result" in note and "are projections" in note


def test_what_the_small_studies_have_no_cell_for():
    tables = {table.name: table for table in paper_only(material_of("full"))[1]}
    assert [row[0] for row in tables["tab:teacher"].rows] == ["DINOv1", "DINOv2"]
    assert len(tables["tab:per-dataset-order"].rows) == 12
    assert tables["tab:ood-fg"].rows[0][:3] == ("clip", "7.53 ‡", "8.89 ‡")
    assert "FG-avg" not in " ".join(tables["tab:ood-fg"].headings)
    assert "total printed" not in [row[0] for row in tables["tab:compute"].rows]
    assert PAPER.values.titles.keys() == PAPER.values.keys()
    assert tables["tab:teacher"].markdown(level=3).startswith("### Teacher (tab:teacher)")
