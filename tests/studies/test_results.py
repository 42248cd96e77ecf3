from dinorankclip.config import as_dict
from dinorankclip_studies.results import Results, RunRecord
from dinorankclip_studies.study import Cell
from tests.studies.studying import tiny


def record(cell: Cell, seed: int, scores, telemetry) -> RunRecord:
    settings = as_dict(cell.settings(tiny().base, seed))
    settings["optim"]["betas"] = list(settings["optim"]["betas"])  # as a run's config.json gives them
    settings["reading"]["crop_scale"] = list(settings["reading"]["crop_scale"])
    settings["optim"]["freeze"] = []
    return RunRecord(cell.name, seed, "k", "cells/k", "r", settings, scores, telemetry, 1.5, 128, 8, {"model": 3})


def test_results_come_back_as_they_were(tmp_path):
    runs = (
        record(Cell("clip", "clip"), 0, {"val/mean R@1": 0.25}, {"loss": 3.5}),
        record(Cell("rank-2", "rank", {"loss.order": 2}), 0, {"val/mean R@1": 0.5, "a/b": -1.0}, {}),
        record(Cell("rank-2", "rank", {"loss.order": 2}), 1, {"a/b": 2}, {"loss": 1.0, "λ": 0.125}),
    )
    tuned = {"clip": {"chosen": 1e-3, "tried": {"0.001": 0.2}}}
    Results("tiny", runs, tuned, "a title", {"a/b": 0.01}).save(tmp_path / "results.json")
    found = Results.load(tmp_path)
    assert (found.runs, found.tuned, found.title, found.chances) == (runs, tuned, "a title", {"a/b": 0.01})
    assert found.values("rank-2", "a/b") == {0: -1.0, 1: 2}
    assert found.values("rank-2", "val/mean R@1") == {0: 0.5}
    assert found.telemetry("clip", "loss") == {0: 3.5}
    assert found.of("nothing") == {}
    assert len((tmp_path / "results.json").read_text().splitlines()) == 12 + 3  # a line a run


def test_cells_are_compared_on_the_seeds_that_all_have():
    clip, rank = Cell("clip", "clip"), Cell("rank-2", "rank", {"loss.order": 2})
    runs = [record(clip, seed, {}, {}) for seed in (0, 1, 2)] + [record(rank, seed, {}, {}) for seed in (1, 2, 5)]
    found = Results("tiny", tuple(runs)).on_common_seeds(("clip", "rank-2", "not run"))
    assert [(run.cell, run.seed) for run in found.runs] == [("clip", 1), ("clip", 2), ("rank-2", 1), ("rank-2", 2)]
    assert len(Results("tiny", tuple(runs)).on_common_seeds(("clip",)).runs) == 3


def test_no_runs_are_results_too(tmp_path):
    Results("tiny", ()).save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json").cells() == ()
