from pathlib import Path

from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip.extra_tables import best_orders
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.results import Results
from tests.studies.kinds import FLICKR8K, SCENES
from tests.studies.synthetic import record

SUITES = (
    SCENES.top1, SCENES.shift, SCENES.recall("i2t", 1), SCENES.recall("t2i", 1), SCENES.coarse_probe, SCENES.fine_probe,
)  # fmt: skip
PLAIN = ("clip", "rankclip", "rank-2", "rank-3", "rank-4", "rank-5")


def rows(by_order: list[list[float]]) -> list[tuple[str, ...]]:
    """Every suite has these values of the plain orders, one a seed."""
    runs = [
        record(cell, seed, dict.fromkeys(SUITES, value))
        for cell, values in zip(PLAIN, by_order)
        for seed, value in enumerate(values)
    ]
    (table,) = best_orders(StudyMaterial(Path("nowhere"), STUDIES["full"](), Results("full", tuple(runs))))
    return list(table.rows)


def test_the_best_order_is_named_with_its_lead_over_order_3():
    found = rows([[0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [0.31, 0.32, 0.33], [0.2, 0.22, 0.23], [0.1] * 3, [0.1] * 3])
    assert len(found) == 6  # the sweep with a teacher has not run
    # Leads of 11, 10 and 10 points: 10.33 ± 4.3027 · 0.57735/√3
    assert found[0] == ("T@1", "plain", "3", "2", "32.00", "0.78", "+10.33 ± 1.43", "yes", "3 ‡", "11.3")


def test_the_lead_is_corrected_for_being_the_best_of_five():
    # Leads of 3, 5 and 4 points: alone they would do (p = 0.02), as the best of five rivals they do not.
    found = rows([[0.1] * 3, [0.2] * 3, [0.33, 0.36, 0.34], [0.3, 0.31, 0.3], [0.1] * 3, [0.1] * 3])
    assert found[0][6:8] == ("+4.00 ± 2.48", "no")


def test_all_seeds_of_the_two_orders_tell_them_apart():
    # Three seeds of the sweep put order 1 ahead; the eight that it shares with order 3 do not.
    one, three = [0.3, 0.31, 0.32, 0.1, 0.1, 0.1, 0.1, 0.1], [0.2, 0.21, 0.22, 0.2, 0.2, 0.2, 0.2, 0.2]
    found = rows([[0.1] * 3, one, [0.1] * 3, three, [0.1] * 3, [0.1] * 3])
    assert found[0][2:4] == ("3", "1") and found[0][6].startswith("-2.50") and found[0][7] == "no"


def test_near_chance_no_order_is_told_from_another():
    found = rows([[0.008] * 3, [0.012, 0.0121, 0.0122], [0.008] * 3, [0.009, 0.0091, 0.0091], [0.008] * 3, [0.008] * 3])
    assert found[0][3] == "1" and found[0][7] == "near chance"


def test_only_seeds_that_all_orders_have_count():
    # By its mean over all seeds order 1 would be best.
    found = rows([[0.1, 0.1], [0.2, 0.2, 0.9], [0.1, 0.1], [0.3, 0.3], [0.1, 0.1], [0.1, 0.1]])
    assert found[0][2:8] == ("2", "3", "30.00", "0.78", "–", "–")


def test_of_equal_orders_the_smallest_is_named_and_two_seeds_tell_nothing():
    found = rows([[0.1, 0.1], [0.3, 0.4], [0.3, 0.4], [0.2, 0.2], [0.1, 0.1], [0.1, 0.1]])
    assert found[0][3:8] == ("1", "35.00", "0.78", "+15.00", "no")


def test_a_sweep_with_a_hole_and_a_study_without_suites_have_no_best_order():
    assert rows([[0.1], [0.2], [], [0.3], [0.1], [0.1]]) == []
    photos = Results("flickr8k", (record("clip", 0, {FLICKR8K.top1: 0.1}),))
    assert best_orders(StudyMaterial(Path("nowhere"), STUDIES["flickr8k"](), photos)) == []
