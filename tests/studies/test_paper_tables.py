import json
from pathlib import Path

import pytest

from dinorankclip.data.scenes.kinds import KINDS
from dinorankclip.evaluate.catalogue import catalogue
from dinorankclip.methods import HEAD_MILLIONS, STUDENT_MILLIONS
from dinorankclip.presets import preset
from dinorankclip_studies.papers import measures_of
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.paper_tables import columns
from dinorankclip_studies.papers.dinorankclip.plans import (
    AT_SCALE_CELLS,
    CELLS,
    DECISIVE,
    STUDIES,
    cells_with,
    read_cells,
)
from dinorankclip_studies.papers.dinorankclip.scales import PAPER_SCALES
from dinorankclip_studies.papers.paper_data import PaperValue, PaperValues
from dinorankclip_studies.study import key_of
from tests.studies.kinds import CC3M, CC3M_EXPERIMENTS, EXPERIMENTS, FLICKR8K, FLICKR_EXPERIMENTS

# As `dinorankclip score MODEL --sets scenes` names them, and the fidelity that training adds.
SCENES = set((Path(__file__).parent / "scene_score_names.txt").read_text().split("\n")) - {""}
FIDELITY = {
    f"fidelity/image {name}"
    for name in ("cosine", "centred cosine", "gram distance", "above 0.9", "own projector's cosine")
}
NAMES = {cell.name: cell for cell in (*CELLS, *AT_SCALE_CELLS)}
AT_SCALE = {name + scale.suffix for name in NAMES for scale in PAPER_SCALES.values()}
ALL = (*EXPERIMENTS, *FLICKR_EXPERIMENTS, *CC3M_EXPERIMENTS)


def photo_scores() -> set[str]:
    """What the same scorers say of the photo sets (docs/results.md): the suffixes of the scenes' scores."""
    found = {name.replace("scenes-pairs/", "flickr8k/") for name in SCENES}
    for kinds in ("caltech101", "cub100", "flowers5", FLICKR8K.shift_base, *FLICKR8K.renditions):
        found |= {name.replace("scenes-kinds/", f"{kinds}/") for name in SCENES if name.startswith("scenes-kinds/")}
    found |= {name.replace("shift from scenes-kinds", f"shift from {FLICKR8K.shift_base}") for name in SCENES}
    return {name for name in found if "scenes" not in name}


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_columns_name_scores_that_the_scenes_suite_yields(experiment):
    assert {column.score for column in experiment.columns} <= SCENES | FIDELITY


@pytest.mark.parametrize("experiment", FLICKR_EXPERIMENTS, ids=lambda one: one.name)
def test_columns_name_scores_that_the_photo_sets_yield(experiment):
    assert {column.score for column in experiment.columns} <= photo_scores()
    assert {row.cell for row in experiment.rows} <= set(cells_with("photos"))


def catalogue_scores() -> set[str]:
    """What the same scorers say of the catalogue's sets: each task has its suffixes, shifts and averages their own."""
    known, found = catalogue(), {"averages/Fine-grained Probe: embedding", "averages/Fine-grained Probe: features"}
    for name in SCENES:
        place, score = name.split("/", 1)
        tasks = {"retrieval"} if place == "scenes-pairs" else {"probe"} if " probe " in score else {"zero-shot"}
        if place in ("scenes-pairs", "scenes-kinds") and "t2i tau-b" not in score:
            found |= {f"{one}/{score}" for one, listed in known.sets.items() if tasks & set(listed.tasks)}
        elif place == "shift from scenes-kinds":
            found |= {f"{shift.name}/{score}" for shift in known.shifts if shift.base == CC3M.shift_base}
        elif place == "averages":
            found.add(name)
    found |= {"averages/ImageNetV2: T@1"}
    found |= {f"averages/linear probe of ten sets: {kind}" for kind in ("embedding", "features")}
    return found | {f"{name}/embedding probe errors in family" for name in CC3M.family_sets}


@pytest.mark.parametrize("experiment", CC3M_EXPERIMENTS, ids=lambda one: one.name)
def test_columns_name_scores_that_the_catalogues_sets_yield(experiment):
    assert {column.score for column in experiment.columns} <= catalogue_scores() | FIDELITY
    reported = " ".join([experiment.note, *(row.label for row in experiment.rows)])
    assert "scenes" not in reported and "lite0" not in reported


def test_the_papers_scale_is_measured_by_the_papers_sets():
    assert measures_of("cc3m") is CC3M and measures_of("full") is measures_of("small")
    known = catalogue()
    shift = next(one for one in known.shifts if one.base == CC3M.shift_base)
    assert (shift.name, tuple(shift.renditions)) == (CC3M.shift.split("/")[0], CC3M.renditions)
    probed = {name for name, listed in known.sets.items() if "probe" in listed.tasks}
    fine = {name for name in probed if known.is_fine_grained(name)}
    assert {CC3M.coarse, *CC3M.other_probes} | fine == probed and CC3M.fine in fine and len(fine) == 5
    tables = {experiment.name: experiment for experiment in STUDIES["cc3m"]().experiments}
    assert tables["main"].columns[0].score == "imagenet1k/T@1"
    assert [row.label for row in tables["scaling"].rows][:2] == ["CLIP, 300,000 pairs", "CLIP, 1,000,000 pairs"]
    averages = {average.title: average for average in known.averages}
    ten = averages["linear probe of ten sets"].sets
    assert set(ten) == {CC3M.coarse, *CC3M.other_probes} and len(ten) == 10
    assert set(averages["ImageNetV2"].sets) == {name for name in CC3M.renditions if "v2" in name}


def test_the_table_of_best_orders_has_every_suite_of_the_paper():
    assert set(CC3M.paper_suites) == set(PAPER.values["tab:per-dataset-order"]) and len(CC3M.suites) == 18
    table = next(one for one in CC3M_EXPERIMENTS if one.name == "best-order")
    assert len({column.score for column in table.columns}) == 18
    assert {f"{name} probe" for name in catalogue().averages[0].sets} <= {one.heading for one in table.columns}


def test_chance_is_that_of_the_sets():
    scenes = measures_of("full")
    assert scenes.chance(scenes.top1) == scenes.chance(scenes.shift) == 1 / len(KINDS)
    assert FLICKR8K.chance("caltech101/T@1") == 1 / 101 and FLICKR8K.chance("pacs-photo/T@1") == 1 / 7
    assert FLICKR8K.chance("shift from pacs-photo/mean T@1") == pytest.approx(1 / 7)
    assert FLICKR8K.chance("flickr8k/mean R@1") is None
    # three ImageNetV2 of 1000 classes, ImageNet-R of 200: (3/1000 + 1/200)/4
    assert CC3M.chance(CC3M.shift) == pytest.approx(0.002) and CC3M.chance(CC3M.base_top1) == 1 / 1000


@pytest.mark.parametrize("study", ["full", "flickr8k", "cc3m"])
def test_every_rendition_has_its_number_of_kinds(study):
    found = measures_of(study)
    assert len(found.rendition_kinds) == len(found.renditions)


@pytest.mark.parametrize("experiment", ALL, ids=lambda one: one.name)
def test_rows_are_cells_and_one_of_them_is_the_reference(experiment):
    cells = [row.cell for row in experiment.rows]
    assert set(cells) <= (AT_SCALE if experiment in CC3M_EXPERIMENTS else NAMES.keys())
    assert len(set(cells)) == len(cells)
    assert experiment.reference in cells
    assert set(experiment.unmatched) <= set(cells)
    assert experiment.note or not experiment.unmatched


@pytest.mark.parametrize("experiment", ALL, ids=lambda one: one.name)
def test_projected_values_stand_beside_a_column_of_ours(experiment):
    headings = [column.heading for column in experiment.columns]
    assert len(set(headings)) == len(headings)
    for row in experiment.rows:
        assert row.paper.keys() <= set(headings)


def test_every_table_of_the_list_is_there():
    names = [experiment.name for experiment in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert set(names) == {
        "main", "orders-plain", "orders-teacher", "orders-paper", "best-order", "head-width", "warm-start", "scaling",
        "shift", "fine-grained", "linear-probing", "components", "controls", "criterion", "students", "fusion",
        "teacher", "modality-gap", "quick-heads", "longer", "scale-of-lists",
    }  # fmt: skip


def test_every_cell_is_a_row_somewhere_and_no_two_are_the_same_run():
    rows = {row.cell for experiment in EXPERIMENTS for row in experiment.rows}
    assert rows == {cell.name for cell in CELLS}
    keys = [key_of(cell.settings(preset("scenes"), 0)) for cell in CELLS]
    assert len(set(keys)) == len(CELLS)
    assert set(DECISIVE) <= NAMES.keys()


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_all_rows_of_a_table_have_one_budget(experiment):
    base = preset("scenes")
    reference = NAMES[experiment.reference].settings(base, 3)
    for row in experiment.rows:
        settings = NAMES[row.cell].settings(base, 3)
        assert (settings.optim.lr, settings.data) == (base.optim.lr, base.data)
        assert settings.loss.ramp == base.loss.ramp
        other = settings.loss.utility != base.loss.utility or any(
            getattr(settings, part) != getattr(reference, part) for part in ("model", "reading", "budget", "optim")
        )
        assert other == (row.cell in experiment.unmatched)


def test_the_paper_curve_mixes_plain_and_full():
    mixed = next(one for one in EXPERIMENTS if one.name == "orders-paper")
    methods = [NAMES[row.cell].method for row in mixed.rows]
    assert methods == ["clip", "rankclip"] + ["dinorankclip"] * 4
    assert "no ablation of the order" in mixed.note
    assert mixed.rows[3].paper["T@1"].value == 11.30
    assert [row.paper["T@1"].black for row in mixed.rows] == [True, True, False, False, False, False]


def test_cells_are_what_they_are_called():
    at = {name: cell.settings(preset("scenes"), 0) for name, cell in NAMES.items()}
    assert [at[f"rank-{order}"].loss.order for order in (2, 3, 4, 5)] == [2, 3, 4, 5]
    assert [at[name].loss.order for name in ("full-0", "full-1", "full-2", "full", "full-4", "full-5")] == [*range(6)]
    assert at["full"].fusion.variant == "full" and at["full"].distil.branches == "image+text" and at["full"].fusion.gate
    assert at["full-image-no-gate"].distil.branches == "image" and not at["full-image-no-gate"].fusion.gate
    assert at["control-no-teacher"].distil.cache is None and at["control-no-teacher"].fusion.variant == "full"
    assert at["control-trunk-distil"].distil.into == "trunk" and at["control-trunk-distil"].fusion.variant == "none"
    assert at["control-large-trunk"].distil.cache is None and at["control-large-trunk"].loss.order == 3
    assert at["rankclip-n1000"].reading.train_items == 1000 and at["rankclip"].reading.train_items is None


def test_projected_values_agree_with_the_text_that_quotes_them():
    assert PAPER.values.gain("tab:main", "T@1", "full", "rankclip") == 1.14
    assert PAPER.values.gain("tab:main", "T@1", "full", "clip") == 2.24
    assert PAPER.values.gain("tab:main", "i2t R@1", "full", "rankclip") == 0.87
    assert PAPER.values.gain("tab:ood-fg", "FG-avg", "full", "rank-3") == 3.1
    assert PAPER.values.gain("fig:cone", "cone separation", "rank-3", "rankclip") == -1.5
    for row in PAPER.values["tab:ood-fg"].values():
        fine = [row[name] for name in ("FGVC", "DTD", "CUB", "Cars", "Flow.")]
        assert row["FG-avg"] == pytest.approx(sum(fine) / 5, abs=0.051)
    for row in PAPER.values["tab:lp-component (a)"].values():
        assert row["Avg"] == pytest.approx(sum(v for name, v in row.items() if name != "Avg") / 10, abs=0.051)
    hours = dict(PAPER.values["tab:compute"])
    assert sum(reported["hours"] for name, reported in hours.items() if name != "total printed") == 72.0


def test_sizes_that_the_package_knows_are_the_printed_ones():
    heads = [row["head params M"] for row in PAPER.values["tab:cost-accuracy"].values()]
    assert heads == [HEAD_MILLIONS[order] for order in range(6)]
    assert PAPER.values["tab:abl-3panel (b)"]["full"]["params M"] == STUDENT_MILLIONS


def test_a_wrong_table_of_printed_values_is_named(tmp_path):
    path = tmp_path / "values.json"
    good = {"title": "", "columns": ["T@1"], "rows": {"clip": [1]}, "black": []}
    for change, message in (
        ({"rows": {"clip": [1, 2]}}, "tab:x, clip: 2 numbers for 1 columns"),
        ({"black": [{"rows": ["klip"]}]}, "unknown keys, rows or columns: klip"),
        ({"colour": 1}, "unknown keys, rows or columns: colour"),
    ):
        path.write_text(json.dumps({"tab:x": good | change}))
        with pytest.raises(ValueError, match=message):
            PaperValues(path)


def test_projected_takes_what_the_paper_has():
    reported = PaperValue(11.30, black=False, place=("tab:main", "full", "T@1"))
    assert PAPER.values.beside("tab:main", "full", {"ours": "T@1", "else": "T@99"}) == {"ours": reported}
    assert PAPER.values.beside("tab:main", "rank-3", {"ours": "T@1"}) == {}


def test_black_and_red_are_told_apart():
    in_black = PAPER.values.in_black
    assert in_black("tab:main", "alip", "T@1") and not in_black("tab:main", "full", "T@1")
    assert in_black("tab:ood-fg", "clip", "DTD") and not in_black("tab:ood-fg", "clip", "CUB")
    assert not in_black("tab:ood-fg", "clip", "FG-avg") and not in_black("tab:ood-fg", "rank-3", "InR")
    assert in_black("tab:cost-accuracy", "3", "step ms") and not in_black("tab:cost-accuracy", "3", "T@1")
    red = {
        table: sum(not in_black(table, row, column) for row, reported in rows.items() for column in reported)
        for table, rows in PAPER.values.items()
    }
    # As often as the paper's source has its macro for red in these tables.
    assert (red["tab:main"], red["tab:ood-fg"], red["tab:lp-component (a)"]) == (9, 36, 11)
    assert (red["tab:lp-component (b)"], red["tab:cost-accuracy"], red["tab:cost-accuracy, last row"]) == (4, 8, 4)
    assert (red["tab:abl-3panel (b)"], red["tab:per-dataset-order"], red["tab:compute"]) == (3, 18, 0)
    shift = next(one for one in EXPERIMENTS if one.name == "shift")
    assert [row.paper["shift mean T@1"].black for row in shift.rows] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('method = "clip"\nchange = {}', r"\[a\]: unknown keys change; known: at_scale, changes"),
        ("", r"\[a\] has no method"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path, entry, message):
    path = tmp_path / "cells.toml"
    path.write_text(f"[a]\n{entry}\n")
    with pytest.raises(ValueError, match=message):
        read_cells(path)


def test_an_unknown_column_is_named():
    with pytest.raises(ValueError, match=r"unknown columns T@2; known: T@1"):
        columns(CC3M, "T@1", "T@2")
