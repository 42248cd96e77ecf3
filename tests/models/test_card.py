"""What a card can know: all that a run left behind, and no more; never a failure, never a path of this machine."""

import json

import pytest

from dinorankclip.config import as_dict
from dinorankclip.io import point
from dinorankclip.models.card import card, provenance
from dinorankclip.models.loaded import load_model
from dinorankclip.models.trunk import trunk_config
from dinorankclip.presets import for_method, preset
from tests.models.model_making import saved, small_model

SCORES = {f"val/{way} R@{k}": 0.01 * k for way in ("i2t", "t2i") for k in (1, 5, 10)}


@pytest.fixture
def run(tmp_path):
    """A run of the whole method, as training leaves it, with a teacher cache."""
    step = saved(tmp_path / "runs" / "mine" / "checkpoints" / "step-40", small_model("full"))
    point(step.parent / "last", "step-40")
    (step / "training.json").write_text(json.dumps({"step": 40, "data": "abc123"}))
    cache = tmp_path / "private" / "lite0"
    cache.mkdir(parents=True)
    plan = {
        "teacher": f"timm:NAME:{tmp_path}/secret.bin",
        "note": "ImageNet-supervised",
        "data": {"train": {"images": 6000, "fingerprint": "f"}},
        "text": {"teacher": "minilm", "note": "a sentence encoder"},
    }
    (cache / "plan.json").write_text(json.dumps(plan))
    (cache / "manifest.json").write_text(json.dumps({"licences": {"image": "Apache-2.0"}}))
    settings = as_dict(for_method(preset("scenes"), "dinorankclip"))
    settings["data"], settings["distil"]["cache"] = f"{tmp_path}/private/photos.csv", str(cache)
    folder = tmp_path / "runs" / "mine"
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "environment.json").write_text(json.dumps({"gpus": [], "packages": {"torch": "2.13"}, "command": ["x"]}))
    (folder / "scores.json").write_text(json.dumps({"step": 40, "scores": SCORES}))
    return folder


def card_of(run):
    known = provenance((run / "checkpoints" / "last").resolve(), str(run), "photos of mugs, CC-BY")
    return card(load_model(run), known, "model = …"), known


def test_a_card_tells_method_data_teachers_and_scores(run):
    text, known = card_of(run)
    assert known["step"] == 40 and known["images"] == {"train": 6000}
    for line in (
        "# mine",
        "`dinorankclip`, contrastive loss, ranking consistency of order 3, distillation and fusion",
        "40 steps of 128 pairs, 5,120 pairs seen",
        "- name: `photos.csv`",
        "- images: train 6,000",
        "- fingerprint: `abc123`",
        "- note: photos of mugs, CC-BY",
        "- image: `timm:NAME:secret.bin`, licence: Apache-2.0; ImageNet-supervised",
        "- text: `minilm`, licence: not recorded, see its source; a sentence encoder",
        "| val, image → text | 1.00 | 5.00 | 10.00 |",
        "**Not chosen yet.**",
        "license: unknown",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("data", "reported"),
    [
        ("pipe:curl -s https://host/{0000..0099}.tar -H 'Authorization: Bearer SECRET'", "pipe: shards"),
        ("/home/me/a.tar::/home/me/b.tar", "a.tar::b.tar"),
    ],
)
def test_data_is_named_without_secrets_and_folders(run, data, reported):
    settings = json.loads((run / "config.json").read_text()) | {"data": data}
    settings["distil"] |= {"teacher": "timm:NAME:/home/me/w.bin", "text_teacher": "minilm:/home/me/minilm"}
    (run / "config.json").write_text(json.dumps(settings))
    text, known = card_of(run)
    assert f"- name: `{reported}`" in text
    assert "SECRET" not in text + json.dumps(known) and "/home/me" not in text + json.dumps(known)


def test_orders_that_did_nothing_are_named(run):
    spreads = {"spread2_image": 0.1, "spread2_text": 0.1, "spread3_image": 1e-5, "spread3_text": 1e-5}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 40} | spreads) + "\n")
    assert "distillation and fusion (DinoRankCLIP); order 3 inert" in card_of(run)[0]


def test_nothing_tells_of_the_machine(run, tmp_path):
    text, known = card_of(run)
    assert str(tmp_path) not in text + json.dumps(known)
    assert "command" not in json.dumps(known)


def test_a_model_that_was_begun_with_another_has_that_ones_trunk(run):
    settings = json.loads((run / "config.json").read_text()) | {"init": "runs/first"}
    settings["model"]["trunk"] = "drc-small"  # a preset's, which --init overrules
    (run / "config.json").write_text(json.dumps(settings))
    description = run / "checkpoints" / "last" / "model.json"
    design = json.loads(description.read_text())
    assert "started from: first; trunk without a name (see model.json), seed 0" in card_of(run)[0]
    for size, stated in ((None, None), (96, 96)):
        description.write_text(json.dumps(design | {"trunk": trunk_config("drc-tiny", size)}))
        known = provenance(description.parent.resolve(), str(run))
        assert (known["settings"]["model"]["trunk"], known["settings"]["model"]["image_size"]) == ("drc-tiny", stated)


def test_scores_of_another_step_are_said_to_be(run):
    (run / "scores.json").write_text(json.dumps({"step": 60, "scores": SCORES}))
    assert "**Of step 60; the weights here are of step 40.**" in card_of(run)[0]


def test_the_number_of_scored_images_is_told(run):
    (run / "scores.json").write_text(json.dumps({"step": 40, "scores": SCORES | {"val/images": 1000.0}}))
    assert "by this program; images: val 1,000." in card_of(run)[0]
    (run / "scores.json").write_text(json.dumps({"step": 40, "scores": SCORES | {"val/images": 4.0}}))
    assert "images: val 4 (so few say little)." in card_of(run)[0]


def test_scores_of_sets_are_shown_if_they_are_of_these_weights(run):
    accuracy, cone = {"value": 0.5, "low": 0.4, "high": 0.6}, {"value": 80, "unit": "degrees"}
    sets = {"cub": {"scores": {"accuracy": accuracy, "cone": cone}}}
    for identity, shown in ((load_model(run).identity, True), ("other", False)):
        (run / "scores.json").write_text(json.dumps({"sets": sets, "sets_model": {"identity": identity}}))
        text, _ = card_of(run)
        assert ("| cub | accuracy | 50.00 % (40.00 to 60.00) |" in text) is shown
        assert ("| cub | cone | 80.00° |" in text) is shown and ("None were recorded." in text) is not shown


def test_whatever_is_gone_is_left_out(run, tmp_path):
    for path in (tmp_path / "private" / "lite0").iterdir():
        path.unlink()
    text, known = card_of(run)
    assert known["teachers"] == [{"side": "image", "name": "efficientnet-lite0"}, {"side": "text", "name": "minilm"}]
    assert known["images"] == {}
    (run / "scores.json").write_text("{")
    (run / "environment.json").unlink()
    assert "## Scores\nNone were recorded." in card_of(run)[0]
    (run / "config.json").unlink()
    text, known = card_of(run)
    assert "Unknown: the model does not come from a run" in text and known["step"] == 40
    assert provenance(None, "open_clip:drc-tiny").keys() == {"name", "dinorankclip"}


def test_a_licence_goes_into_header_and_text(run):
    text = card(load_model(run), provenance(None, "x"), "", licence="apache-2.0")
    assert "license: apache-2.0\n" in text and "## Licence\napache-2.0" in text
