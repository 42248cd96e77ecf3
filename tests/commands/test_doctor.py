import json
import math
from types import SimpleNamespace

import pytest

from dinorankclip.commands import entry
from dinorankclip.commands.doctor import examine, examine_run, main
from dinorankclip.config import CheckingSettings, TrainSettings, as_dict
from dinorankclip.data.folders import FolderSource
from dinorankclip.data.inspect import _samples
from dinorankclip.run_files import is_run, read_settings
from dinorankclip.train.ending import STOPPED, Ending, ending_noted, note_ending, read_ending
from dinorankclip.types import UserError
from tests.set_making import patch
from tests.train.running import small_pairs


def run_folder(folder, loss, steps=300, batch=256, **changes):
    settings = as_dict(TrainSettings()) | changes
    settings["budget"] = settings["budget"] | {"epochs": 10, "batch": batch}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    lines = [
        {"step": s, "loss": loss, "loss/contrastive": loss, "epoch": 10 * (s - 1) / steps}
        for s in range(10, steps + 1, 10)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_loss_stuck_at_guessing_is_found(tmp_path):
    stuck = [f for f in examine_run(run_folder(tmp_path / "a", math.log(256))) if "stuck at ln B" in f.what]
    assert stuck and stuck[0].level == "problem" and "--optim.lr" in stuck[0].advice
    assert not [f for f in examine_run(run_folder(tmp_path / "b", 3.0)) if "stuck" in f.what]


def test_a_loss_above_guessing_is_noted_before_it_is_called_stuck(tmp_path):
    (found,) = [f for f in examine_run(run_folder(tmp_path / "a", 5.7, steps=50)) if "guessing" in f.what]
    assert found.level == "note" and "no better than guessing" in found.what


def test_why_a_run_ended_is_told_with_the_command_that_goes_on(tmp_path):
    run = run_folder(tmp_path / "a", 3.0)
    note_ending(run, Ending(12, STOPPED))
    stopped = next(iter(examine_run(run)))
    assert (stopped.level, stopped.what) == ("note", "stopped on request after 12 steps")
    assert stopped.advice.startswith(f"go on: dinorankclip train --preset scenes --run {run} ")
    with pytest.raises(UserError), ending_noted(run, SimpleNamespace(step=20)):
        assert read_ending(run) is None  # the run goes on
        raise UserError("9 of 10 samples could not be used:\nlines of them")
    failed = next(iter(examine_run(run)))
    assert failed.level == "problem" and failed.what.endswith("after 20 steps: 9 of 10 samples could not be used:")


def test_few_lines_of_many_steps_are_said_to_be_that(tmp_path):
    run = run_folder(tmp_path / "a", 3.0, steps=10)
    (run / "checkpoints" / "step-16").mkdir(parents=True)
    assert any(f.what == "1 line logged of 16 steps, newest checkpoint step-16" for f in examine_run(run))


def test_losses_that_ln_b_is_no_measure_of_are_not_judged_by_it(tmp_path):
    alip = run_folder(tmp_path / "alip", math.log(256), method="alip")
    distil = run_folder(tmp_path / "distil", 0.05, method="distil")
    lines = [json.loads(line) for line in (distil / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["loss/contrastive"]
    (distil / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for folder in (alip, distil):
        found = [f.what for f in examine_run(folder)]
        assert not any("stuck" in what or "guessing would be" in what for what in found)
        assert any("nobody can tell whether it is guessing" in what for what in found)


def test_a_schedule_that_does_not_fit_is_found(tmp_path):
    optim = as_dict(TrainSettings())["optim"] | {"warmup_steps": 200}
    found = list(examine_run(run_folder(tmp_path / "a", 3.0, optim=optim)))
    assert any(f.level == "problem" and "warm-up takes 200 of 300 steps" in f.what for f in found)


def test_a_larger_batch_is_advised_only_if_the_data_can_fill_it(tmp_path):
    def few(steps):  # in ten epochs
        found = examine_run(run_folder(tmp_path / str(steps), 1.0, steps, batch=4))
        return [f.advice for f in found if "few negatives" in f.what]

    assert few(40) == []  # 16 pairs
    (advice,) = few(300)  # 120 pairs
    assert "up to 30 with these pairs" in advice


def test_a_run_without_a_step_is_said_to_have_no_checkpoint(tmp_path):
    run = run_folder(tmp_path / "a", 3.0)
    (run / "metrics.jsonl").unlink()
    (found,) = examine(str(run), 0, CheckingSettings())
    assert "no checkpoint yet" in found.what and "train command again" in found.advice


def test_damaged_samples_and_missing_shards_are_found(tmp_path):
    pairs = small_pairs(tmp_path / "pairs")
    (pairs / "train" / "nshards.txt").write_text("3")
    tar = (pairs / "val" / "0.tar").read_bytes()
    (pairs / "val" / "0.tar").write_bytes(tar.replace(b"\xff\xd8\xff", b"\x00\x00\x00", 4))
    found = list(examine(str(pairs), 100, CheckingSettings()))
    assert any(f.level == "problem" and "says 3 shards, but 1.tar, 2.tar are not there" in f.what for f in found)
    assert any("val: 4 of 16 examined samples are damaged" in f.what for f in found)
    with pytest.raises(SystemExit) as end:
        main([str(pairs)])
    assert end.value.code == 1


def test_a_caption_that_just_fits_is_not_cut(tmp_path):
    for number, words in enumerate(("! " * 75, "! " * 76)):
        (tmp_path / f"{number}.jpg").write_bytes(patch(number))
        (tmp_path / f"{number}.txt").write_text(words)
    found = list(_samples("all", FolderSource(tmp_path), 9, CheckingSettings()))
    assert any("1.0 captions an image, 77.5 tokens on average, 78 at most" in f.what for f in found)
    assert any("1 captions are longer than the context" in f.what for f in found)


def test_how_much_damage_is_a_problem_is_for_the_user_to_say(tmp_path):
    pairs = small_pairs(tmp_path / "pairs")
    tar = (pairs / "val" / "0.tar").read_bytes()
    (pairs / "val" / "0.tar").write_bytes(tar.replace(b"\xff\xd8\xff", b"\x00\x00\x00", 4))
    with pytest.raises(SystemExit) as end:
        main([str(pairs), "--reading.max-damaged", "0.2"])
    assert end.value.code == 1
    main([str(pairs), "--reading.max-damaged", "0.3"])  # a quarter is damaged


def test_what_is_accepted_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"there is no nowhere[^\0]*doctor takes pairs, a run folder, or nothing"):
        main(["nowhere"])


def test_a_folder_of_runs_is_said_to_be_one(tmp_path):
    for name in ("b", "a"):
        run_folder(tmp_path / name, 3.0)
        (tmp_path / name / "environment.json").write_text("{}")
    with pytest.raises(UserError, match=rf"{tmp_path} holds runs: a, b; name one, e\.g\. .*{tmp_path}/a"):
        main([str(tmp_path)])


def test_a_healthy_machine_has_no_problems():
    assert all(finding.level != "problem" for finding in examine(None, 0, CheckingSettings()))


@pytest.mark.parametrize("text", ["", '{"method": "clip", "da', "[]", '{"method": "clip"}'])
def test_a_run_with_damaged_settings_is_told_in_a_line(tmp_path, capsys, text):
    run = run_folder(tmp_path / "a", 3.0)
    (run / "config.json").write_text(text)
    for verb in ("doctor", "report"):
        with pytest.raises(SystemExit) as end:
            entry.main([verb, str(run)])
        told = capsys.readouterr()
        assert end.value.code == 2 and told.out == "" and told.err.count("\n") == 1
        assert told.err.startswith(f"error: {run / 'config.json'} ")


def test_a_hugging_face_folder_is_no_run(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip", "architectures": ["CLIPModel"]}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert not is_run(tmp_path)
    for verb, status, words in (("doctor", 1, "no pairs in"), ("report", 2, "neither a run")):
        with pytest.raises(SystemExit) as end:
            entry.main([verb, str(tmp_path)])
        assert end.value.code == status and words in "".join(capsys.readouterr())


def test_a_run_is_known_by_its_settings_or_by_what_lies_beside_them(tmp_path):
    run = run_folder(tmp_path / "a", 3.0)
    assert is_run(run) and read_settings(run)["method"] == "clip"
    (run / "metrics.jsonl").unlink()
    assert is_run(run)  # a start that was refused leaves its settings alone
    (run / "config.json").write_text("{")
    assert not is_run(run)
    (run / "checkpoints").mkdir()
    assert is_run(run)
    (run / "config.json").unlink()
    assert not is_run(run)
