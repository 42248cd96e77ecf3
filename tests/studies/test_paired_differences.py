from pathlib import Path

from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip.extra_tables import paired_differences
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.results import Results
from tests.studies.kinds import FLICKR8K, SCENES
from tests.studies.synthetic import TEACHER, record


def tables(study: str, runs):
    return paired_differences(StudyMaterial(Path("nowhere"), STUDIES[study](), Results(study, tuple(runs))))


def test_differences_are_paired_by_seed_with_an_interval():
    clip = [record("clip", seed, {SCENES.mean_r1: value}) for seed, value in enumerate((0.10, 0.20, 0.30, 0.90))]
    full = [
        record("full", seed, {SCENES.mean_r1: value}, teacher=TEACHER) for seed, value in enumerate((0.21, 0.3, 0.4))
    ]
    (table,) = tables("full", clip + full)
    (row,) = table.rows
    # 11, 10 and 10 points at the three seeds that both have: 10.33 ± 4.3027 · 0.57735/√3
    assert row[:3] == ("full − CLIP", "3", "+10.33 [8.90, 11.77]")
    assert set(row[3:]) == {"–"} and len(row) == len(table.headings)
    assert TEACHER in table.note


def test_two_seeds_have_no_interval_and_ranking_quality_keeps_its_digits():
    values = {"clip": (0.2, 0.2), "rankclip": (0.2104, 0.2102)}
    score = "scenes-pairs/t2i tau-b"
    (table,) = tables("full", [record(c, s, {score: v}) for c, both in values.items() for s, v in enumerate(both)])
    (row,) = table.rows
    assert row[table.headings.index("τ-b t→i")] == "+0.0103"


def test_an_interval_that_reaches_zero_keeps_its_sign():
    values = {"clip": (0.2, 0.2, 0.2), "rankclip": (0.20011, 0.20015, 0.20001)}
    score = "scenes-pairs/t2i tau-b"
    (table,) = tables("full", [record(c, s, {score: v}) for c, both in values.items() for s, v in enumerate(both)])
    (row,) = table.rows
    # 0.00009 ± 4.3027 · 0.0000721/√3 = [-0.00009, 0.00027]
    assert row[table.headings.index("τ-b t→i")] == "+0.0001 [-0.0001, 0.0003]"
    values = {"clip": (0.2, 0.2, 0.2), "rankclip": (0.20011, 0.20015, 0.20006)}
    (table,) = tables("full", [record(c, s, {score: v}) for c, both in values.items() for s, v in enumerate(both)])
    (row,) = table.rows
    # 0.000107 ± 0.000112
    assert row[table.headings.index("τ-b t→i")] == "+0.0001 [-0.0000, 0.0002]"


def test_photos_have_one_column_of_ranking_and_no_controls():
    cells = ("clip", "cyclip", "alip", "rankclip", "rank-2", "rank-3", "full")
    study = STUDIES["flickr8k"]()
    (table,) = tables("flickr8k", [record(cell, 0, {FLICKR8K.mean_r1: 0.1}, study) for cell in cells])
    assert [row[0] for row in table.rows][-2:] == ["full − RankCLIP", "full − order 3 without a teacher"]
    assert table.headings[4:] == ("ranking τ-b", "cone separation °")


def test_nothing_shared_means_no_table():
    assert tables("full", [record("clip", 0, {SCENES.mean_r1: 0.1}), record("full", 1, {SCENES.mean_r1: 0.1})]) == []
