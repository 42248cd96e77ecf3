"""Files that version 0.1 wrote still open: through the command line, and through `load_model`."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import run_each
from tests.golden_curves import losses_of
from tests.old_files import (
    CACHE,
    EMBED,
    EXPECTED,
    KEPT_STEP,
    OWN_CACHE,
    SCORE_EXPORT,
    SCORE_RUN,
    STEPS,
    VERSION,
    embeddings,
    epochs,
    lay_out,
)

NEAR = 1e-5
# In this order: `train` changes the run, and what stands before it sees the run as it was stored.
COMMANDS = {
    "doctor": ["doctor", "run"],
    "teacher cache": [
        OWN_CACHE if word == "cache" and before == "--out" else word for before, word in pairwise(["", *CACHE])
    ],
    "compare": ["compare", "run", "scored", "--draws", "100"],
    "report": ["report", "run"],
    "embed": EMBED,
    "score run": SCORE_RUN,
    "score export": SCORE_EXPORT,
    "more epochs": epochs(3),
    "resume": epochs(2),
    "resume again": epochs(2),
    "study": ["report", "study", "--out", "written", "--bench", "none"],
    "study status": ["study", "status", "flickr8k", "--folder", "other"],
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("old") / "files")


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """The folder after all commands, and what each of them answered."""
    folder = lay_out(tmp_path_factory.mktemp("old") / "used")
    cache = {name: bytes_in(folder / name) for name in ("cache", OWN_CACHE)}
    answers = dict(zip(COMMANDS, run_each(list(COMMANDS.values()), folder)))
    # Training read the one, `teacher cache` took the other as complete, and nothing was computed again.
    assert {name: bytes_in(folder / name) for name in cache} == cache
    return folder, answers


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def set_scores(folder: Path) -> dict[str, dict[str, float]]:
    """Return the scores that `score` took, by set and name."""
    sets = json.loads((folder / "scores.json").read_text())["sets"]
    return {name: {score: numbers["value"] for score, numbers in one["scores"].items()} for name, one in sets.items()}


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "more epochs"])
def test_a_command_reads_them(command, used):
    answer = used[1][command]
    assert answer.status == 0, answer.text


@pytest.mark.parametrize("model", ["run", f"run/checkpoints/step-{KEPT_STEP}", "exported"])
def test_embeddings_are_those_on_record(model, stored):
    expected = json.loads(EXPECTED.read_text())
    for kind, rows in embeddings(stored / model, stored / "pairs").items():
        np.testing.assert_allclose(rows, expected[kind], atol=NEAR, rtol=0)


def test_a_run_is_examined_and_written_up(used):
    folder, answers = used
    assert f"6 lines logged of 6 steps, newest checkpoint step-{KEPT_STEP}" in answers["doctor"].text
    assert "no problems found" in answers["doctor"].text
    assert (folder / "run" / "report.html").stat().st_size > 10_000


def test_a_cache_and_embeddings_are_complete_already(used):
    assert f"{OWN_CACHE} is complete already" in used[1]["teacher cache"].text
    assert "embedded is complete already: 16 images, 32 texts" in used[1]["embed"].text


@pytest.mark.parametrize("scored", ["run", "scored"])
def test_scores_taken_again_are_those_stored(scored, used):
    now, then = set_scores(used[0] / scored), set_scores(VERSION / scored)
    assert "pairs" in then and now.keys() == then.keys()
    for name, scores in then.items():
        assert now[name] == pytest.approx(scores, abs=1e-4), name


def test_stored_scores_are_compared_item_by_item(used):
    text = used[1]["compare"].text
    assert "cross-modal tau-b" in text and "no difference shown" in text
    assert "only one of the two was scored on distillation" in text


def test_more_epochs_are_refused_and_say_why(used):
    answer = used[1]["more epochs"]
    assert answer.status == 2 and "budget.epochs: 2 → 3" in answer.text


def test_a_run_goes_on_with_its_optimiser_and_its_place_in_the_data(used):
    folder, answers = used
    assert f"resuming from run/checkpoints/step-{KEPT_STEP}" in answers["resume"].text
    assert f"run: {STEPS - KEPT_STEP} of {STEPS} steps to go" in answers["resume"].text
    after = losses_of(folder / "run")[KEPT_STEP:]
    assert after == pytest.approx(json.loads(EXPECTED.read_text())["losses"], rel=2e-3)
    assert f"run: 0 of {STEPS} steps to go" in answers["resume again"].text


def test_results_of_a_study_are_written_up(used):
    folder, answers = used
    assert "6 tables" in answers["study"].text
    assert (folder / "written" / "tables" / "main.md").is_file() and (folder / "written" / "claims.md").is_file()


def test_no_file_names_a_folder_of_the_machine_that_made_it():
    text = {".json", ".jsonl", ".txt", ".md"}
    for path in VERSION.rglob("*"):
        if path.is_file() and path.suffix in text:
            assert not any(start in path.read_text() for start in ("/tmp/", "/work/", "/home/", "/root/")), path
