import json

import pytest
import torch

from dinorankclip.checksums import sealing
from dinorankclip.config import BudgetSettings, OptimSettings, ReadingSettings, TrainSettings, as_dict
from dinorankclip.data.damage import DamageCount
from dinorankclip.device import choose
from dinorankclip.losses.objective import Objective
from dinorankclip.models.folder import load_folder
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.run_files import read_environment, read_metrics
from dinorankclip.train import checkpoints
from dinorankclip.train.checkpoints import TrainingState
from dinorankclip.train.run_folder import DamagedFile, Records, alone_in, claim
from dinorankclip.train.step import Updater
from dinorankclip.types import Progress, UserError
from tests.systems import POSIX


def fresh(seed=0, data="data-1", method="clip"):
    model = JointModel(trunk_config("drc-tiny"), seed)
    objective = Objective(model.dim, method, seed=seed)
    return TrainingState(model, objective, Updater({"model": model, "objective": objective}, OptimSettings(), 10), data)


def trained(method="clip"):
    state = fresh(method=method)
    for buffer in state.objective.buffers():
        buffer.fill_(0.25)
    for parameter in state.updater.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    state.updater.step(Progress(0, 10, 1), state.model.trunk.logit_scale)
    state.step = 1
    return state


@pytest.mark.parametrize("method", ["clip", "rank", "alip"])
def test_everything_comes_back(tmp_path, method):
    state = trained(method)
    torch.manual_seed(3)
    checkpoints.save(state, tmp_path, keep=2)
    draws = torch.rand(3)
    again = fresh(seed=9, method=method)
    again.read(checkpoints.newest(tmp_path))
    assert again.step == 1
    assert torch.equal(torch.rand(3), draws)
    for one, other in zip(state.model.parameters(), again.model.parameters()):
        assert torch.equal(one, other)
    kept, found = state.objective.state_dict(), again.objective.state_dict()
    assert kept.keys() == found.keys() and all(torch.equal(kept[n], found[n]) for n in kept)
    saved, loaded = state.updater.state(), again.updater.state()
    assert saved.keys() == loaded.keys() and all(torch.equal(saved[n], loaded[n]) for n in saved)


def test_a_checkpoint_is_a_model_folder(tmp_path):
    state = trained()
    checkpoints.save(state, tmp_path / "checkpoints", keep=2)
    model = load_folder(tmp_path)
    assert torch.equal(model.trunk.towers.visual.proj, state.model.trunk.towers.visual.proj)


def test_all_files_of_a_checkpoint_have_the_same_rights(tmp_path):
    checkpoints.save(trained(), tmp_path, keep=1)
    sealing.wait()
    assert len({path.stat().st_mode for path in (tmp_path / "step-1").iterdir()}) == 1


def test_half_written_folders_are_never_taken(tmp_path):
    state = trained()
    checkpoints.save(state, tmp_path, keep=2)
    (tmp_path / ".writing-step-5").mkdir()
    assert checkpoints.newest(tmp_path).name == "step-1"
    state.step = 5
    checkpoints.save(state, tmp_path, keep=2)
    assert checkpoints.newest(tmp_path).name == "step-5"
    assert not list(tmp_path.glob(".writing-*"))


def test_the_last_n_and_the_best_are_kept(tmp_path):
    state = trained()
    for step in range(1, 6):
        state.step = step
        if step == 2:
            state.best, state.best_step = 0.5, 2
        checkpoints.save(state, tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-2", "step-4", "step-5"]
    assert (tmp_path / "best").resolve().name == "step-2"
    assert (tmp_path / "last").resolve().name == "step-5"


def test_other_data_is_refused(tmp_path):
    checkpoints.save(trained(), tmp_path, keep=1)
    with pytest.raises(UserError, match="the data has changed"):
        fresh(data="data-2").read(checkpoints.newest(tmp_path))


def test_nothing_in_a_checkpoint_is_pickled(tmp_path):
    checkpoints.save(trained(), tmp_path, keep=1)
    sealing.wait()
    kinds = {p.suffix for p in (tmp_path / "step-1").iterdir()}
    assert kinds == {".json", ".safetensors", ".sha256"}


def test_a_damaged_model_folder_is_an_error_not_half_a_model(tmp_path):
    checkpoints.save(trained(), tmp_path, keep=1)
    sealing.wait()
    weights = tmp_path / "step-1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged: it is not as it was written"):
        load_folder(tmp_path / "step-1")
    (tmp_path / "step-1" / "checksums.sha256").unlink()  # as older versions wrote it
    with pytest.raises(UserError, match="cannot be read"):
        load_folder(tmp_path / "step-1")
    with pytest.raises(UserError, match="holds no model"):
        load_folder(tmp_path / "nowhere")


def test_a_run_folder_belongs_to_its_settings(tmp_path):
    run = tmp_path / "run"
    settings = as_dict(TrainSettings())
    claim(run, settings, restart=False)
    about = json.loads((run / "environment.json").read_text())
    assert (about["device"], about["precision"]) == (choose().device.type, choose().precision)  # what auto came to
    claim(run, settings, restart=False)
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(UserError, match="seed: 0 → 1"):
        claim(run, settings | {"seed": 1}, restart=False)
    claim(run, settings | {"record": settings["record"] | {"log_every": 3}}, restart=False)
    claim(run, settings | {"seed": 1}, restart=True)
    assert json.loads((run / "config.json").read_text())["seed"] == 1
    assert len(list(tmp_path.glob("run.2*"))) == 1
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="not a run folder"):
        claim(foreign, settings, restart=False)
    (foreign / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(UserError, match=r"holds no settings of a run: .*choose another --run"):
        claim(foreign, settings | {"seed": 1}, restart=False)
    assert (foreign / "config.json").read_text() == '{"model_type": "clip"}'


def test_a_run_without_a_step_may_take_other_settings(tmp_path, capsys):
    run = tmp_path / "run"
    settings = as_dict(TrainSettings())
    claim(run, settings, restart=False)
    (run / "metrics.jsonl").write_text("")
    (run / "before.json").write_text("{}")  # scores of what the old settings would have begun with
    (run / "damaged.tsv").write_text("a\tb\n")
    claim(run, settings | {"seed": 1}, restart=False)
    assert "no step was taken" in capsys.readouterr().out
    assert json.loads((run / "config.json").read_text())["seed"] == 1
    assert not (run / "before.json").exists() and not (run / "damaged.tsv").exists()
    assert len(list(tmp_path.iterdir())) == 1
    for sign in ("scores.json", "checkpoints/step-2/model.json"):
        (run / sign).parent.mkdir(parents=True, exist_ok=True)
        (run / sign).write_text("{}")
        with pytest.raises(UserError, match="seed: 1 → 2"):
            claim(run, settings | {"seed": 2}, restart=False)
        (run / sign).unlink()


def test_a_device_that_is_not_there_leaves_everything_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings, old = as_dict(TrainSettings()), tmp_path / "old"
    on_gpu = settings | {"budget": settings["budget"] | {"device": "cuda"}}
    claim(old, settings, restart=False)
    for run, restart in ((tmp_path / "run", False), (old, True)):
        with pytest.raises(UserError, match="torch sees no GPU"):
            claim(run, on_gpu, restart)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert json.loads((old / "config.json").read_text())["budget"]["device"] == "auto"


def begun(run, settings, **placed):
    """A run that has taken a step, on a machine where `auto` came to what is `placed`; None: it was not written."""
    claim(run, settings, restart=False)
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    about = read_environment(run) | placed
    (run / "environment.json").write_text(json.dumps({name: value for name, value in about.items() if value}))
    return run


def test_a_run_does_not_go_on_in_another_precision(tmp_path):
    settings = as_dict(TrainSettings(budget=BudgetSettings(device="cpu")))
    run = begun(tmp_path / "run", settings, precision="bf16")
    with pytest.raises(UserError, match=r"bf16 → fp32 \(auto means fp32 here; add --budget\.precision bf16\)"):
        claim(run, settings, restart=False)
    assert json.loads((run / "environment.json").read_text())["precision"] == "bf16"
    claim(run, settings | {"budget": settings["budget"] | {"precision": "bf16"}}, restart=False)
    said = begun(tmp_path / "said", settings)  # auto was fp32: to say so changes nothing
    claim(said, settings | {"budget": settings["budget"] | {"precision": "fp32"}}, restart=False)
    claim(said, settings, restart=False)


def test_a_run_that_goes_on_elsewhere_says_so(tmp_path, capsys):
    settings = as_dict(TrainSettings(budget=BudgetSettings(device="cpu")))
    claim(begun(tmp_path / "run", settings, device="cuda"), settings, restart=False)
    assert "was last on cuda and goes on on cpu" in capsys.readouterr().out
    claim(tmp_path / "run", settings, restart=False)
    claim(begun(tmp_path / "old", settings, device=None, precision=None), settings, restart=False)
    assert capsys.readouterr().out == ""


def test_workers_may_change_unless_they_share_a_stream_of_shards(tmp_path):
    def with_workers(data, workers):
        return as_dict(TrainSettings(data=data, reading=ReadingSettings(workers=workers)))

    stored = begun(tmp_path / "stored", with_workers("scenes", 1))
    claim(stored, with_workers("scenes", 4), restart=False)
    stream = begun(tmp_path / "stream", with_workers("pipe:cat {0..9}.tar", 1))
    claim(stream, with_workers("pipe:cat {0..9}.tar", 0), restart=False)  # one stream either way
    with pytest.raises(UserError, match=r"reading\.workers: 1 → 4 \(they take turns at pipe: shards"):
        claim(stream, with_workers("pipe:cat {0..9}.tar", 4), restart=False)


def test_records_drop_what_will_be_done_again(tmp_path):
    records = Records(tmp_path, 0)
    for step in (1, 2, 3):
        records.write(step, {"loss": float(step)})
    records.close()
    (tmp_path / "metrics.jsonl").open("a").write('{"step": 4, "lo')
    Records(tmp_path, 2).close()
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}]


def test_copies_beside_checkpoints_are_nobodys_business(tmp_path):
    state = trained()
    for step in (1, 2, 3):
        state.step = step
        checkpoints.save(state, tmp_path, keep=1)
        (tmp_path / f"step-{step}").rename(tmp_path / f"step-{step}-mine") if step == 1 else None
    (tmp_path / "step-9.bak").mkdir()
    assert checkpoints.newest(tmp_path).name == "step-3"
    state.step = 4
    checkpoints.save(state, tmp_path, keep=1)
    assert {path.name for path in tmp_path.glob("step-*")} == {"step-1-mine", "step-9.bak", "step-4"}


@POSIX
def test_best_is_found_again_after_a_kill_before_its_link(tmp_path):
    state = trained()
    state.best_step = 1
    checkpoints.save(state, tmp_path, keep=3)
    state.step = state.best_step = 2
    checkpoints.save(state, tmp_path, keep=3)
    (tmp_path / "best").unlink()
    (tmp_path / "best").symlink_to("step-1")  # as a kill between checkpoint and link leaves it
    state.step = 3
    checkpoints.save(state, tmp_path, keep=1)
    assert (tmp_path / "best").resolve().name == "step-2" and (tmp_path / "step-2").is_dir()


def test_a_full_disk_is_told_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    state = trained()
    checkpoints.save(state, tmp_path, keep=2)
    state.step = 2

    def full(folder, states):
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state, "write", full)
    with pytest.raises(UserError, match=r"step-2 cannot be written .*No space left.* the same command resumes"):
        checkpoints.save(state, tmp_path, keep=2)
    assert [path.name for path in tmp_path.glob(".writing*")] == [] and checkpoints.newest(tmp_path).name == "step-1"


def test_one_process_at_a_time_trains_in_a_folder(tmp_path):
    with alone_in(tmp_path / "run"):
        with pytest.raises(UserError, match="another process is training in"), alone_in(tmp_path / "run"):
            pass
        with alone_in(tmp_path / "other"):
            pass
    with alone_in(tmp_path / "run"):
        pass


def test_damaged_samples_named_by_other_bytes_are_kept(tmp_path):
    count = DamageCount()
    count.add(0, [("caf\udce9.jpg", "corrupt"), ("a\u2028b.jpg", "truncated")])
    DamagedFile(tmp_path, count).append()
    kept = DamagedFile(tmp_path, count)
    kept.written = 0
    kept.append()
    again = DamageCount()
    DamagedFile(tmp_path, again)
    assert again.keys == count.keys
    count.summary().encode("utf-8")  # can be printed


def test_a_damaged_config_is_told(tmp_path):
    (tmp_path / "config.json").write_text("")
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        claim(tmp_path, as_dict(TrainSettings()), restart=False)
