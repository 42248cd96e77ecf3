from dataclasses import replace

import numpy as np
import pytest

from dinorankclip_studies.results import near_miss_share, with_near_misses
from tests.studies.kinds import SCENES
from tests.studies.synthetic import record

FIRST, TEN = SCENES.recall("t2i", 1), SCENES.recall("t2i", 10)


def items(folder, first, ten):
    folder.mkdir(parents=True)
    np.savez(folder / "scores_items.npz", **{FIRST: np.float32(first), TEN: np.float32(ten)})
    return folder


def test_only_captions_that_the_base_nearly_had_count(tmp_path):
    base = items(tmp_path / "base", [1, 0, 0, 0, 0], [1, 1, 1, 1, 0])
    ours = items(tmp_path / "ours", [1, 1, 0, 0, 1], [1, 1, 1, 1, 1])
    assert near_miss_share(base, ours, SCENES) == pytest.approx(1 / 3)


def test_without_items_or_such_captions_there_is_no_share(tmp_path):
    base = items(tmp_path / "base", [1, 0], [1, 0])
    assert near_miss_share(base, base, SCENES) is None
    assert near_miss_share(base, tmp_path / "elsewhere", SCENES) is None


def test_it_becomes_a_score_of_the_full_methods_run_of_the_same_seed(tmp_path):
    runs = []
    for cell, seed, first in (("clip", 0, [0, 0]), ("full", 0, [1, 0]), ("full", 1, [1, 1]), ("rank-3", 0, [1, 1])):
        runs.append(replace(record(cell, seed, {}), folder=f"cells/{cell}{seed}"))
        items(tmp_path / runs[-1].folder, first, [1, 1])
    found = with_near_misses(tmp_path, runs, SCENES)
    assert [run.scores for run in found] == [{}, {SCENES.near_misses: 0.5}, {}, {}]
