"""Figures are drawn and hold the numbers they were given; what cannot be drawn says why."""

import io
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from dinorankclip.methods import LABEL
from dinorankclip.report.figures import Unavailable, loss_curves, order_telemetry, score_curves
from dinorankclip_studies.material import StudyModels
from dinorankclip_studies.papers.dinorankclip.figures_examples import (
    Outcome,
    confusion_matrices,
    fine_cases,
    probe_models,
    won_and_lost,
)
from dinorankclip_studies.papers.dinorankclip.figures_geometry import cone_bars, embedding_planes, transition_heatmaps
from dinorankclip_studies.papers.dinorankclip.figures_method import gram_heatmaps, overview, teacher_student_histogram
from dinorankclip_studies.papers.dinorankclip.figures_orders import cost_over_order, data_scaling, order_curves
from dinorankclip_studies.papers.dinorankclip.paper_tables import columns, headline, ranking_quality
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.results import Results
from dinorankclip_studies.verdicts import paired
from tests.studies.kinds import SCENES
from tests.studies.synthetic import made_up

TRIO = {"clip": "CLIP", "rankclip": "RankCLIP", "full": "full"}
(MEAN_R1,) = columns(SCENES, "mean R@1")


@pytest.fixture(scope="module")
def results():
    return made_up(STUDIES["full"]())


def check(drawn):
    """It becomes a picture of some size that is not empty, and its caption is whole."""
    picture = Image.open(io.BytesIO(drawn.png))
    assert picture.width >= 200 and picture.height > 200
    assert len(np.unique(np.asarray(picture.convert("L")))) > 10  # not empty
    assert drawn.caption.endswith(".") and "{" not in drawn.caption
    return drawn


def titles(drawn) -> list[str]:
    return [axes.get_title(loc="left") or axes.get_title() for axes in drawn.picture.axes]


def test_overview():
    drawn = check(overview())
    assert ElementTree.fromstring(drawn.svg).tag.endswith("svg")
    assert drawn.svg == overview().svg  # the same drawing is the same file


def test_order_curves_show_three_curves_and_the_papers_own(results):
    drawn = check(order_curves(results, headline(SCENES)))
    assert titles(drawn)[:5] == ["T@1", "mean R@1", "shift mean T@1", "fine probe", LABEL]
    axes = drawn.picture.axes[0]
    handles, labels = axes.get_legend_handles_labels()
    mix = "plain at 0 and 1, full above (the paper's mix), our values"
    assert set(labels) == {"plain", "with teacher and fusion", mix, "chance"}
    plain = handles[labels.index("plain")].lines[0].get_ydata()
    seeds = results.of("rank-2").keys() & results.of("clip").keys()
    assert len(seeds) < len(results.of("clip"))  # a line joins means over the same seeds
    values = [results.values(cell, SCENES.top1) for cell in ("clip", "rankclip")]
    expected = [100 * np.mean([found[seed] for seed in seeds]) for found in values]
    assert plain[:2] == pytest.approx(expected)
    assert handles[labels.index("chance")].get_ydata()[0] == pytest.approx(100 / 129)
    mixed = handles[labels.index(mix)].get_ydata()
    assert mixed[:2] == pytest.approx(expected)
    assert mixed[2] == pytest.approx(100 * np.mean(list(results.values("full-2", SCENES.top1).values())))
    assert "(n = 3)" in drawn.caption and legend_title(drawn) == "n = 3; bars: 95 % t-intervals"


def legend_title(drawn) -> str:
    (legend,) = drawn.picture.legends
    return legend.get_title().get_text()


def test_one_seed_has_no_bars_and_the_picture_says_so(results):
    single = Results("full", tuple(run for run in results.runs if run.seed == 0))
    for drawn in (
        order_curves(single, headline(SCENES)), data_scaling(single, MEAN_R1, 4000),
    ):  # fmt: skip
        assert legend_title(drawn) == "n = 1; too few seeds for intervals"
        assert not any(axes.containers for axes in drawn.picture.axes)  # error bars come in containers


def test_the_direction_of_ranking_quality_is_named():
    assert ranking_quality(SCENES).heading == "τ-b t→i" and "t2i" in SCENES.ranking_quality


def test_orders_that_were_not_run_are_left_out(results):
    some = Results("full", tuple(run for run in results.runs if run.cell in ("clip", "rank-2", "full")))
    drawn = order_curves(some, [MEAN_R1])
    handles, labels = drawn.picture.axes[0].get_legend_handles_labels()
    assert len(handles[labels.index("plain")].lines[0].get_ydata()) == 2
    with pytest.raises(Unavailable):
        order_curves(Results("full", ()), [MEAN_R1])


def test_data_scaling_pairs_by_seed(results):
    drawn = check(data_scaling(results, MEAN_R1, 4000))
    gap = drawn.picture.axes[1].containers[0].lines[0].get_ydata()
    pair = [results.values(cell, SCENES.mean_r1) for cell in ("rankclip-n1000", "full-n1000")]
    assert len(gap) == 3 and gap[0] == pytest.approx(100 * paired(*pair).mean)
    with pytest.raises(Unavailable, match="two amounts"):
        data_scaling(Results("full", tuple(run for run in results.runs if "-n" not in run.cell)), MEAN_R1, 9)


def test_cone_bars(results):
    drawn = check(cone_bars(results, SCENES.cone))
    bars = [patch.get_height() for patch in drawn.picture.axes[0].patches]
    assert bars[0] == pytest.approx(np.mean(list(results.values("clip", SCENES.cone).values())))
    assert titles(drawn) == ["measured, scenes-pairs", LABEL]


def test_cost_over_order(tmp_path):
    cells = {f"{items}/{order}": {"seconds": 0.1 * order, "bytes": 1e6} for items in (128, 256) for order in (1, 2, 3)}
    (tmp_path / "ranking-2026-01-02.json").write_text(json.dumps({"date": "2026-01-02", "results": {"loss": cells}}))
    assert [labels_in(axes) for axes in cost_over_order(tmp_path).picture.axes] == [["B = 128", "B = 256"]] * 2
    ratio = {"median": 1.5, "least": 1.4, "most": 1.7}
    sides = {f"order {order}": {"ratio": ratio} for order in range(4)} | {"full method, order 3": {"ratio": ratio}}
    record = {"date": "2026-01-03", "comparisons": [{"title": "steps", "sides": sides}]}
    (tmp_path / "orders-2026-01-03.json").write_text(json.dumps(record))
    drawn = check(cost_over_order(tmp_path))
    assert LABEL in drawn.picture.axes[2].get_legend_handles_labels()[1] and "2026-01-03" in drawn.caption
    with pytest.raises(Unavailable, match="ranking bench"):
        cost_over_order(tmp_path / "nowhere")


def labels_in(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_history_cells_of_heatmaps_are_empty(kept):
    drawn = check(transition_heatmaps(kept, "rank-3"))
    images = [axes.images[0].get_array() for axes in drawn.picture.axes if axes.images]
    pair, triple = (image for image in images if image.shape == (8, 8))
    assert np.array_equal(np.ma.getmaskarray(pair), np.eye(8, dtype=bool))
    history = np.eye(8, dtype=bool)
    history[:, 0] = history[0] = True  # the first item is in every history; after itself there is none
    assert np.array_equal(np.ma.getmaskarray(triple), history)
    # Rows are centred over what is left.
    assert np.abs(pair.mean(1)).max() < 1e-4 and np.abs(triple[1:].mean(1)).max() < 1e-4


def test_pictures_of_models(kept, results):
    drawn = check(embedding_planes(kept, "pairs", {"clip": "CLIP", "full": "full"}))
    assert drawn.svg is None
    assert drawn.caption.startswith("16 test pairs") and titles(drawn)[0].startswith("CLIP: ")
    check(won_and_lost(kept, "pairs", TRIO))
    probed = probe_models(kept, "fine", TRIO)
    drawn = check(confusion_matrices(probed, results, SCENES.fine_errors_in_family, TRIO))
    assert titles(drawn)[:2] == ["CLIP", "full"]
    check(fine_cases(probed))


def test_won_and_lost_are_both_counted():
    outcome = Outcome(base=np.array([0, 0, 3, 5, 50, 2]), ours=np.array([0, 4, 0, 0, 0, 7]))
    assert outcome.queries(ours=True, base=False).tolist() == [2, 3, 4]
    assert outcome.queries(ours=False, base=True).tolist() == [1]
    assert len(outcome.queries(ours=True, base=True)) == len(outcome.queries(ours=False, base=False)) == 1
    assert outcome.rescued() == (3, 2)  # places 3, 5 and 2 are near misses; two of them are found
    assert outcome.rescued(back=True) == (2, 1)


def test_teacher_and_student(kept):
    drawn = check(teacher_student_histogram(kept, "Teacher: random-vit."))
    assert "16 held-out images" in drawn.caption and drawn.caption.endswith("Teacher: random-vit.")
    (row,) = drawn.picture.axes  # a row for each criterion that was run
    assert row.get_ylabel() == "Gram + relational" and "% above 0.9" in labels_in(row)[0]
    drawn = check(gram_heatmaps(kept, "Teacher: random-vit."))
    teacher = drawn.picture.axes[1].images[0].get_array()
    assert teacher.shape == (16, 16) and np.allclose(np.diag(teacher), 1, atol=1e-3)


def test_what_lacks_is_said():
    nothing = StudyModels({}, ())
    for make, text in (
        (lambda: transition_heatmaps(nothing, "rank-3"), "seed-0 run of rank-3"),
        (lambda: won_and_lost(nothing, "pairs", TRIO), "the set pairs, which is not here"),
        (lambda: teacher_student_histogram(nothing, ""), "seed-0 run of full"),
        (lambda: gram_heatmaps(nothing, ""), "seed-0 run of full"),
    ):
        with pytest.raises(Unavailable, match=text):
            make()


def test_curves_of_a_run():
    lines = [
        {"step": step, "loss": 4 / step, "loss/contrastive": 3 / step, "loss/gate_l1": 1e-5, "gate2_text": 0.05,
         "gate2_image": 0.05, "spread2_text": 0.2, "spread2_image": 1e-4}
        for step in range(1, 6)
    ]  # fmt: skip
    lines.append({"step": 5, "val/i2t R@1": 0.1, "val/t2i R@1": 0.2, "val/mean R@1": 0.15, "val/chance R@1": 0.01})
    for make in (loss_curves, score_curves, order_telemetry):
        check(make(lines))
        with pytest.raises(Unavailable):
            make([])
