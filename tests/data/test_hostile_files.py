"""Files that are no regular files, or too large, are damage: nothing waits and no memory is filled."""

import os

import pytest
from PIL import Image

from dinorankclip.config import FindingSettings, ReadingSettings
from dinorankclip.data import loader
from dinorankclip.data.damage import CAUSES, Damage
from dinorankclip.data.folders_and_tables import FolderSource, TableSource
from dinorankclip.data.open_data import open_images, open_pairs
from dinorankclip.data.second_captions import _of_file
from dinorankclip.data.tar_shards import CAUSE_LIST
from dinorankclip.types import UserError
from tests.systems import LINUX, POSIX


@pytest.fixture
def photos(tmp_path):
    for name in "abcd":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.jpg")
        (tmp_path / f"{name}.txt").write_text("a mug")
    return tmp_path


def replaced_by_fifo(path):
    path.unlink()
    os.mkfifo(path)


def causes(source):
    results = []
    for index in range(len(source)):
        try:
            source.read(index)
            results.append(None)
        except Damage as damage:
            results.append(damage.cause)
    return results


@LINUX
def test_fifos_and_devices_in_a_folder(photos):
    replaced_by_fifo(photos / "a.jpg")
    replaced_by_fifo(photos / "b.txt")
    (photos / "c.jpg").unlink()
    (photos / "c.jpg").symlink_to("/dev/zero")
    assert causes(FolderSource(photos)) == ["missing-image", "no-caption", "missing-image", None]


def test_too_large(photos, monkeypatch):
    monkeypatch.setattr("dinorankclip.data.folders_and_tables.CAPTION_BYTES", 3)
    monkeypatch.setattr("dinorankclip.data.folders_and_tables.IMAGE_BYTES", (photos / "b.jpg").stat().st_size)
    (photos / "a.jpg").write_bytes((photos / "a.jpg").read_bytes() + b"x")
    for name in "acd":
        (photos / f"{name}.txt").write_text("mug")
    assert causes(FolderSource(photos)) == ["too-large", "too-large", None, None]


@POSIX
def test_tables_and_lists(photos):
    (photos / "pairs.csv").write_text("image,caption\na.jpg,a mug\nfifo.jpg,a mug\n")
    os.mkfifo(photos / "fifo.jpg")
    assert causes(TableSource(photos / "pairs.csv", FindingSettings())) == [None, "missing-image"]
    for name in ("fifo.csv", "fifo.parquet", "fifo.tar"):
        os.mkfifo(photos / name)
        with pytest.raises(UserError):
            open_pairs(photos / name)
    os.mkfifo(photos / "fifo.txt")
    with pytest.raises(UserError):
        open_images(photos / "fifo.txt")


def test_causes_keep_their_places():
    """Stored indexes and rows hold places of causes: new ones come last."""
    assert list(CAUSES) == CAUSE_LIST and CAUSE_LIST[-2:] == ["no-second-caption", "too-large"]
    assert CAUSE_LIST.index("no-caption") == 6 and CAUSE_LIST.index("unreadable") == 10


@POSIX
def test_workers_need_open_files(monkeypatch):
    resource = pytest.importorskip("resource")
    limits, wanted = [20, 20], []
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: wanted.append(both))
    with pytest.raises(
        UserError, match=r"only 20 files .* 2 reading processes need 64: raise the limit \(ulimit -n 1024"
    ):
        next(loader.run_workers([1], [0], ReadingSettings(workers=2)))
    loader._demand_open_files(0)
    limits[1] = 4096
    loader._demand_open_files(2)
    assert wanted == [(64, 4096)]


def test_second_captions_of_keys_that_are_no_text(tmp_path):
    (tmp_path / "second.jsonl").write_text('{"key": "\\ud800", "caption": "a mug"}\n')
    with pytest.raises(UserError, match=r"second\.jsonl, line 1: expected"):
        _of_file(tmp_path / "second.jsonl")


def test_damaged_parquet_is_refused_in_words(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "pairs.parquet"
    parquet.write_table(arrow.table({"image": ["a.jpg"] * 9, "caption": ["café"] * 9}), path, use_dictionary=False)
    whole = path.read_bytes()
    path.write_bytes(whole.replace("café".encode(), b"caf\xe7\xe7"))
    with pytest.raises(UserError, match=r"is damaged|none of the"):
        TableSource(path, FindingSettings())
