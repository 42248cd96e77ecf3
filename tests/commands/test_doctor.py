import json
from functools import partial

import pytest

from dinorankclip.commands import entry
from dinorankclip.commands.doctor_path import doctor, examine
from dinorankclip.commands.shared import call_verb
from dinorankclip.config import CheckingSettings
from dinorankclip.data.folders_and_tables import FolderSource
from dinorankclip.data.inspect import _samples
from dinorankclip.run_files import is_run, read_settings
from dinorankclip.types import UserError
from tests.report.test_run_findings import run_folder
from tests.set_making import patch
from tests.train.running import small_pairs

main = partial(call_verb, doctor, "doctor")


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
        reported = capsys.readouterr()
        assert end.value.code == 2 and reported.out == "" and reported.err.count("\n") == 1
        assert reported.err.startswith(f"error: {run / 'config.json'} ")


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
