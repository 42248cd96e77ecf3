"""ALIP with given second captions: a real step on shards with one caption an image."""

import json
import tarfile

import pytest

from dinorankclip.commands.train import run
from dinorankclip.methods import words_of_stored
from dinorankclip.run_files import read_metrics, read_settings
from dinorankclip.train.cost import spending
from dinorankclip.types import UserError
from tests.train.running import settings_from, small_pairs


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Shards with the first caption of each image, and a file with the second."""
    folder = tmp_path_factory.mktemp("alip")
    made = small_pairs(folder / "both", train=40, val=8)
    seconds = []
    for part in ("train", "val"):
        (folder / "single" / part).mkdir(parents=True)
        with tarfile.open(made / part / "0.tar") as old, tarfile.open(folder / "single" / part / "0.tar", "w") as new:
            for member in old:
                data = old.extractfile(member)
                if member.name.endswith(".txt"):
                    first, second = data.read().decode().splitlines()
                    seconds.append({"key": member.name[:-4], "caption": second})
                    (folder / "first.txt").write_text(first)
                    new.add(folder / "first.txt", member.name)
                else:
                    new.addfile(member, data)
    path = folder / "second.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in seconds[:40]))  # the training part's
    return folder / "single", path


def settings_of(data, folder, *flags):
    quick = ["--budget.batch", 8, "--budget.epochs", 1, "--record.log-every", 1, "--record.no-tensorboard"]
    return settings_from("--method", "alip", "--data", data, "--run", folder, "--reading.workers", 0, *quick, *flags)


def test_the_cell_takes_real_steps(shards, tmp_path):
    data, second = shards
    settings = settings_of(data, tmp_path / "run", "--reading.second-captions", second)
    assert run(settings, restart=False, dry=False)
    losses = [line["loss"] for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert len(losses) == 5 and all(0 < loss < 20 for loss in losses)
    assert read_settings(tmp_path / "run")["reading"]["second_captions"] == str(second)
    assert spending(tmp_path / "run").method == "alip"
    stored = read_settings(tmp_path / "run")
    assert words_of_stored(stored).endswith("(ALIP)")
    stored["reading"]["second_captions"] = None
    assert words_of_stored(stored).endswith("(ALIP-style)")


def test_one_caption_an_image_is_explained(shards, tmp_path):
    with pytest.raises(UserError, match=r"only one caption.*--reading.second-captions FILE; docs/data.md"):
        run(settings_of(shards[0], tmp_path / "run"), restart=False, dry=False)


def test_two_captions_of_any_contrastive_method(shards, tmp_path):
    """An image with one caption shows it twice: then the steps are CLIP's. Given second captions change them."""
    data, second = shards
    losses = {}
    for name, flags in {
        "clip": (),
        "lone": ("--loss.two-captions",),
        "given": ("--loss.two-captions", "--reading.second-captions", second),
    }.items():
        assert run(settings_of(data, tmp_path / name, "--method", "clip", *flags), restart=False, dry=False)
        losses[name] = [line["loss"] for line in read_metrics(tmp_path / name) if "loss" in line]
    assert losses["lone"] == pytest.approx(losses["clip"], rel=1e-4)
    assert losses["given"] != pytest.approx(losses["clip"], rel=1e-2)
    assert spending(tmp_path / "given").method == "clip, two captions"
    assert words_of_stored(read_settings(tmp_path / "lone")).endswith("(CLIP), two captions a step")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "clip", "--reading.second-captions", "a.jsonl"], "--method clip reads no second captions"),
        (["--method", "siglip", "--loss.two-captions"], "--method siglip has no contrastive term"),
        (["--loss.two-captions"], "--method alip takes two captions already"),
        (["--reading.second-captions", "a.jsonl", "--reading.second-caption-column", "b"], "come from one place"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path, flags, message):
    with pytest.raises(UserError, match=message):
        settings_of("scenes", tmp_path, *flags)
