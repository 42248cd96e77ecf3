"""Folders of embeddings: right rows, the same bytes after a kill, refusals."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dinorankclip.data.damage import Damage
from dinorankclip.data.open_data import open_captions, open_images
from dinorankclip.models.loaded import load_model
from dinorankclip.pieces.run import make_pieces
from dinorankclip.search import embed_collection, embed_pieces
from dinorankclip.search.embed_collection import COLUMNS, EmbeddingFolder
from dinorankclip.search.embed_pieces import EmbedPieces
from dinorankclip.types import UserError
from tests.models.model_making import photo, saved, small_model

PART = 4
FILES = ("images.npy", "image_keys.txt", "images.parquet", "texts.npy", "text_keys.txt", "texts.txt", "damaged.tsv")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(saved(tmp_path_factory.mktemp("plain") / "model", small_model(seed=1)))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Ten images, two of them damaged, and captions of six."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(10):
        photo(number, 60, 48).save(folder / f"{number}.jpg")
        if number < 6:
            (folder / f"{number}.txt").write_text(f"scene {number}\nanother caption of {number}\n")
    (folder / "3.jpg").write_bytes((folder / "3.jpg").read_bytes()[:700])
    (folder / "8.jpg").write_bytes(b"no image")
    (folder / "5.txt").write_text("\n")
    return folder


def embed(out: Path, model, images=None, captions=None, half=False, part=PART):
    pieces = EmbedPieces(out, model, images, captions, half, part)
    folder = pieces.lead({"model": "m"})
    if not folder.complete:
        make_pieces(pieces, show=False)
        folder.finish()
    return folder


def read(folder: EmbeddingFolder, kind: str):
    """Rows and columns of a finished folder, as anybody would read them."""
    texts = {name: (folder.folder / file).read_bytes() for name, file in COLUMNS[kind].items()}
    columns = {name: text.decode("utf-8", "surrogateescape").split("\n")[:-1] for name, text in texts.items()}
    return np.load(folder.folder / f"{kind}.npy"), columns


def contents(folder: Path):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_rows_are_the_models_embeddings_in_the_order_of_the_keys(tmp_path, model, photos):
    folder = embed(tmp_path / "out", model, open_images(photos), open_captions(photos))
    rows, columns = read(folder, "images")
    assert columns["key"] == [f"{number}.jpg" for number in (0, 1, 2, 4, 5, 6, 7, 9)]
    expected = model.encode_image(torch.stack([model.preprocess(photos / key) for key in columns["key"]]))
    np.testing.assert_allclose(rows, expected.numpy(), atol=1e-6)
    texts, words = read(folder, "texts")
    assert words["key"] == [f"{number}.jpg" for number in range(5) for _ in range(2)]
    assert words["caption"][:2] == ["scene 0", "another caption of 0"]
    np.testing.assert_allclose(texts, model.encode_text(words["caption"]).numpy(), atol=1e-6)
    assert set(FILES) <= set(contents(tmp_path / "out"))


def test_damaged_items_are_counted_and_named(tmp_path, model, photos):
    folder = embed(tmp_path / "out", model, open_images(photos), open_captions(photos))
    assert folder.damaged == {"truncated": 1, "not-an-image": 1, "empty-caption": 1, "no-caption": 4}
    lines = (tmp_path / "out" / "damaged.tsv").read_text().splitlines()
    assert lines[:3] == ["3.jpg\ttruncated", "8.jpg\tnot-an-image", "5.jpg\tempty-caption"]
    assert folder.manifest["items"] == {"images": 10, "texts": 10}
    assert folder.manifest["rows"] == {"images": 8, "texts": 10}


def test_parquet_holds_the_same(tmp_path, model, photos):
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = embed(tmp_path / "out", model, open_images(photos), open_captions(photos))
    for kind in ("images", "texts"):
        table = parquet.read_table(tmp_path / "out" / f"{kind}.parquet")
        rows, columns = read(folder, kind)
        np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), rows)
        assert {name: table[name].to_pylist() for name in columns} == columns


def test_half_is_the_rounded_whole(tmp_path, model, photos):
    whole, _ = read(embed(tmp_path / "a", model, open_images(photos)), "images")
    half, _ = read(embed(tmp_path / "b", model, open_images(photos), half=True), "images")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, whole.astype(np.float16))


def killed(run, monkeypatch_target, name, countdown):
    """Run in a child process that kills itself at the `countdown`-th call of a function."""
    child = os.fork()
    if child == 0:
        original, left = getattr(monkeypatch_target, name), [countdown]

        def last_call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(monkeypatch_target, name, last_call)
        run()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child was to be killed"


@pytest.mark.parametrize(
    ("where", "name", "countdown"),
    [
        (embed_collection, "write_json", 2),  # a part is on disk, not yet in the manifest
        (embed_collection, "write_json", 6),  # among the captions
        (embed_collection, "one_line", 7),  # some files of a part are longer, others not
        (embed_pieces, "embed_rows", 3),  # between parts
        (embed_collection, "write_parquet", 2),  # while finishing
        (embed_collection, "write_json", 8),  # all but the last word
    ],
)
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path, model, photos, where, name, countdown):
    def run(out=tmp_path / "killed"):
        return embed(out, model, open_images(photos), open_captions(photos))

    killed(run, where, name, countdown)
    assert not json.loads((tmp_path / "killed" / "manifest.json").read_text())["complete"]
    run()
    run(tmp_path / "whole")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_parts_made_in_any_order_give_the_same_bytes(tmp_path, model, photos):
    images, captions = open_images(photos), open_captions(photos)
    embed(tmp_path / "whole", model, images, captions)
    leading, elsewhere = (EmbedPieces(tmp_path / "out", model, images, captions, part=PART) for _ in range(2))
    folder = leading.lead({"model": "m"})
    assert elsewhere.identity == leading.identity and elsewhere.missing() == [0, 1, 2, 3, 4, 5]
    for number in (5, 1, 3):
        elsewhere.make(number, lambda items: None)
        leading.gather()
    assert folder.items("images") == 0 and leading.missing() == elsewhere.missing() == [0, 2, 4]
    leading.make(0, lambda items: None)
    leading.gather()
    assert folder.items("images") == 8 and len(list((tmp_path / "out" / ".parts").iterdir())) == 2
    (damaged,) = (tmp_path / "out" / ".parts").glob("texts-0000000000-*.npz")
    damaged.write_bytes(b"damaged")
    after_a_kill = EmbedPieces(tmp_path / "out", model, images, captions, part=PART)
    folder = after_a_kill.lead({"model": "m"})
    for number in (2, 3, 4):
        after_a_kill.make(number, lambda items: None)
        after_a_kill.gather()
    folder.finish()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not (tmp_path / "out" / ".parts").exists()


def test_parts_of_another_model_are_not_joined(tmp_path, model, photos):
    """Whoever empties a folder leaves its hidden files there."""
    images, others = open_images(photos), load_model(saved(tmp_path / "other", small_model(seed=2)))
    left = EmbedPieces(tmp_path / "out", others, images, None, part=PART)
    left.lead({"model": "other"})
    left.make(1, lambda items: None)
    for path in (tmp_path / "out").glob("[!.]*"):
        path.unlink()
    embed(tmp_path / "out", model, images)
    embed(tmp_path / "whole", model, images)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_finished_parts_are_not_computed_again(tmp_path, model, photos):
    images = open_images(photos)
    plan = embed_collection.plan_of(model, images, None, PART)
    begun = EmbeddingFolder(tmp_path / "out", plan, {}, model.dim, False)
    marked = np.full((4, model.dim), 7, np.float32)
    begun.append("images", 4, marked, {"key": list("abcd")}, [])
    assert np.load(tmp_path / "out" / "images.npy").shape == (0, model.dim)  # nobody takes it for complete
    rows, columns = read(embed(tmp_path / "out", model, images), "images")
    assert columns["key"] == ["a", "b", "c", "d", "4.jpg", "5.jpg", "6.jpg", "7.jpg", "9.jpg"]
    np.testing.assert_array_equal(rows[:4], marked)


def test_the_second_call_finds_it_complete(tmp_path, model, photos, monkeypatch):
    embed(tmp_path / "out", model, open_images(photos))
    before = contents(tmp_path / "out")
    monkeypatch.setattr(embed_pieces, "embed_rows", None)  # would fail if it were called
    assert embed(tmp_path / "out", model, open_images(photos)).rows("images") == 8
    assert contents(tmp_path / "out") == before


def test_another_model_or_other_data_are_refused_with_the_difference(tmp_path, model, photos):
    images = open_images(photos)
    embed(tmp_path / "out", model, images)
    other = load_model(saved(tmp_path / "other", small_model(seed=2)))
    with pytest.raises(UserError, match=f"the model: {model.identity} → {other.identity}"):
        embed(tmp_path / "out", other, images)
    (tmp_path / "list.txt").write_text(f"{photos}/0.jpg\n")
    with pytest.raises(UserError, match=r"the images: 10 items, .* → 1 items"):
        embed(tmp_path / "out", model, open_images(tmp_path / "list.txt"))
    with pytest.raises(UserError, match="the numbers: float32 → float16"):
        embed(tmp_path / "out", model, images, half=True)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="not empty and holds no embeddings"):
        embed(tmp_path / "foreign", model, images)


def test_other_bounds_on_pixels_are_other_embeddings(tmp_path, model, photos):
    images = open_images(photos)
    default, lower = (embed_collection.plan_of(model, images, None, max_pixels=most) for most in (50_000_000, 100))
    assert lower == default | {"--reading.max-pixels": 100}
    assert embed_collection.plan_of(model, None, open_captions(photos), max_pixels=100).keys() == default.keys()


@pytest.mark.parametrize("missing", ["images", "captions"])
def test_what_cannot_be_read_now_stops_the_run_and_is_not_kept(tmp_path, model, photos, monkeypatch, missing):
    def away(path, missing):
        raise Damage("unreadable", "input/output error") if path.stem == "5" else Damage(missing)

    sources = {missing: (open_images if missing == "images" else open_captions)(photos)}
    with monkeypatch.context() as patched, pytest.raises(UserError, match=r"1 of the files .*first is 5\.jpg"):
        patched.setattr("dinorankclip.data.folders_and_tables.read_file", away)
        embed(tmp_path / "out", model, **sources)
    assert "unreadable" not in embed(tmp_path / "out", model, **sources).damaged


def test_a_finished_folder_that_lost_something_is_noticed(tmp_path, model, photos):
    embed(tmp_path / "out", model, open_images(photos))
    os.truncate(tmp_path / "out" / "images.npy", 500)
    with pytest.raises(UserError, match=r"images\.npy has 500 bytes instead of"):
        embed(tmp_path / "out", model, open_images(photos))
    (tmp_path / "out" / "images.npy").unlink()
    with pytest.raises(UserError, match=r"images\.npy is missing"):
        embed(tmp_path / "out", model, open_images(photos))
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="no manifest"):
        embed(tmp_path / "out", model, open_images(photos))


def test_odd_keys_stay_on_their_lines(tmp_path, model):
    names = ["a b.jpg", "ü'\"<b>.jpg", "line\nbreak.jpg", "tab\t.jpg"]
    for number, name in enumerate(names):
        photo(number, 40, 40).save(tmp_path / name)
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_bytes((tmp_path / names[0]).read_bytes())
    folder = embed(tmp_path / "out", model, open_images(tmp_path))
    rows, columns = read(folder, "images")
    assert sorted(columns["key"]) == sorted(
        ["a b.jpg", "ü'\"<b>.jpg", "line\\nbreak.jpg", "tab\\t.jpg", os.fsdecode(b"\xff.jpg")]
    )
    assert len(rows) == 5


def test_without_pyarrow_there_are_the_numpy_files(tmp_path, model, photos, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    pieces = EmbedPieces(tmp_path / "out", model, open_images(photos), None)
    folder = pieces.lead({})
    make_pieces(pieces, show=False)
    assert folder.finish() is False
    assert sorted(contents(tmp_path / "out")) == ["damaged.tsv", "image_keys.txt", "images.npy", "manifest.json"]
    assert embed_collection.write_parquet(tmp_path / "x", tmp_path / "out" / "images.npy", {}) is False


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("name", ["images.npy", "image_keys.txt", "manifest.json"])
def test_a_flipped_bit_is_refused(model, photos, tmp_path, name, complete):
    images = open_images(str(photos))
    folder = embed(tmp_path / "out", model, images)
    if not complete:
        folder.manifest["complete"] = False
        folder._commit()
    embed(tmp_path / "out", model, images)
    if not complete:
        folder._commit()
    path = tmp_path / "out" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=name):
        embed(tmp_path / "out", model, images)
