import pytest

from dinorankclip.commands.train import main, parse, run
from dinorankclip.config import ReadingSettings, as_dict
from dinorankclip.data.open_data import open_pairs
from dinorankclip.evaluate.during_training import few_scored, score_table
from dinorankclip.stored_settings import as_begun, as_stored, difference
from dinorankclip.train.cost import lasting
from dinorankclip.types import UserError
from dinorankclip.validate import validated


def test_a_preset_and_a_method_decide_the_defaults():
    settings, restart, dry = parse(["--preset", "cc3m", "--method=rankclip", "--dry-run"])
    assert (settings.model.trunk, settings.budget.batch, settings.loss.order) == ("ViT-B-32", 1024, 1)
    assert (settings.run, restart, dry) == ("runs/cc3m-rankclip", False, True)
    assert parse(["--method", "rank"])[0].loss.order == 3
    assert parse(["--method", "rank", "--loss.order", "2"])[0].loss.order == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--preset", "scene"], "did you mean scenes"),
        (["--method", "cylip"], "did you mean cyclip"),
        (["--method", "rankclip", "--loss.order", "2"], "use --method rank"),
        (["--method", "rank", "--loss.order", "6"], "orders 0 to 5"),
        (["--method", "clip", "--loss.order", "9"], "orders 0 to 5"),
        (["--fusion.variant", "concat", "--fusion.no-gate"], "concat has no gate"),
        (["--fusion.variant", "additive", "--fusion.no-gate"], "additive has no gate"),
        (["--record.keep", "0"], "at least 1"),
        (["--record.log-every", "0"], "--record.log-every 0: it must be at least 1"),
        (["--record.save-every", "0"], "--record.save-every 0: it must be at least 1"),
        (["--optim.clip-norm", "0"], "None switches it off"),
        (["--optim.heads-rate", "0"], "above 0"),
        (["--budget.batch", "0"], "--budget.batch 0: it must be at least 1"),
        (["--budget.epochs", "0"], "--budget.epochs 0: it must be at least 1"),
        (["--budget.chunk", "-1"], "--budget.chunk -1: it must be at least 1"),
    ],
)
def test_a_mistake_is_explained(flags, message):
    with pytest.raises(UserError, match=message):
        run(parse(flags)[0], restart=False, dry=False)


def test_the_share_of_a_summed_gram_loss_is_logged():
    def reported(*flags):
        return validated(parse(list(flags))[0]).record.gradient_report_every

    taught = ("--distil.cache", "auto")
    assert reported(*taught, "--distil.gram-reduction", "sum") == 10 and reported(*taught) == 0
    assert reported(*taught, "--distil.gram-reduction", "sum", "--record.gradient-report-every", "3") == 3


def test_an_unknown_flag_names_the_nearest(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["--budget.epoch", "3"])
    assert end.value.code == 2
    assert "--budget.epochs" in capsys.readouterr().err


def test_differences_that_cannot_change_the_result_are_ignored():
    old = {"seed": 0, "record": {"keep": 2}, "reading": {"workers": 1, "flip": False}}
    new = {"seed": 0, "record": {"keep": 5}, "reading": {"workers": 4, "flip": True}}
    assert difference(old, new) == ["reading.flip: False → True"]


def test_a_run_of_an_older_version_lacks_a_setting_and_differs_by_what_it_did():
    old, new = as_dict(parse(["--method", "rank"])[0]), as_dict(parse(["--method", "rank"])[0])
    del old["loss"]["gate_l1_size"]
    assert difference(old, new) == ["loss.gate_l1_size: plain → lists"]
    del new["loss"]["gate_l1_size"]
    assert difference(old, new) == []
    old["loss"]["order"] = new["loss"]["order"] = 1  # no gates, no effect
    assert difference(old, as_dict(parse(["--method", "rank", "--loss.order", "1"])[0])) == []


def test_a_run_goes_on_as_it_began():
    asked = parse(["--method", "rank"])[0]
    older, newer = as_dict(asked), as_dict(asked)
    del older["loss"]["gate_l1_size"]
    assert as_begun(asked, newer) == asked
    resumed = as_stored(as_dict(as_begun(asked, older)), older)
    for stored in (older, resumed):  # before and after it was resumed for the first time
        assert as_begun(asked, stored).loss.gate_l1_size == "plain"
    assert resumed["optim"] == newer["optim"] and "gate_l1_size" not in resumed["loss"]


def test_an_optimiser_that_was_chosen_is_never_kept_in_place_of_another():
    """A run with AdamW in the default folder must not answer for the run with Muon that is asked for next."""
    adamw, muon = (parse(["--method", "clip", *more])[0] for more in (["--optim.name", "adamw"], []))
    begun = as_begun(muon, as_dict(adamw))
    assert begun.optim.name == "muon"
    assert difference(as_dict(adamw), as_dict(begun)) == ["optim.name: adamw → muon"]


def test_the_table_shows_before_and_after():
    scores = {f"val/{way} R@{k}": 0.5 for way in ("i2t", "t2i") for k in (1, 5, 10)} | {"val/chance R@1": 0.001}
    table = score_table(scores, {name: 0.25 for name in scores})
    assert table.count("before") == table.count("after") == 2
    assert "25.00" in table and "50.00" in table


def test_scores_of_few_images_come_with_a_caution():
    assert few_scored({"val/images": 4.0, "test/images": 2000.0, "val/i2t R@1": 0.5}).endswith("model: val n = 4")
    assert few_scored({"val/images": 50.0}) == ""


def test_fine_tuning_of_nothing_is_said(tmp_path, capsys):
    with pytest.raises(UserError, match="there is no"):
        run(parse(["--preset", "finetune", "--data", str(tmp_path / "pairs.csv")])[0], restart=False, dry=True)
    assert "training begins with random weights" in capsys.readouterr().out


def test_a_mistake_leaves_no_run_folder_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = parse(["--preset", "finetune", "--data", "nope.csv", "--run", "runs/x"])[0]
    with pytest.raises(UserError, match=r"nope\.csv"):
        run(wrong, restart=False, dry=False)
    assert list((tmp_path / "runs").iterdir()) == []
    old = tmp_path / "runs" / "x"
    old.mkdir()
    with pytest.raises(UserError, match=r"nope\.csv"):
        run(wrong, restart=False, dry=False)
    assert old.is_dir()  # this start did not make it


@pytest.mark.parametrize(("flag", "kind"), [("--distil.teacher", "image"), ("--distil.text-teacher", "text")])
def test_an_unknown_teacher_is_refused_before_anything_is_announced(flag, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    settings = parse(["--method", "dinorankclip", "--data", "nope.csv", flag, "dinov2"])[0]
    for dry in (False, True):
        with pytest.raises(UserError, match=f"'dinov2' is no {kind} teacher"):
            run(settings, restart=False, dry=dry)
    assert capsys.readouterr().out == "" and list(tmp_path.iterdir()) == []


def test_a_dry_run_speaks_of_seconds_minutes_or_hours():
    assert [lasting(seconds).split() for seconds in (7.4, 600, 9000)] == [["7", "s"], ["10", "min"], ["2.5", "h"]]


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("starter", "--recipe aligned"),
        ("photos.csv", "is a file: name a run, a model folder, or open_clip:NAME:FILE"),
        ("open_clip:ViT-B-32:weights/lost.safetensors", "there is no file weights/lost.safetensors"),
        ("nowhere", "there is no such run or model folder"),
    ],
)
def test_a_start_that_is_none_is_refused_before_anything_is_announced(init, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos.csv").write_text("image,caption\n")
    with pytest.raises(UserError, match=message):
        main(["--preset", "finetune", "--init", init, "--data", "photos.csv"])
    assert "trained weights" not in capsys.readouterr().out


def test_a_table_without_names_of_columns_is_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos.csv").write_text("photos/1.jpg,a red shoe\nphotos/2.jpg,boots\n")
    with pytest.raises(UserError, match="The first line of a table names its columns: image,caption"):
        open_pairs("photos.csv", ReadingSettings(), "train")
    (tmp_path / "photos.csv").write_text("image\nphotos/1.jpg\n")
    with pytest.raises(UserError, match="search starter --images DIR"):
        open_pairs("photos.csv", ReadingSettings(), "train")


def test_an_interrupt_before_the_first_step_is_said(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dinorankclip.commands.train.train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(["--preset", "scenes"])
    assert "the same command goes on" in capsys.readouterr().err
