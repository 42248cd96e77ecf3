"""The report of a run shows what its queries found, with photos; what is absent or damaged becomes words."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from dinorankclip.config import FindingSettings, TrainSettings, as_dict
from dinorankclip.data.damage import Damage
from dinorankclip.data.open_data import open_pairs
from dinorankclip.evaluate.example_queries import note_examples
from dinorankclip.report.example_pictures import _Pictures
from dinorankclip.report.run_report import _subtitle, run_page
from dinorankclip.run_files import EXAMPLES
from tests.report.test_html import EVIL, Reader, fetches

STEPS = (3, 9)


@pytest.fixture
def run(tmp_path):
    """A run on twenty photos of a table, with example queries of two validations; the second finds everything."""
    lines = ["image,caption"]
    for n in range(20):
        noise = np.random.default_rng(n).integers(0, 255, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{n}.jpg")
        lines.append(f'{n}.jpg,"{"photo" if n else EVIL.replace(chr(34), chr(39))} {n}"')
    (tmp_path / "photos.csv").write_text("\n".join(lines) + "\n")
    folder = tmp_path / "run"
    folder.mkdir()
    settings = as_dict(TrainSettings(data=str(tmp_path / "photos.csv")))
    settings["reading"]["val_fraction"] = 0.5
    (folder / "config.json").write_text(json.dumps(settings))
    source = open_pairs(settings["data"], FindingSettings(val_fraction=0.5), "val")
    captions, eye = [source.captions(n) for n in range(len(source))], torch.eye(len(source))
    for step, image in zip(STEPS, (-eye, eye)):
        note_examples(folder, step, "val", source, range(len(source)), captions, image, eye)
    scores = {f"val/{way} R@{k}": 1.0 for way in ("i2t", "t2i") for k in (1, 5, 10)} | {"val/chance R@1": 0.1}
    stored = {"step": 9, "scores": scores, "before": {"val/i2t R@1": 0.25}}
    (folder / "scores.json").write_text(json.dumps(stored))
    return folder


def read(run):
    text = run_page(run).html()
    page = Reader(text)
    assert page.open == [] and fetches(text) == [] and not any(tag == "script" for tag, _ in page.tags)
    return page


def tiles(page):
    return [attributes["class"] for tag, attributes in page.tags if attributes.get("class", "").startswith("tile")]


def test_before_and_after_hits_and_misses(run):
    page = read(run)
    assert "moved up for 10, down for 0 and stayed for 0" in page.text
    assert "its median place went from 10 to 1 of 10" in page.text
    assert f"step {STEPS[0]}: the first right photo is at place 10 of 10" in page.text
    assert f"step {STEPS[1]}: the first right photo is at place 1 of 10" in page.text
    shown = tiles(page)
    # four queries twice with five photos each, four hits with five, and three images that ask for captions
    assert len(shown) == 4 * 10 + 4 * 5 + 3
    assert sum("right" in name for name in shown) == 4 + 4 and sum("meant" in name for name in shown) == 3
    assert all(a["src"].startswith("data:image/jpeg;base64,") for tag, a in page.tags if tag == "img")


def test_the_table_has_the_moments_of_a_direction_below_each_other(run):
    words = [word.strip() for word in read(run).words]
    at = words.index("before training")
    assert "image → text" in words[at - 3 : at] and "25.00 %" in words[at : at + 3]


def test_everything_from_the_data_is_escaped(run):
    assert "<img src=x" in read(run).text or "onerror" in read(run).text


@pytest.mark.parametrize("name", [EXAMPLES, "scores.json", "fusion.json", "environment.json"])
def test_a_damaged_file_becomes_words(run, name):
    (run / name).write_text('{"step": ')
    page = read(run)
    assert f"{name} is damaged" in page.text and "What the words mean" in page.text


def test_data_that_is_gone_or_has_changed_is_said_to_be(run):
    (run.parent / "moved").mkdir()
    shutil.move(run.parent / "photos.csv", run.parent / "moved")
    page = read(run)
    assert "The photos cannot be shown: there is no " in page.text and tiles(page) == []
    assert "place at step 3" in page.text and "moved up for 10" in page.text
    (run.parent / "photos.csv").write_text("image,caption\n1.jpg,one\n2.jpg,two\n3.jpg,three\n")
    assert "has changed since the run" in read(run).text


class Unreadable:
    """A source whose first image is damaged and whose second is gone with its disk."""

    def image(self, index):
        raise Damage("missing-image") if index == 0 else OSError(5, "Input/output error")


def test_a_photo_that_cannot_be_read_leaves_its_cause():
    shown = [_Pictures(Unreadable()).tile(index, True) for index in (0, 1)]
    assert [(tile.source, tile.name) for tile in shown] == [("", "missing-image"), ("", "OSError")]


def test_a_run_without_examples_says_so(run):
    (run / EXAMPLES).unlink()
    assert "stored no example queries" in read(run).text


def test_pictures_of_score_are_shown_once_and_damaged_ones_named(run):
    folder = run / "pictures"
    folder.mkdir()
    for name in ("photos-retrieval", "photos-plane", "classes-hardest"):
        Image.new("RGB", (40, 20)).save(folder / f"{name}.png")
    (folder / "cut-plane.png").write_bytes((folder / "photos-plane.png").read_bytes()[:40])
    score = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 10, "unit": "share", "chance": 0.1}
    sets = {
        "photos": {"split": "val", "images": 10, "scores": {"i2t R@1": score}},
        "classes": {"scores": {"T@1": score}},
    }
    (run / "scores.json").write_text(json.dumps({"step": 9, "scores": {}, "sets": sets}))
    page = read(run)
    pictures = [a["alt"] for tag, a in page.tags if tag == "img" and a["src"].startswith("data:image/png")]
    assert pictures == ["classes", "photos"]  # the plane; hits and misses of the same photos stand above
    assert "photos-retrieval.png is left out" in page.text and "cut-plane.png cannot be shown" in page.text
    titles = [a["title"] for tag, a in page.tags if tag == "abbr"]
    assert len(titles) == 2 and titles[0].startswith("Share of queries with a right item among the first 1")


def test_the_subtitle_names_recipe_towers_and_start():
    settings = {"data": "photos.csv", "seed": 3, "model": {"trunk": "drc-tiny", "weights": None}}
    assert _subtitle(settings, "clip") == "Trunk drc-tiny, trained by clip on photos.csv, seed 3"
    assert _subtitle(settings | {"recipe": "paper", "init": "runs/a"}, "rank") == (
        "Trunk drc-tiny, --recipe paper, trained by rank on photos.csv, starting from runs/a, seed 3"
    )
    towers = {"recipe": "aligned", "aligned": {"image_tower": "efficientnet-lite0", "text_tower": "minilm"}}
    assert _subtitle(settings | towers, "clip") == (
        "Heads on the frozen towers efficientnet-lite0 (images) and minilm (captions), --recipe aligned, trained by "
        "clip on photos.csv, seed 3"
    )
