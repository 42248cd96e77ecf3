"""`dinorankclip.train`: the run it returns, callbacks, repeated and resumed runs; the caller is left alone."""

import json
import threading

import pytest
import torch

import dinorankclip
from dinorankclip import UserError, io
from dinorankclip.config import as_dict
from dinorankclip.given_settings import settings_from
from dinorankclip.run_files import read_metrics
from tests.api.making import TINY, pairs, weights


@pytest.fixture(autouse=True)
def kept_here(tmp_path, monkeypatch):
    monkeypatch.setattr(io, "INDEX_FOLDER", tmp_path / "index")
    monkeypatch.setenv("DINORANKCLIP_HOME", str(tmp_path / "built"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    return dinorankclip.train(TINY, data=pairs(), run=folder / "first"), folder


def test_it_returns_folder_scores_and_model(trained):
    run, _ = trained
    assert run.finished and 0 <= run.scores["val/mean R@1"] <= 1 and run.report.is_file()
    assert [line["step"] for line in run.metrics() if "loss" in line] == [1, 2, 3, 4]
    model = run.model("cpu")
    assert model.encode_text(model.tokenizer(["a red cat"])).shape == (1, model.dim)
    assert run.settings().budget.batch == 16 and run.settings().data.startswith("python:")


def test_the_same_call_again_finds_a_finished_run(trained):
    run, _ = trained
    before, log = weights(run.folder), read_metrics(run.folder)
    again = dinorankclip.train(TINY, data=pairs(), run=run.folder)
    assert again.finished and weights(run.folder) == before and read_metrics(run.folder) == log
    assert again.scores == run.scores


def test_other_data_is_refused(trained):
    run, _ = trained
    with pytest.raises(UserError, match="made with other settings:\n  data: python:"):
        dinorankclip.train(TINY, data=pairs(seed=1), run=run.folder)


def test_a_run_repeated_from_its_config_has_the_same_weights(trained):
    run, folder = trained
    again = dinorankclip.train(run.folder / "config.json", run=folder / "second")
    assert weights(again.folder) == weights(run.folder) and again.scores == run.scores
    other = dinorankclip.train(run.folder / "config.json", run=folder / "third", seed=1)
    assert weights(other.folder) != weights(run.folder)


def test_a_callback_sees_the_log_and_stops_and_the_run_resumes_exactly(trained):
    run, folder = trained
    seen = []

    def watch(event):
        seen.append((event.kind, event.step, event.numbers.get("loss")))
        if event.kind == "log" and event.step == 2:
            event.stop()

    stopped = dinorankclip.train(TINY, data=pairs(), run=folder / "stopped", callbacks=[watch])
    log = read_metrics(stopped.folder)
    assert not stopped.finished and stopped.scores == {}
    assert [kind for kind, _, _ in seen] == ["log", "log", "score", "end"]
    assert [loss for kind, _, loss in seen if kind == "log"] == [line["loss"] for line in log if "loss" in line]
    resumed = dinorankclip.train(TINY, data=pairs(), run=folder / "stopped", callbacks=[watch])
    assert resumed.finished and weights(resumed.folder) == weights(run.folder)


def test_an_error_in_a_callback_is_named_and_the_run_is_saved(trained, tmp_path):
    run, _ = trained

    def clumsy(event):
        raise KeyError("no such number")

    with pytest.raises(UserError, match=r"callback .*clumsy failed at step 1 \(log\): KeyError: 'no such number'"):
        dinorankclip.train(TINY, data=pairs(), run=tmp_path / "run", callbacks=[clumsy])
    resumed = dinorankclip.train(TINY, data=pairs(), run=tmp_path / "run")
    assert resumed.finished and weights(resumed.folder) == weights(run.folder)
    with pytest.raises(UserError, match="callbacks are functions of an event; str cannot be called"):
        dinorankclip.train(TINY, data=pairs(), run=tmp_path / "other", callbacks=["print"])


def test_the_caller_keeps_random_state_and_threads_also_in_another_thread(trained, tmp_path):
    run, _ = trained
    torch.manual_seed(5)
    state, threads, made = torch.get_rng_state(), torch.get_num_threads(), []
    worker = threading.Thread(target=lambda: made.append(dinorankclip.train(TINY, data=pairs(), run=tmp_path / "run")))
    worker.start()
    worker.join()
    assert weights(made[0].folder) == weights(run.folder)
    dinorankclip.train(TINY, data=pairs(), run=tmp_path / "run2")
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads


def test_settings_in_python_and_in_files(tmp_path):
    by_group = settings_from(None, preset="scenes", method="rank", budget={"epochs": 3}, **{"loss.order": 2})
    assert (by_group.method, by_group.budget.epochs, by_group.loss.order, by_group.budget.batch) == ("rank", 3, 2, 128)
    (tmp_path / "s.toml").write_text('method = "rank"\n"loss.order" = 2\n[budget]\nepochs = 3\ncore-seconds = 5\n')
    assert settings_from(tmp_path / "s.toml") == settings_from(by_group, **{"budget.core_seconds": 5})
    (tmp_path / "s.json").write_text(json.dumps(as_dict(by_group)))
    assert settings_from(tmp_path / "s.json") == by_group
    assert settings_from(by_group, seed=4).seed == 4
    assert settings_from(None, recipe="aligned").method == "clip"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss.ordr": 2}, "no setting 'loss.ordr'; did you mean loss.order"),
        ({"loss": {"order": "2"}}, "loss.order = '2': it must be a whole number"),
        ({"budget.precision": "fp8"}, "budget.precision = 'fp8': it must be 'auto' or 'fp32' or 'bf16'"),
        ({"reading.crop_scale": [0.5]}, r"it must be 2 of a number"),
        ({"preset": "scene"}, "preset 'scene': there are scenes"),
        ({"method": "clipp"}, "unknown method 'clipp'"),
    ],
)
def test_mistakes_in_settings_are_named(changes, message):
    with pytest.raises(UserError, match=message):
        settings_from(None, **changes)


def test_the_command_takes_a_config_which_flags_change(tmp_path):
    from dinorankclip.commands.train import parse

    (tmp_path / "s.toml").write_text('preset = "flickr8k"\nmethod = "rank"\n[budget]\nepochs = 3\n')
    settings, restart, dry = parse(["--config", str(tmp_path / "s.toml"), "--budget.batch", "8", "--loss.order", "2"])
    assert (settings.preset, settings.method, settings.budget.epochs) == ("flickr8k", "rank", 3)
    assert (settings.budget.batch, settings.loss.order, restart, dry) == (8, 2, False, False)
    with pytest.raises(UserError, match="there is no such file"):
        parse(["--config", str(tmp_path / "none.toml")])


def test_a_config_of_others_runs_no_command(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    stored = as_dict(settings_from(None, data="pipe:cat pairs.tar", **{"reading.epoch_samples": 8}))
    (run / "config.json").write_text(json.dumps(stored))
    (run / "environment.json").write_text("{}")
    with pytest.raises(UserError, match="commands of a stored run are never executed"):
        settings_from(run / "config.json")
    assert settings_from(run / "config.json", data="scenes").data == "scenes"
