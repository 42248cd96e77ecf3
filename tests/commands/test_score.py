"""The command as a user meets it, with a real (tiny, untrained) model."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dinorankclip.commands.entry import main
from dinorankclip.commands.score import default_out, known_metrics, locate_sets, parse_shift
from dinorankclip.config import FindingSettings, ReadingSettings, TrainSettings, as_dict
from dinorankclip.data.benchmark_sets import source_digest
from dinorankclip.data.open_data import open_pairs
from dinorankclip.evaluate.zero_shot import Shift
from dinorankclip.models.folder import save_model
from dinorankclip.models.joint import JointModel
from dinorankclip.train.cost import RunData, run_data
from dinorankclip.types import UserError
from tests.set_making import patch, write_captions, write_classes

TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 16, "layers": 1, "head_width": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A run folder, a folder of sets, and the current folder, so that `built/` is made there."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    save_model(JointModel(TINY), run)
    (run / "config.json").write_text(json.dumps(as_dict(TrainSettings())))
    write_classes(tmp_path / "sets" / "classes")
    write_classes(tmp_path / "sets" / "classes", split="train", labels=(0, 1, 2, 3) * 5)
    write_captions(tmp_path / "sets" / "pairs", labels=(0, 1, 2, 3) * 3)
    return tmp_path


def test_scores_table_items_and_pictures(here, capsys):
    main(["score", "run", "--sets", "sets", "--threads", "1"])
    out = capsys.readouterr().out
    assert "95 % interval" in out and "cone separation" in out
    assert [line.split("note: ")[1] for line in out.splitlines() if "note:" in line] == [
        f"so few images say little about the model: {name} n = 12" for name in ("classes", "pairs")
    ]
    assert "t2i R@10" in out and "averages" not in out
    stored = json.loads((here / "run" / "scores.json").read_text())
    assert set(stored["sets"]) == {"classes", "pairs"} and stored["set_errors"] == {}
    first = stored["sets"]["classes"]["scores"]
    assert {"T@1", "mean per class", "embedding probe accuracy", "features probe accuracy"} <= set(first)
    # The colours of four classes are linearly separable in any features that keep colours.
    assert first["features probe accuracy"]["value"] == 1.0 and first["T@1"]["n"] == 12
    assert (here / "run" / "scores_items.npz").is_file()
    assert sorted(path.name for path in (here / "run" / "pictures").iterdir()) == [
        "classes-hardest.png", "pairs-plane.png", "pairs-retrieval.png"]  # fmt: skip
    kept = sorted((here / "built" / "embeddings").iterdir())
    main(["score", "run", "--sets", "sets", "--threads", "1", "--no-pictures"])
    assert sorted((here / "built" / "embeddings").iterdir()) == kept
    assert json.loads((here / "run" / "scores.json").read_text())["sets"] == stored["sets"]


def test_sets_that_workers_embedded_give_the_same_scores(here, monkeypatch):
    """A runner that only opens the work as a worker elsewhere does."""
    from dinorankclip.pieces import run

    def elsewhere(pieces, missing, where, work, place, bar, account):
        opened = type(work)(work.opener, json.loads(json.dumps(work.settings)), work.device).open()
        assert opened.identity == pieces.identity and opened.missing() == missing == [0, 1, 2]
        for number in missing:
            opened.make(number, lambda items: None)

    (here / "sets" / "broken").mkdir()
    write_captions(here / "sets" / "broken")
    (here / "sets" / "broken" / "test" / "0.tar").write_bytes(b"no tar")
    call = ["score", "run", "--sets", "sets", "--threads", "1", "--no-pictures"]
    with pytest.raises(SystemExit):
        main([*call, "--out", "one"])
    shutil.rmtree(here / "built" / "embeddings")
    monkeypatch.setattr(run, "_run_elsewhere", elsewhere)
    with pytest.raises(SystemExit):
        main([*call, "--out", "two", "--on", "ray"])
    one, two = (json.loads((here / name / "scores.json").read_text()) for name in ("one", "two"))
    assert one["sets"] == two["sets"] and set(one["set_errors"]) == set(two["set_errors"]) == {"broken"}


def test_the_report_of_a_run_that_has_one_is_written_again(here, capsys):
    call = ["score", "run", "--sets", "sets/pairs", "--metrics", "retrieval", "--no-pictures"]
    main(call)
    assert not (here / "run" / "report.html").exists() and "report:" not in capsys.readouterr().out
    (here / "run" / "report.html").write_text("as train left it")
    main([*call, "--out", "elsewhere"])
    assert (here / "run" / "report.html").read_text() == "as train left it"
    main(call)
    text = (here / "run" / "report.html").read_text()
    assert "Evaluation sets" in text and "t2i R@10" in text and "report: run/report.html" in capsys.readouterr().out


def photos(folder):
    """60 images of 20 products, three each, and their captions under `title`."""
    rows = ["image,title,product"]
    for n in range(60):
        (folder / f"{n}.jpg").write_bytes(patch(n % 4, n))
        rows.append(f"{n}.jpg,picture {n},{n % 20}")
    (folder / "photos.csv").write_text("\n".join(rows) + "\n")


def test_of_a_runs_own_data_the_part_it_set_aside_is_scored(here, capsys):
    photos(here)
    reading = FindingSettings(caption_column="title", group_column="product", val_fraction=0.2)
    about = as_dict(TrainSettings()) | {"data": "photos.csv", "reading": dataclasses.asdict(reading)}
    (here / "run" / "config.json").write_text(json.dumps(about))
    main(["score", "run", "--sets", "photos.csv", "--metrics", "retrieval", "--no-pictures"])
    assert "trained on these pairs" not in capsys.readouterr().out
    scored = json.loads((here / "run" / "scores.json").read_text())["sets"]["photos"]
    source = open_pairs("photos.csv", reading, "val")
    assert (scored["split"], scored["images"]) == ("val", 12) and scored["fingerprint"] == source_digest(source)
    main(["score", "run", "--sets", "photos.csv", "--split", "all", "--metrics", "retrieval", "--no-pictures"])
    assert "note: the model was trained on these pairs" in capsys.readouterr().out


def test_flags_change_a_runs_own_reading_and_another_division_is_said(here, capsys):
    photos(here)
    own = FindingSettings(caption_column="title", group_column="product", val_fraction=0.2)
    settings = TrainSettings(data="photos.csv", reading=ReadingSettings(**dataclasses.asdict(own)))
    (here / "run" / "config.json").write_text(json.dumps(as_dict(settings)))
    (here / "other.csv").write_text("image,title\n0.jpg,a cat\n1.jpg,a dog\n")
    trained_on = run_data("run")
    more = FindingSettings(max_pixels=10**9)
    (place,) = locate_sets("photos.csv", Path("sets"), more, trained_on)
    assert place.reading == dataclasses.replace(own, max_pixels=10**9) and place.note == ""
    (place,) = locate_sets("photos.csv", Path("sets"), FindingSettings(val_fraction=0.5), trained_on)
    assert (place.reading.val_fraction, place.reading.group_column) == (0.5, "product")
    assert "it was trained on some of these pairs" in place.note
    (place,) = locate_sets("other.csv", Path("sets"), FindingSettings(caption_column="title"), trained_on, "all")
    assert place.note == "" and place.reading.group_column is None


@pytest.mark.parametrize("text", ["{not json", "[]", '{"data": 3}'])
def test_a_config_of_something_else_is_no_run_and_a_damaged_one_of_a_run_is_told(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert run_data(tmp_path) is None and run_data("open_clip:ViT-B-32") is None
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    with pytest.raises(UserError, match=r"config\.json (is damaged|holds no settings of a run)"):
        run_data(tmp_path / "checkpoints" / "step-1")


def test_settings_of_another_version_do_not_hide_how_a_run_divided_its_data(tmp_path):
    about = as_dict(TrainSettings()) | {"reading": {"val_fraction": 0.3, "of_another_version": 1}}
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert run_data(tmp_path).reading.val_fraction == 0.3


def test_parts_of_their_own_need_no_caution(here):
    own = RunData("sets/pairs", FindingSettings(val_fraction=0.3))
    (place,) = locate_sets("sets/pairs", Path("sets"), FindingSettings(val_fraction=0.2), own)
    assert own.caution(place, None) == own.caution(place, "test") == ""
    assert own.caution(place, "train") == "the model was trained on these pairs"


def test_pairs_of_ones_own_are_read_as_the_flags_say(here):
    photos(here)
    call = ["score", "run", "--sets", "photos.csv", "--metrics", "retrieval", "--no-pictures"]
    with pytest.raises(SystemExit, match="1"):
        main(call)  # no column is called caption
    main([*call, "--reading.caption-column", "title", "--reading.val-fraction", "0.5"])
    assert json.loads((here / "run" / "scores.json").read_text())["sets"]["photos"]["images"] == 30


def test_one_bad_set_of_two(here, capsys):
    (here / "sets" / "classes" / "classnames.txt").unlink()
    with pytest.raises(SystemExit) as end:
        main(["score", "run", "--sets", "sets", "--no-cache", "--out", "elsewhere", "--metrics", "retrieval"])
    assert end.value.code == 1
    reported = capsys.readouterr()
    assert "1 could NOT be scored" in reported.err and "classnames.txt" in reported.err
    stored = json.loads((here / "elsewhere" / "scores.json").read_text())
    assert set(stored["sets"]) == {"pairs"} and "classes" in stored["set_errors"]
    assert "i2t R@1" in stored["sets"]["pairs"]["scores"] and not (here / "built" / "embeddings").exists()


def test_mistakes_are_answered(here, capsys):
    for arguments, text in (
        (["nowhere", "--sets", "sets"], "holds no model"),
        (["run", "--sets", "set"], "Did you mean sets?"),
        (["run", "--sets", "xyzzy"], "or a name of the catalogue"),
        (["run", "--sets", "svhn"], "hf download clip-benchmark/wds_vtab-svhn"),
        (["run", "--sets", "sets", "--metrics", "zeroshot"], "there are retrieval, zero-shot"),
        (["run", "--sets", "sets", "--metrics", "retreival"], "; did you mean retrieval?"),
        (["run", "--sets", "sets", "--shift", "a"], "write BASE=RENDITION"),
        (["run", "--sets", "sets", "--level", "95"], "a share between 0 and 1"),
        (["run", "--sets", "sets", "--draws", "0"], "fewer than 100 draws"),
        (["run", "--sets", "sets", "--threads", "0"], "--threads 0: at least 1"),
        (["run", "--sets", "sets", "--device", "gpu"], "device gpu: Expected one of cpu"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["score", *arguments])
        assert end.value.code == 2
        assert text in capsys.readouterr().err


def test_fidelity_that_was_asked_for_in_vain_is_said(here, capsys):
    (here / "exported").mkdir()
    save_model(JointModel(TINY), here / "exported")
    for model in ("run", "exported"):
        with pytest.raises(SystemExit) as end:
            main(["score", model, "--sets", "sets/pairs", "--metrics", "retrieval", "fidelity", "--no-pictures"])
        assert end.value.code == 1
        assert f"fidelity: {model} is no run that learnt from a teacher" in capsys.readouterr().err
    main(["score", "run", "--sets", "sets/pairs", "--no-pictures"])  # not asked for: nothing to say
    assert "fidelity" not in capsys.readouterr().out


def test_words_after_flags():
    assert known_metrics((), ["modality gap"]) is None
    assert known_metrics(("modality-gap", "shift"), ["modality gap"]) == ("modality gap", "shift")
    assert parse_shift("photo=sketch,night") == Shift("photo", ("sketch", "night"))
    with pytest.raises(UserError):
        parse_shift("photo=")


def test_where_scores_go(here):
    assert default_out("run").name == "run"
    assert str(default_out("open_clip:ViT-B-32:w/x.safetensors")) == "built/scores/open-clip-ViT-B-32-w-x.safetensors"
    assert default_out("exported/a-b").name == "exported-a-b"
    names = [default_out(name).name for name in ("exported/a-b", "exported/a_b", "exported/a b", "köpek", "кот", "犬")]
    assert len(set(names)) == 6 and names[1].startswith("exported-a-b-") and names[5].startswith("model-")


def test_help_shows_an_example_and_loads_no_torch():
    code = (
        "import sys; from dinorankclip.commands.entry import main\n"
        "try: main(['score', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "dinorankclip score runs/first --sets scenes" in done.stdout and "--max-damaged" in done.stdout
    assert done.stdout.strip().endswith("False")


def test_the_catalogue_is_listed(capsys):
    main(["score", "--catalogue"])
    assert "hf download clip-benchmark/wds_imagenet1k" in capsys.readouterr().out
