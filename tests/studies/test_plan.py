import pytest

from dinorankclip.types import UserError
from dinorankclip_studies.command import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_papers_scale_in_gpu_hours_and_disk(capsys):
    main(["plan", "--preset", "cc3m"])
    told = capsys.readouterr().out
    # 2.71 M // 1024 · 64 = 169,344 steps; order 0 at 301 ms on 8 GPUs: 113.3 GPU hours, order 3 at 379 ms: 142.6.
    assert "169,344 steps" in told
    lines = {line.split()[0]: line.split() for line in told.splitlines() if line}
    assert lines["clip"][1:] == ["1", "0", "301", "113"]
    assert lines["full"][1:] == ["1", "3", "379", "143"]
    assert "paper (projected)" in told
    assert "9.6 GB at 8×8" in told
    assert "clip-n1000 1 M, clip-n2000 2 M" in told


def test_a_study_of_this_machine(capsys):
    main(["plan", "full", "--workers", "2"])
    told = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in told.splitlines() if line}
    assert lines["clip"][1:3] == ["8", "0"]
    assert lines["full-h16"][1:3] == ["3", "0"]
    assert "tuning dinorankclip" in told
    assert " to go, 2 at a time" in told
    assert "folder: runs/study-full (not there yet" in told
    assert "learning rates: not tuned yet; 0.0005, 0.001, 0.002 are tried first" in told


def test_status_of_a_study_that_was_not_started(capsys):
    main(["status", "small"])
    told = capsys.readouterr().out
    assert "0 of 70 runs finished" in told and "not there yet: nothing has run" in told
    assert "learning rates: 0.001, of the preset" in told  # it has no grid


def test_status_before_and_after_tuning(tmp_path, capsys):
    folder = tmp_path / "runs/study-full"
    folder.mkdir(parents=True)
    main(["status", "full"])
    told = capsys.readouterr().out
    assert "learning rates: not tuned yet" in told and "not there" not in told
    (folder / "tuned.json").write_text('{"clip": {"chosen": 0.002, "tried": {}}}')
    main(["status", "full"])
    assert "learning rates: clip 0.002" in capsys.readouterr().out


def test_data_that_is_not_there_is_named_before_anything_runs():
    with pytest.raises(UserError, match=r"scores on data/flickr8k, data/caltech101, .*: put or link it there"):
        main(["run", "flickr8k"])


def test_the_catalogues_sets_are_explained():
    with pytest.raises(UserError, match=r"scores on sets: .*clip-benchmark layout: dinorankclip score --catalogue"):
        main(["run", "cc3m"])


def test_an_unknown_study_is_named():
    with pytest.raises(UserError, match=r"no study 'smal': .*small\?"):
        main(["plan", "smal"])
