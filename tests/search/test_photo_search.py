"""Search in a folder of photos: right order, an index that follows the folder, no more loaded than needed."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from dinorankclip.data.damage import Damage
from dinorankclip.data.open_data import ImageFiles
from dinorankclip.models.loaded import load_model
from dinorankclip.search import index, photo_search
from dinorankclip.search.index import HIDDEN, PhotoIndex, index_folder
from dinorankclip.search.photo_search import PhotoSearch
from dinorankclip.types import UserError
from tests.models.model_making import photo, saved, small_model
from tests.systems import POSIX


class Counted:
    """A model that counts what it is shown."""

    def __init__(self, model):
        self.model, self.images, self.loads = model, 0, 0

    def load(self):
        self.loads += 1
        return self

    def encode_image(self, images):
        self.images += len(images)
        return self.model.encode_image(images)

    def __getattr__(self, name):
        return getattr(self.model, name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("plain") / "model", small_model(seed=1))


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(folder)


@pytest.fixture
def model(loaded):
    return Counted(loaded)


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    for number in range(5):
        photo(number, 60, 48).save(tmp_path / "photos" / ("sub" if number > 2 else ".") / f"{number}.jpg")
    return tmp_path / "photos"


def search(photos, folder, model, notes=None):
    say = notes.append if notes is not None else lambda text: None
    return PhotoSearch(str(folder), photos, model.load, say)


def names(found):
    return [hit.path.name for hit in found.hits]


def test_photos_come_in_the_order_of_their_cosines(photos, folder, model, loaded):
    finder = search(photos, folder, model)
    found = finder.by_words("a red mug", 3)
    paths = sorted(photos.rglob("*.jpg"))
    rows = loaded.encode_image(torch.stack([loaded.preprocess(path) for path in paths]))
    cosines = (rows @ loaded.encode_text(["a red mug"])[0]).numpy()
    order = np.argsort(-cosines)[:3]
    assert [hit.path for hit in found.hits] == [paths[place] for place in order]
    np.testing.assert_allclose([hit.score for hit in found.hits], cosines[order], atol=1e-6)
    assert found.query == "a red mug" and len(finder.by_words("x", 99).hits) == 5


def test_a_photo_finds_itself_first_wherever_it_lies(photos, folder, model, tmp_path):
    finder = search(photos, folder, model)
    before = model.images
    found = finder.by_photo(photos / "sub" / "3.jpg", 2)
    assert found.hits[0].path == photos / "sub" / "3.jpg" and found.hits[0].score == pytest.approx(1, abs=1e-5)
    assert model.images == before, "its row was in the index"
    copy = tmp_path / "copy.jpg"
    copy.write_bytes((photos / "sub" / "3.jpg").read_bytes())
    assert names(finder.by_photo(copy, 2)) == names(found) and model.images == before + 1
    finder.by_photo(copy, 2)
    assert model.images == before + 1, "asked again, it was remembered"
    for path in (tmp_path / "none.jpg", folder / "model.json"):
        with pytest.raises(UserError, match=f"{path} cannot be searched with: "):
            finder.by_photo(path, 1)


def test_only_what_changed_is_embedded_again(photos, folder, model):
    search(photos, folder, model)
    assert model.images == 5

    def looked_at():
        before = model.images
        index = search(photos, folder, model).index
        return model.images - before, index.names

    assert looked_at() == (0, ["0.jpg", "1.jpg", "2.jpg", "sub/3.jpg", "sub/4.jpg"])
    photo(7, 60, 48).save(photos / "new.jpg")  # added
    assert looked_at() == (1, ["0.jpg", "1.jpg", "2.jpg", "new.jpg", "sub/3.jpg", "sub/4.jpg"])
    photo(8, 60, 48).save(photos / "0.jpg")  # changed
    os.utime(photos / "1.jpg", ns=(0, 12345))  # touched
    assert looked_at()[0] == 2
    (photos / "2.jpg").unlink()  # removed
    (photos / "sub" / "3.jpg").rename(photos / "3.jpg")  # moved
    assert looked_at() == (1, ["0.jpg", "1.jpg", "3.jpg", "new.jpg", "sub/4.jpg"])
    assert looked_at()[0] == 0


def test_rows_follow_their_photos(photos, folder, model, loaded):
    search(photos, folder, model)
    photo(8, 60, 48).save(photos / "0.jpg")
    photo(9, 60, 48).save(photos / "00.jpg")
    index = search(photos, folder, model).index
    for name in index.names:
        expected = loaded.encode_image(loaded.preprocess(photos / name)[None])[0].numpy()
        np.testing.assert_allclose(index.row_of(name), expected, atol=1e-6)
    assert index.row_of("nobody.jpg") is None


def test_damaged_photos_are_named_left_out_and_not_tried_again(photos, folder, model):
    (photos / "1.jpg").write_bytes((photos / "1.jpg").read_bytes()[:500])
    (photos / "9.png").write_bytes(b"")
    for _ in range(2):
        finder = search(photos, folder, model)
        assert finder.damaged.keys == {"1.jpg": "truncated", "9.png": "empty-image"}
        assert sorted(names(finder.by_words("a boat", 99))) == ["0.jpg", "2.jpg", "3.jpg", "4.jpg"]
        with pytest.raises(UserError, match=r"1\.jpg cannot be searched with: .*ends too early"):
            finder.by_photo(photos / "1.jpg", 1)
    assert model.images == 4
    photo(1, 60, 48).save(photos / "1.jpg")  # mended
    assert search(photos, folder, model).damaged.keys == {"9.png": "empty-image"}


def test_a_photo_that_could_not_be_read_is_tried_again(photos, folder, model, monkeypatch):
    whole = ImageFiles.image

    def away(self, index):
        if self.key(index) == "1.jpg":
            raise Damage("unreadable", "input/output error")
        return whole(self, index)

    monkeypatch.setattr(ImageFiles, "image", away)
    assert search(photos, folder, model).damaged.keys == {"1.jpg": "unreadable"}
    monkeypatch.setattr(ImageFiles, "image", whole)
    finder = search(photos, folder, model)
    assert finder.damaged.keys == {} and "1.jpg" in names(finder.by_words("a boat", 99))
    assert model.images == 5  # the others were not looked at again


def test_a_folder_without_a_usable_photo_is_an_error(tmp_path, folder, model):
    (tmp_path / "none").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jpg").write_bytes(b"x")
    for where, words in (("none", "no images in"), ("gone", "does not exist"), ("bad", "none of the photos")):
        with pytest.raises(UserError, match=words):
            search(tmp_path / where, folder, model)
    with pytest.raises(UserError, match="is a file"):
        search(tmp_path / "bad" / "a.jpg", folder, model)
    assert model.loads == 1, "only the folder with a file in it was worth loading a model for"


def test_a_damaged_index_is_made_anew_with_a_note(photos, folder, model, loaded):
    expected = search(photos, folder, model).index
    path = photos / HIDDEN / f"{loaded.identity}.npz"
    whole = path.read_bytes()
    middle = len(whole) // 2
    for broken in (whole[:middle], whole[:middle] + b"\xff\x00" + whole[middle + 2 :], b"", b"not a zip"):
        path.write_bytes(broken)
        notes: list[str] = []
        index = search(photos, folder, model, notes).index
        assert len(notes) == 1 and "damaged" in notes[0]
        np.testing.assert_array_equal(index.rows, expected.rows)
    path.with_suffix(".queries.npz").write_bytes(b"rubbish")
    (photos / HIDDEN / "models.json").write_text("rubbish")
    assert len(search(photos, folder, model).by_words("a boat", 9).hits) == 5


def test_an_interrupted_indexing_keeps_what_it_has(photos, folder, model, monkeypatch):
    monkeypatch.setattr(index, "PIECE", 2)
    monkeypatch.setattr(index, "SAVE_EVERY", 0.0)

    def fails_at_last(images, original=model.encode_image):
        if model.images >= 4:
            raise KeyboardInterrupt
        return original(images)

    model.encode_image = fails_at_last
    with pytest.raises(KeyboardInterrupt):
        search(photos, folder, model)
    del model.encode_image
    search(photos, folder, model)
    assert model.images == 5, "four before the interruption, one after it"


def test_each_model_has_its_own_index_and_old_ones_go(photos, folder, model, loaded, tmp_path):
    search(photos, folder, model)
    other = saved(tmp_path / "other", small_model(seed=2))
    second = Counted(load_model(other))
    answers = [search(photos, *which).by_words("a boat", 5).hits for which in ((other, second), (folder, model))]
    assert answers[0] != answers[1]
    assert (model.images, second.images) == (5, 5)
    for number in range(index.KEPT_MODELS):
        PhotoIndex().save(photos / HIDDEN / f"{number}.npz")
    kept = sorted(path.name for path in (photos / HIDDEN).glob("*.npz"))
    assert kept == [f"{number}.npz" for number in range(index.KEPT_MODELS)]


def test_the_index_goes_elsewhere_if_the_photos_cannot_be_written(photos, tmp_path, monkeypatch):
    assert index_folder(photos) == photos / HIDDEN
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert index_folder(photos).parent == index.ELSEWHERE
    assert index_folder(photos) != index_folder(tmp_path)


def test_a_disk_that_takes_nothing_still_answers(photos, folder, model, monkeypatch):
    def full(path, **arrays):
        raise OSError("no space left on device")

    monkeypatch.setattr(index, "save_arrays", full)
    notes: list[str] = []
    assert len(search(photos, folder, model, notes).by_words("a boat", 9).hits) == 5
    assert len(notes) == 1 and "no space left" in notes[0]


def test_the_model_is_loaded_only_when_it_must_be(photos, folder, model, tmp_path):
    search(photos, folder, model).by_words("a boat", 1)
    assert model.loads == 1
    again = search(photos, folder, model)
    again.by_words("a boat", 9)
    again.by_words("a new query", 9)
    assert model.loads == 1, "index, remembered query and NumPy were enough"
    (tmp_path / "x.jpg").write_bytes((photos / "0.jpg").read_bytes())
    again.by_photo(tmp_path / "x.jpg", 1)
    assert model.loads == 2


def test_quick_and_full_answers_agree(photos, folder, model):
    first = search(photos, folder, model).by_words("two dogs in the snow", 5)
    for memo in (photos / HIDDEN).glob("*.queries.npz"):
        memo.unlink()
    second = search(photos, folder, model).by_words("two dogs in the snow", 5)
    assert model.loads == 1 and names(first) == names(second)
    np.testing.assert_allclose([hit.score for hit in first.hits], [hit.score for hit in second.hits], atol=1e-5)


@POSIX
def test_a_model_that_was_trained_on_is_another_model(photos, tmp_path):
    run = tmp_path / "run"
    saved(run / "checkpoints" / "step-1", small_model(seed=1))
    saved(run / "checkpoints" / "step-2", small_model(seed=2))
    (run / "checkpoints" / "last").symlink_to("step-1")
    before = photo_search.stamp(str(run))
    assert before == photo_search.stamp(str(run))
    first = search(photos, run, Counted(load_model(run))).by_words("a boat", 5)
    (run / "checkpoints" / "last").unlink()
    (run / "checkpoints" / "last").symlink_to("step-2")
    assert photo_search.stamp(str(run)) != before
    second = search(photos, run, Counted(load_model(run))).by_words("a boat", 5)
    assert [hit.score for hit in first.hits] != [hit.score for hit in second.hits]


def test_a_model_that_changed_while_it_was_loaded_keeps_no_rows_under_the_old_name(photos, folder, model, tmp_path):
    search(photos, folder, model)
    photo(9, 60, 48).save(photos / "9.jpg")
    newer = Counted(load_model(saved(tmp_path / "newer", small_model(seed=2))))
    finder = search(photos, folder, newer)
    assert newer.images == 6  # all of them, and not only the one that is new
    kept = {path.name for path in index_folder(photos).glob("*.npz")}
    assert kept == {f"{identity}.npz" for identity in (model.identity, newer.identity)}
    assert len(PhotoIndex.load(index_folder(photos) / f"{model.identity}.npz").names) == 5
    assert len(finder.index.names) == 6


def test_what_is_not_on_disk_is_never_taken_for_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert photo_search.stamp("open_clip:ViT-B-32") is None
    (tmp_path / "w.pt").write_bytes(b"1")
    assert photo_search.stamp(f"open_clip:ViT-B-32:{tmp_path}/w.pt") is not None


def test_empty_queries_are_refused_and_odd_ones_answered(photos, folder, model):
    finder = search(photos, folder, model)
    with pytest.raises(UserError, match="empty query"):
        finder.by_words("  ", 3)
    for query in ("<script>alert(1)</script>", "ü 日本 😀", os.fsdecode(b"caf\xe9"), "word " * 500):
        assert len(finder.by_words(query, 3).hits) == 3


def test_a_fresh_index_is_searched_without_torch(photos, folder, model):
    """In a process of its own: neither torch nor open_clip may be imported for a new query in words."""
    search(photos, folder, model)
    words = ["search", str(folder), "--images", str(photos), "--html", str(photos / "found.html"), "a new mug"]
    program = (
        f"import sys; from dinorankclip.commands.entry import main; main({words!r})\n"
        "assert not {'torch', 'open_clip', 'torchvision', 'timm'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == '"a new mug"' and len(done.stdout.splitlines()) == 7
