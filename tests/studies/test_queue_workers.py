"""Whole studies of seconds: workers as real processes, kills as real kills."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from dinorankclip.teachers.cache_request import CacheSpec
from dinorankclip.types import UserError
from dinorankclip_studies import run_queue
from dinorankclip_studies.papers.dinorankclip import plans
from dinorankclip_studies.queue_workers import WorkerPool, run_locally, shared_gpus, work
from dinorankclip_studies.results import CELLS, Results, RunRecord, choose_rate, rates, read_tuned, write_record
from dinorankclip_studies.run_cell import cache_key, cache_outcome, keep_all, tidy
from dinorankclip_studies.run_queue import (
    is_finished,
    is_running,
    lock_run,
    read_queue,
    record_failure,
    why_failed,
    write_queue,
)
from dinorankclip_studies.run_times import Costs
from dinorankclip_studies.study import Cell
from tests.studies.studying import FOLDER, kill, run_tiny, start_tiny, tiny, wait_for
from tests.systems import LINUX, POSIX
from tests.train.running import family, last_step


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a study that nothing disturbed."""
    place = tmp_path_factory.mktemp("undisturbed")
    before = os.getcwd()
    os.chdir(place)
    try:
        run_tiny()
    finally:
        os.chdir(before)
    return place


def test_a_study_ends_with_results(undisturbed):
    results = Results.load(undisturbed / FOLDER)
    assert results.cells() == ("clip", "rank-2")
    assert sorted(results.of("clip")) == [0, 1]
    run = results.of("rank-2")[1]
    assert (run.settings["loss"]["order"], run.settings["seed"]) == (2, 1)
    assert (run.steps, run.pairs_seen) == (8, 128)
    assert {"val/mean R@1", "scenes-pairs/i2t R@1", "scenes-pairs/cone separation"} <= run.scores.keys()
    assert run.telemetry["loss"] > 0 and run.parameters["heads"] > 0
    assert (undisturbed / FOLDER / run.folder / "scores.json").is_file()  # a value traces to its run
    assert results.values("clip", "val/mean R@1").keys() == {0, 1}


def test_of_finished_runs_only_the_model_of_seed_0_stays(undisturbed):
    from dinorankclip.models.loaded import load_model

    results = Results.load(undisturbed / FOLDER)
    folders = {seed: undisturbed / FOLDER / run.folder for seed, run in results.of("rank-2").items()}
    assert not (folders[1] / "checkpoints").exists()
    assert load_model(folders[0]).encode_text is not None
    from safetensors import safe_open

    with safe_open(folders[0] / "checkpoints" / "last" / "training.safetensors", "pt") as kept:
        assert {name.split("/")[0] for name in kept.keys()} == {"objective"}  # noqa: SIM118 (no mapping)


@LINUX
def test_a_study_killed_twice_finds_the_same(undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = tiny().runs()
    first, third = (FOLDER / CELLS / runs[at].key for at in (0, 2))
    # The starting process alone dies: its worker notices, saves and leaves.
    process = start_tiny()
    wait_for(lambda: last_step(first) >= 3, process)
    process.kill()
    process.wait()
    wait_for(lambda: not is_running(FOLDER, runs[0].key), process, 60)
    assert not is_finished(FOLDER, runs[1].key)
    # Everything dies at once, in the middle of the third run.
    process = start_tiny()
    wait_for(lambda: last_step(third) >= 2, process)
    kill(family(process.pid))
    process.wait()
    assert is_finished(FOLDER, runs[0].key) and not is_finished(FOLDER, runs[2].key)
    run_tiny()
    ours, theirs = Results.load(FOLDER), Results.load(undisturbed / FOLDER)
    assert [(run.cell, run.seed, run.key) for run in ours.runs] == [
        (run.cell, run.seed, run.key) for run in theirs.runs
    ]
    assert [run.scores for run in ours.runs] == [run.scores for run in theirs.runs]


def test_a_finished_study_is_not_made_again(undisturbed, monkeypatch, capsys):
    monkeypatch.chdir(undisturbed)
    results = [path.stat().st_mtime_ns for path in sorted(FOLDER.glob("cells/*/result.json"))]
    run_tiny()
    assert [path.stat().st_mtime_ns for path in sorted(FOLDER.glob("cells/*/result.json"))] == results
    assert "4 finished runs" in capsys.readouterr().out


def test_a_failing_cell_is_recorded_and_the_others_go_on(undisturbed, monkeypatch, capsys):
    monkeypatch.chdir(undisturbed)
    # Equal settings under another name are no new run; a trunk that does not exist fails.
    same, broken = Cell("same", "clip", {"budget.threads": 1}), Cell("broken", "clip", {"model.trunk": "no-such"})
    study = tiny((broken, same), seeds=1, experiments=())
    monkeypatch.setitem(plans.STUDIES, "tiny", lambda: study)
    from dinorankclip_studies.command import main

    with pytest.raises(SystemExit) as ended:
        main(["run", "tiny", "--folder", "runs/other", "--workers", "1"])
    assert ended.value.code == 1
    reported = capsys.readouterr()
    assert "broken (seed 0)" in reported.err and "FAILED" in reported.out
    assert Results.load("runs/other").cells() == ("same",)
    clip = Results.load(FOLDER).of("clip")[0]
    ours = Results.load("runs/other").of("same")[0]
    assert (ours.key, ours.scores) == (clip.key, clip.scores)
    (failure,) = (FOLDER.parent / "other" / "failed").glob("*.json")
    assert "no-such" in json.loads(failure.read_text())["error"]
    main(["status", "tiny", "--folder", "runs/other"])
    assert "failed: broken, seed 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "words", "traceback"),
    [
        (OSError(errno.EIO, "Input/output error", "step-6"), "step-6: Input/output error", False),
        (UserError("the checkpoint cannot be written"), "the checkpoint cannot be written", False),
        (KeyError("x"), "KeyError: 'x'", True),
    ],
)
def test_an_error_of_the_disk_is_logged_in_words(tmp_path, capsys, error, words, traceback):
    class Maker:
        make_cache = None

        def make(self, run, sets, lock):
            raise error

    run = tiny().runs()[0]
    write_queue(tmp_path, [run], [])
    work(tmp_path, Maker(), [run.key])
    assert why_failed(tmp_path, run.key) == words
    said = capsys.readouterr()  # the log, if pytest did not stand before it
    assert said.out == f"error: {words}\n" and ("Traceback" in said.err) == traceback


@LINUX
def test_a_log_on_a_full_disk_keeps_nothing_of_the_output_after_it(capfd):
    """The streams of the worker come back, and its lock is released, although nothing can be written any more."""
    program = (
        "import contextlib\nfrom pathlib import Path\nfrom dinorankclip_studies.queue_workers import logged\n"
        "with logged(Path('/dev/full')), contextlib.suppress(OSError):\n    print('in the log')\nprint('after it')\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    assert capfd.readouterr().out.endswith("after it\n")


def test_a_lock_is_released_although_its_note_cannot_be_written(tmp_path, monkeypatch):
    lock = lock_run(tmp_path, "key")

    def full(path, value):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(run_queue, "write_json", full)
    lock.release()
    assert not is_running(tmp_path, "key")


def test_cells_that_share_their_settings_run_once(tmp_path):
    study = tiny((Cell("clip", "clip"), Cell("twin", "clip", {"record.keep": 5})), seeds=1)
    assert [run.cell for run in study.runs()] == ["clip", "twin"]
    write_queue(tmp_path, study.runs(), study.sets)
    assert [one["cell"] for one in json.loads((tmp_path / "queue.json").read_text())["runs"]] == ["clip"]


def test_runs_of_another_call_stay_in_the_queue(tmp_path):
    study = tiny()
    first, second, *_ = study.runs()
    write_queue(tmp_path, [first], study.sets)
    write_queue(tmp_path, [second], study.sets)
    assert read_queue(tmp_path, [second.key])[0] == [second]
    assert read_queue(tmp_path, [first.key])[0] == [first]  # of a call that goes on, or SLURM starts it late
    with pytest.raises(UserError, match="has no run 123"):
        read_queue(tmp_path, [first.key, "123"])


def test_the_last_worker_that_crashes_is_replaced_too(tmp_path, monkeypatch):
    study = tiny()
    run, *_ = study.runs()
    said = []

    class Crashed:
        """A workpool of one, which has just died."""

        def alive(self):
            return []

        def replace_dead(self, folder, waiting, caches):
            for one in waiting:
                record_failure(folder, one, "the worker died")

    monkeypatch.setattr(
        "dinorankclip_studies.queue_workers.WorkerPool", lambda *args: contextlib.nullcontext(Crashed())
    )
    costs = Costs(tmp_path, [run], study)
    assert run_locally(tmp_path, [run], 1, [], costs, said.append, lambda: None)
    assert "FAILED: the worker died" in said[-1]


def test_a_worker_that_dies_making_features_leaves_the_reason_and_is_replaced(tmp_path):
    pool = WorkerPool([sys.executable, "-c", "import sys; sys.exit(3)"], 1)
    (dead,) = pool.workers
    dead.wait()
    here, elsewhere = (CacheSpec("pairs", teacher) for teacher in ("a", "b"))
    for wish, host in ((here, os.uname().nodename), (elsewhere, "another")):
        (tmp_path / "holds").mkdir(exist_ok=True)
        (tmp_path / "holds" / cache_key(wish)).write_text(json.dumps({"pid": dead.pid, "host": host}))
    pool.replace_dead(tmp_path, [], [here, elsewhere])
    assert cache_outcome(tmp_path, here)["error"] == "the worker died (exit status 3)"
    assert cache_outcome(tmp_path, elsewhere) is None  # the same number on another machine is another process
    assert pool.workers != [dead]
    pool.stop()


def test_a_worker_that_was_at_nothing_is_replaced_only_if_it_had_started(tmp_path, monkeypatch):
    pool = WorkerPool([sys.executable, "-c", "import sys; sys.exit(3)"], 1)
    (dead,) = pool.workers
    dead.wait()
    pool.replace_dead(tmp_path, [], [])
    assert pool.workers == [dead]  # it would fail again and again
    monkeypatch.setattr("dinorankclip_studies.queue_workers.STARTED", 0.0)
    pool.replace_dead(tmp_path, [], [])
    assert pool.workers != [dead]
    pool.stop()


@POSIX
def test_a_run_is_held_by_one_process_and_falls_with_it(tmp_path):
    first = lock_run(tmp_path, "k")
    assert lock_run(tmp_path, "k") is None
    assert is_running(tmp_path, "k")
    child = os.fork()
    if child == 0:
        lock = lock_run(tmp_path, "other")
        signal.pause()
        lock.release()
    while not is_running(tmp_path, "other"):
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert lock_run(tmp_path, "other") is not None
    first.release()
    assert not is_running(tmp_path, "k")
    again = lock_run(tmp_path, "k")
    assert again.earlier_seconds == pytest.approx(first.seconds, abs=1)


@POSIX
def test_a_disk_without_locks_is_refused(tmp_path, monkeypatch):
    lock_run(tmp_path, "k").release()

    def no_locks(handle, how):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", no_locks)
    for ask in (lock_run, is_running):
        with pytest.raises(UserError, match="disk without file locks"):
            ask(tmp_path, "k")


def test_what_was_made_to_be_kept_is_never_tidied(tmp_path):
    checkpoint = tmp_path / "checkpoints" / "step-8"
    checkpoint.mkdir(parents=True)
    keep_all(tmp_path)
    tidy(tmp_path, 1)
    assert checkpoint.is_dir()
    (tmp_path / "kept").unlink()
    tidy(tmp_path, 1)
    assert not checkpoint.exists()


def test_every_worker_has_gpus_of_its_own(tmp_path):
    assert shared_gpus(3, 1, []) == []
    assert shared_gpus(3, 2, list("01234567")) == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert shared_gpus(3, 1, ["2", "5"]) == [["2"], ["5"], ["2"]]
    assert shared_gpus(1, 4, ["0", "1"]) == [["0", "1"]]
    leave_a_file = "import os, sys; open(sys.argv[1] + os.environ['CUDA_VISIBLE_DEVICES'], 'w')"
    pool = WorkerPool([sys.executable, "-c", leave_a_file, f"{tmp_path}/saw "], 2, [["3"], ["7", "8"]])
    for worker in pool.workers:
        worker.wait()
    pool.stop()
    assert {path.name for path in tmp_path.iterdir()} == {"saw 3", "saw 7,8"}


def test_learning_rates_are_tried_then_used(tmp_path):
    study = tiny((Cell("clip", "clip"), Cell("rank-3", "rank")), seeds=1, grid=(1e-4, 1e-3, 2e-3))
    measured = {("clip", 1e-4): 0.1, ("clip", 1e-3): 0.3, ("clip", 2e-3): 0.3}
    measured |= {("rank", 1e-4): 0.1, ("rank", 1e-3): 0.2, ("rank", 2e-3): 0.2}
    for run in study.tuning():
        scores = {"val/mean R@1": measured[run.settings.method, run.settings.optim.lr], "test/mean R@1": 1.0}
        place = tmp_path / CELLS / run.key
        place.mkdir(parents=True)
        write_record(place, RunRecord(run.cell, 1000, run.key, "", None, {}, scores, {}, 1.0, 128, 8, {}))
    tuned = choose_rate(study.tuning(), tmp_path)
    # One rate for all, the best on average; of equals the least.
    assert {method: reported["chosen"] for method, reported in tuned.items()} == {"clip": 1e-3, "rank": 1e-3}
    assert tuned["clip"]["tried"] == {"0.0001": 0.1, "0.001": 0.3, "0.002": 0.3}
    assert read_tuned(tmp_path) == tuned
    assert {run.cell: run.settings.optim.lr for run in study.runs(rates(tuned))} == {"clip": 1e-3, "rank-3": 1e-3}
