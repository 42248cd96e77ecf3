"""Shards, tables, folders: what is found, in which order, and what a mistake is reported."""

import io
import os
import tarfile

import pytest
from pair_making import damaged_members, good_members, jpeg, write_set, write_tar

from dinorankclip import io as files
from dinorankclip.config import ReadingSettings
from dinorankclip.data import tar_shards
from dinorankclip.data.benchmark_sets import find_sets
from dinorankclip.data.damage import Damage
from dinorankclip.data.folders_and_tables import FolderSource, TableSource
from dinorankclip.data.open_data import open_captions, open_images, open_pairs, splits_of
from dinorankclip.data.splits import SplitPart, carve
from dinorankclip.data.tar_shards import ShardSource
from dinorankclip.types import UserError
from tests.systems import LINUX, POSIX


def cause_of(source, index):
    try:
        source.read(index)
    except Damage as damage:
        return damage.cause
    return None


# --- shards


def test_clip_benchmark_folder(tmp_path):
    write_set(tmp_path / "set", count=12, shards=3)
    source = open_pairs(tmp_path / "set" / "train", split="all")
    assert len(source) == 12
    assert [source.key(i) for i in (0, 11)] == ["k00000", "k00011"]
    sample = source.read(5)
    assert sample.image == jpeg(5)
    assert sample.captions == ("caption 0 of picture 5", "caption 1 of picture 5") == source.captions(5)


def test_shards_come_in_numeric_order(tmp_path):
    for shard in (10, 9, 1):
        write_tar(tmp_path / f"{shard}.tar", good_members(1, first=shard))
    assert [shards_of.name for shards_of in tar_shards.shards_of_folder(tmp_path)] == ["1.tar", "9.tar", "10.tar"]


def test_braces_globs_and_lists(tmp_path):
    for shard in range(3):
        write_tar(tmp_path / f"s-{shard:02d}.tar", good_members(4, first=4 * shard))
    for where in ("s-{00..02}.tar", "s-*.tar", f"s-{{00..01}}.tar::{tmp_path}/s-02.tar"):
        assert len(open_pairs(f"{tmp_path}/{where}", split="all")) == 12
    with pytest.raises(UserError, match=r"1 shards do not exist: .*s-03[^\0]*--data"):
        open_pairs(f"{tmp_path}/s-{{00..03}}.tar", split="all")
    with pytest.raises(UserError, match="no file matches"):
        open_pairs(f"{tmp_path}/q-*.tar", split="all")


def test_what_cannot_be_expanded_is_quoted():
    with pytest.raises(UserError, match=r"'cc3m/\{0000..0331.tar': a brace is not closed"):
        open_pairs("cc3m/{0000..0331.tar", split="all")
    with pytest.raises(UserError, match=r"-H \$\{TOKEN\} .*environment variable WDS_NAME"):
        open_pairs("pipe:curl -H ${TOKEN} x.tar", ReadingSettings(epoch_samples=9), "all")


def test_a_list_may_be_longer_than_a_path(tmp_path):
    write_set(tmp_path, 4, 2)
    where = "::".join([f"{tmp_path}/train/0.tar", f"{tmp_path}/train/1.tar"] * 100)
    assert len(where) > 4096 and len(open_pairs(where, split="all")) == 400
    assert len(open_images(where)) == len(open_captions(where)) == 400
    assert [place.where for place in find_sets(where)] == [where]


def test_hidden_files_are_no_data(tmp_path):
    write_tar(tmp_path / "tars" / "0.tar", good_members(3))
    (tmp_path / "tars" / "._0.tar").write_bytes(b"Mac OS X")
    assert len(open_pairs(tmp_path / "tars", split="all")) == 3
    photos(tmp_path / "tables")
    (tmp_path / "tables" / "pairs.csv").write_text("image,caption\nimg/0.jpg,a\n")
    (tmp_path / "tables" / "._pairs.csv").write_bytes(b"Mac OS X")
    assert open_pairs(tmp_path / "tables", split="all").captions(0) == ("a",)


def test_json_captions_and_other_members(tmp_path):
    members = [
        ("a/x.jpg", jpeg(0)), ("a/x.json", b'{"caption": "from json", "width": 3}'), ("a/x.npy", b"123"),
        ("y.jpg", jpeg(1)), ("y.json", b'{"captions": ["one", "two"]}'), ("y.txt", b"\xef\xbb\xbfpreferred\r\n"),
        ("z.JPG", jpeg(2)), ("z.json", b'{"captions": ["one", "two"]}'), ("._z.jpg", b"mac"), ("README", b"?"),
    ]  # fmt: skip
    source = ShardSource([write_tar(tmp_path / "a.tar", members)])
    assert [source.key(i) for i in range(len(source))] == ["a/x", "y", "z"]
    assert [source.captions(i) for i in range(3)] == [("from json",), ("preferred",), ("one", "two")]


def test_damaged_members_keep_their_place(tmp_path):
    source = ShardSource([write_tar(tmp_path / "a.tar", [*damaged_members(1), *good_members(1)])])
    known = {source.key(i): cause_of(source, i) for i in range(len(source))}
    assert known["bad-missing-image-0"] == "missing-image"
    assert known["bad-no-caption-0"] == "no-caption"
    assert known["bad-not-utf8-0"] == "not-utf8"
    assert known["bad-empty-caption-0"] == "empty-caption"
    assert known["bad-bad-json-0"] == "bad-json"
    assert known["k00000"] is None


def test_a_truncated_tar_yields_its_good_members(tmp_path):
    path = write_tar(tmp_path / "a.tar", good_members(10, captions=1))
    with tarfile.open(path) as tar:
        last_image = tar.getmembers()[14]
    with open(path, "r+b") as file:
        file.truncate(last_image.offset_data + 10)
    source = ShardSource([path])
    assert [cause_of(source, i) for i in range(len(source))] == [None] * 7 + ["truncated"]


def test_a_damaged_stretch_is_skipped(tmp_path):
    path = write_tar(tmp_path / "a.tar", good_members(10, captions=1))
    with tarfile.open(path) as tar:
        header = tar.getmembers()[8].offset
    with open(path, "r+b") as file:
        file.seek(header)
        file.write(b"\x55" * 512)
    source = ShardSource([path])
    causes = {source.key(i): cause_of(source, i) for i in range(len(source))}
    assert sum(cause is None for cause in causes.values()) == 9
    assert causes[f"a.tar@{header}"] == "corrupt"
    assert causes["k00004"] == "missing-image"


@pytest.mark.parametrize("content", [b"", b"<html>not a tar</html>" * 100])
def test_a_file_that_is_no_tar_is_counted(tmp_path, content):
    (tmp_path / "1.tar").write_bytes(content)
    source = ShardSource([write_tar(tmp_path / "0.tar", good_members(2)), tmp_path / "1.tar"])
    assert cause_of(source, 2) in ("truncated", "corrupt")
    assert cause_of(source, 1) is None


def test_compressed_tars_are_explained(tmp_path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    (tmp_path / "0.tar").write_bytes(data.getvalue())
    with pytest.raises(UserError, match="compressed"):
        ShardSource([tmp_path / "0.tar"])


def test_a_classification_set_is_explained(tmp_path):
    write_tar(tmp_path / "0.tar", [("a.jpg", jpeg(0)), ("a.cls", b"3")])
    with pytest.raises(UserError, match="no captions"):
        open_pairs(tmp_path, split="all")


def test_keys_that_repeat_in_other_shards_get_the_shard_in_front(tmp_path):
    paths = [write_tar(tmp_path / f"{n}.tar", good_members(2)) for n in range(2)]
    source = ShardSource(paths)
    assert [source.key(i) for i in range(4)] == ["0/k00000", "0/k00001", "1/k00000", "1/k00001"]


def test_the_index_is_kept_and_follows_changes(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "0.tar", good_members(2))
    first = ShardSource([path])
    with monkeypatch.context() as patch:
        patch.setattr(tar_shards, "index_shard", lambda path: pytest.fail("indexed again"))
        assert ShardSource([path]).fingerprint == first.fingerprint
    write_tar(path, good_members(3, first=7))
    os.utime(path, ns=(1, 1))
    second = ShardSource([path])
    assert len(second) == 3 and second.fingerprint != first.fingerprint
    assert second.read(0).image == jpeg(7)


def test_a_kept_table_that_was_cut_off_is_made_anew(tmp_path):
    path = write_tar(tmp_path / "0.tar", good_members(2))
    ShardSource([path])
    (table,) = files.INDEX_FOLDER.glob("*.npz")
    table.write_bytes(table.read_bytes()[:100])
    assert len(ShardSource([path])) == 2


def test_reading_works_where_nothing_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(files, "INDEX_FOLDER", tmp_path / "file" / "index")
    assert len(ShardSource([write_tar(tmp_path / "0.tar", good_members(2))])) == 2


@LINUX
def test_many_shards_need_few_open_files(tmp_path):
    source = ShardSource([write_tar(tmp_path / f"{n}.tar", good_members(1, first=n)) for n in range(200)])
    tar_shards._handle.cache_clear()
    before = len(os.listdir("/proc/self/fd"))
    for index in range(200):
        source.read(index)
    assert len(os.listdir("/proc/self/fd")) - before <= 64


# --- tables


def photos(folder, count=6):
    (folder / "img").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / "img" / f"{number}.jpg").write_bytes(jpeg(number))


def test_csv_with_bom_quoted_newlines_and_several_captions(tmp_path):
    photos(tmp_path)
    text = '\ufeffimage,caption,sku\nimg/0.jpg,"two\nlines, ""quoted""",a\nimg/1.jpg,plain,b\nimg/0.jpg,again,a\n\n'
    (tmp_path / "pairs.csv").write_text(text, encoding="utf-8")
    source = TableSource(tmp_path / "pairs.csv", ReadingSettings(group_column="sku"))
    assert len(source) == 2
    assert source.captions(0) == ('two\nlines, "quoted"', "again")
    assert source.read(1).image == jpeg(1)
    assert source.group(0) == "a"


@pytest.mark.parametrize(("name", "delimiter"), [("a.tsv", "\t"), ("a.csv", ";"), ("a.csv", "\t")])
def test_other_delimiters(tmp_path, name, delimiter):
    photos(tmp_path)
    (tmp_path / name).write_text(delimiter.join(("caption", "image")) + f"\nred, blue{delimiter}img/0.jpg\n")
    assert TableSource(tmp_path / name).captions(0) == ("red, blue",)


def test_damaged_rows(tmp_path):
    photos(tmp_path)
    rows = [b"image,caption", b"img/0.jpg,good", b"img/1.jpg,caf\xe9", b"img/nowhere.jpg,lost", b"img/2.jpg,",
            b",alone", b"img/3.jpg", b"img,a folder"]  # fmt: skip
    (tmp_path / "a.csv").write_bytes(b"\n".join(rows))
    source = TableSource(tmp_path / "a.csv")
    assert [cause_of(source, i) for i in range(len(source))] == [
        None, "not-utf8", "missing-image", "empty-caption", "missing-image", "empty-caption", "missing-image",
    ]  # fmt: skip


def test_a_missing_column_names_the_nearest(tmp_path):
    (tmp_path / "a.csv").write_text("Image,Captions,price\nx.jpg,red,3\n")
    with pytest.raises(UserError, match=r"no column 'image'.*'Image', 'Captions', 'price'.*-column 'Image'"):
        TableSource(tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"--reading.caption-column 'Captions'"):
        TableSource(tmp_path / "a.csv", ReadingSettings(image_column="Image"))
    (tmp_path / "b.csv").write_text("image,caption\n")
    for nothing in ("", "\n\n"):
        (tmp_path / "nothing.csv").write_text(nothing)
        with pytest.raises(UserError, match=r"nothing\.csv is empty"):
            TableSource(tmp_path / "nothing.csv")
    with pytest.raises(UserError, match="no rows"):
        TableSource(tmp_path / "b.csv")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    photos(tmp_path)
    table = pyarrow.table({"path": ["img/0.jpg", "img/1.jpg", "img/0.jpg"], "title": ["a", None, "b"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    reading = ReadingSettings(image_column="path", caption_column="title")
    source = open_pairs(tmp_path / "a.parquet", reading, "all")
    assert source.captions(0) == ("a", "b")
    assert cause_of(source, 1) == "empty-caption"
    with pytest.raises(UserError, match="no column 'image'"):
        open_pairs(tmp_path / "a.parquet", split="all")
    (tmp_path / "b.parquet").write_text("no")
    with pytest.raises(UserError, match="Parquet"):
        open_pairs(tmp_path / "b.parquet", split="all")


def test_a_list_of_captions_in_parquet_is_several_captions(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    photos(tmp_path)
    captions = [["a dog", "a pup"], ["a cat", None], [], ["nobody", "knows"], ["more"]]
    images = ["img/0.jpg", "img/1.jpg", "img/2.jpg", None, "img/0.jpg"]
    table = pyarrow.table({"image": images, "caption": captions, "size": [1, 2, 3, 4, 5]})
    parquet.write_table(table, tmp_path / "a.parquet")
    source = open_pairs(tmp_path / "a.parquet", split="all")
    assert [source.key(index) for index in range(len(source))] == [*images[:3], "row 4 (no image)"]
    assert source.captions(0) == ("a dog", "a pup", "more") and source.captions(1) == ("a cat",)
    assert cause_of(source, 2) == "empty-caption" and cause_of(source, 3) == "missing-image"
    assert TableSource(tmp_path / "a.parquet", ReadingSettings(caption_column="size")).captions(1) == ("2",)


def test_parquet_columns_that_are_no_text_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    struct = [{"en": "a dog"}]
    columns = {"path": ["a.jpg"], "paths": [["a.jpg"]], "image": [b"bytes"], "caption": struct, "lists": [[b"bytes"]]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    for image, caption, message in (
        ("path", "caption", r"'caption' holds struct<en: string>, and text was expected \(--reading.caption-column\)"),
        ("path", "lists", "'lists' holds list<.*: binary>"),
        ("image", "path", "'image' holds binary, and paths of image files"),
        ("paths", "path", "'paths' holds list<.*: string>"),
    ):
        with pytest.raises(UserError, match=message):
            TableSource(tmp_path / "a.parquet", ReadingSettings(image_column=image, caption_column=caption))


OPEN = '"Hello, said the cat'


def test_a_quotation_mark_that_is_not_closed_swallows_nothing(tmp_path):
    photos(tmp_path)
    rows = [("img/0.jpg", "one"), ("img/1.jpg", OPEN), ("img/2.jpg", "three"), ("img/0.jpg", 'a "small" one')]
    (tmp_path / "a.tsv").write_text("image\tcaption\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
    source = TableSource(tmp_path / "a.tsv")
    assert len(source) == 3 and source.captions(1) == (OPEN,)
    (tmp_path / "a.csv").write_text("image,caption\n" + "".join(f"{a},{b}\n" for a, b in rows))
    with pytest.raises(UserError, match=r"a\.csv, line 3: a cell begins with a quotation mark that is not closed"):
        TableSource(tmp_path / "a.csv")
    closed_late = 'image,caption\nimg/0.jpg,"Hello\nimg/1.jpg,two\nimg/2.jpg,"three" it said\n'
    (tmp_path / "b.csv").write_text(closed_late)
    with pytest.raises(UserError, match="line 2: a cell begins"):
        TableSource(tmp_path / "b.csv")
    ends_a_line = f'image,caption\nimg/0.jpg,{OPEN}\nimg/1.jpg,a dog\nimg/2.jpg,a TV of 32"\n'
    (tmp_path / "d.csv").write_text(ends_a_line)
    with pytest.raises(UserError, match="line 2: a cell begins"):
        TableSource(tmp_path / "d.csv")
    (tmp_path / "d.tsv").write_text('image\tcaption\nimg/0.jpg\t"a ""big"" dog"\nimg/1.jpg\t"cut off in\nthe last cell')
    assert TableSource(tmp_path / "d.tsv").captions(0) == ('a "big" dog',)
    harmless = 'image,caption\nimg/0.jpg,"two\nlines, ""quoted"""\nimg/1.jpg,"Wow" it said\nimg/2.jpg,5" wide\n'
    (tmp_path / "c.csv").write_text(harmless)
    source = TableSource(tmp_path / "c.csv")
    assert [source.captions(i)[0] for i in range(3)] == ['two\nlines, "quoted"', "Wow it said", '5" wide']


# --- folders


def test_folder_of_images(tmp_path):
    (tmp_path / "b" / "deep").mkdir(parents=True)
    for name in ("z.jpg", "b/deep/a.PNG", "b/c.jpeg"):
        (tmp_path / name).write_bytes(jpeg(1))
        (tmp_path / name).with_suffix(".txt").write_text("one\n\ntwo\n")
    (tmp_path / "alone.jpg").write_bytes(jpeg(2))
    source = FolderSource(tmp_path)
    assert [source.key(i) for i in range(len(source))] == ["alone.jpg", "b/c.jpeg", "b/deep/a.PNG", "z.jpg"]
    assert source.captions(1) == ("one", "two")
    assert cause_of(source, 0) == "no-caption"


@POSIX
def test_linked_folders_are_left_out_with_a_word_and_dangling_links_are_damage(tmp_path, caplog):
    for name in ("far/one", "near/two"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jpg").write_bytes(jpeg(1))
        (tmp_path / f"{name}.txt").write_text("a cat\n")
    (tmp_path / "near" / "linked").symlink_to(tmp_path / "far")
    (tmp_path / "near" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    source = FolderSource(tmp_path / "near")
    assert [source.key(i) for i in range(len(source))] == ["gone.jpg", "two.jpg"]
    assert cause_of(source, 0) == "missing-image" and cause_of(source, 1) is None
    assert "near/linked is a link to a folder, and is left out" in caplog.text


def test_half_of_an_emoji_is_damage(tmp_path):
    members = [("a.jpg", jpeg(0)), ("a.json", b'{"caption": "a cat \\ud83d"}')]
    assert cause_of(ShardSource([write_tar(tmp_path / "0.tar", members)]), 0) == "not-utf8"


def test_the_fingerprint_of_a_folder_covers_captions_and_images(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jpg").write_bytes(jpeg(1))
        (tmp_path / f"{name}.txt").write_text("a cat\n")
    first = FolderSource(tmp_path).fingerprint
    assert FolderSource(tmp_path).fingerprint == first
    (tmp_path / "b.txt").write_text("a dog\n")  # of the same length
    second = FolderSource(tmp_path).fingerprint
    (tmp_path / "b.txt").unlink()
    third = FolderSource(tmp_path).fingerprint
    (tmp_path / "a.jpg").write_bytes(jpeg(1) + b"more")
    assert len({first, second, third, FolderSource(tmp_path).fingerprint}) == 4


# --- opening and parts


def test_own_parts_are_used_and_a_missing_one_is_carved(tmp_path):
    write_set(tmp_path / "set", count=40)
    write_set(tmp_path / "set", count=10, part="test", first=100)
    assert splits_of(tmp_path / "set") == ("train", "test")
    train, val, test = (open_pairs(tmp_path / "set", split=split) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (36, 4, 10)
    assert not {train.key(i) for i in range(36)} & {val.key(i) for i in range(4)}
    write_set(tmp_path / "set", count=6, part="val", first=200)
    assert len(open_pairs(tmp_path / "set", split="train")) == 40
    assert len(open_pairs(tmp_path / "set", split="val")) == 6
    with pytest.raises(UserError, match="divided into parts"):
        open_pairs(tmp_path / "set", split="all")


def test_settings_that_mean_nothing_to_the_data_are_refused(tmp_path):
    write_set(tmp_path / "set", count=40)
    with pytest.raises(UserError, match="group-column product: only tables"):
        open_pairs(tmp_path / "set", ReadingSettings(group_column="product"), "train")
    with pytest.raises(UserError, match="epoch-samples is for pipe: shards"):
        open_pairs(tmp_path / "set", ReadingSettings(epoch_samples=100), "train")


def test_tables_by_part(tmp_path):
    photos(tmp_path)
    for part, number in (("train", 0), ("validation", 1)):
        (tmp_path / f"{part}.csv").write_text(f"image,caption\nimg/{number}.jpg,x\n")
    assert open_pairs(tmp_path, split="train").key(0) == "img/0.jpg"
    assert open_pairs(tmp_path, split="val").key(0) == "img/1.jpg"
    with pytest.raises(UserError, match="no 'test' part, only train, val"):
        open_pairs(tmp_path, split="test")


def test_a_part_that_does_not_exist_is_no_validation_part(tmp_path):
    photos(tmp_path)
    with pytest.raises(UserError, match="no part of data is called 'tset', only train, val, test, all"):
        open_pairs(tmp_path / "img", split="tset")


def test_the_cut_keeps_groups_and_copies_apart(tmp_path):
    photos(tmp_path, 60)
    (tmp_path / "img" / "copy.jpg").write_bytes(jpeg(0))  # the same photo under many names
    rows = ["image,caption,product"]
    rows += [f"img/{n}.jpg,caption {n},{n // 3}" for n in range(60)]
    for n in range(30):
        (tmp_path / "img" / f"again{n}.jpg").write_bytes(jpeg(n))
        rows.append(f"img/again{n}.jpg,again,x{n}")
    (tmp_path / "a.csv").write_text("\n".join(rows))
    reading = ReadingSettings(group_column="product", val_fraction=0.2)
    train, val = (open_pairs(tmp_path / "a.csv", reading, split) for split in ("train", "val"))
    assert 12 <= len(val) <= 18

    def facts(part):
        groups = {part.source.group(int(i)) for i in part.indices}
        return groups, {part.read(i).image for i in range(len(part))}

    for ours, theirs in zip(facts(train), facts(val)):
        assert not ours & theirs
    assert len(train) + len(val) < 90  # copies were left out
    again = carve(TableSource(tmp_path / "a.csv", reading), reading)
    assert again[0].fingerprint == train.fingerprint and again[1].fingerprint == val.fingerprint
    assert len(open_pairs(tmp_path / "a.csv", ReadingSettings(val_fraction=0.5, val_most=7), "val")) == 7


def test_nothing_found_is_explained(tmp_path):
    (tmp_path / "pairs.csv").write_text("image,caption\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.md").write_text("hi")
    for where, words in {
        "pear.csv": "Did you mean .*pairs.csv", "empty": "no pairs in .*found nothing", "note.md": "not from this",
    }.items():  # fmt: skip
        with pytest.raises(UserError, match=words):
            open_pairs(tmp_path / where)
    (tmp_path / "away.csv").write_text("image,caption\nphotos/1.jpg,a mug\nphotos/2.jpg,a cup\n")
    with pytest.raises(UserError, match=r"none of the 2 images .* relative to the table's own folder"):
        open_pairs(tmp_path / "away.csv")
    with pytest.raises(UserError, match=r"gs:// shards need another package .*gcsfs"):
        open_pairs("gs://bucket/0.tar")


def test_scenes_are_made_on_first_use(tmp_path, monkeypatch):
    def make_scenes(folder):
        write_set(folder / "pairs", count=4)
        write_set(folder / "pairs", count=2, shards=1, part="val", first=50)
        return folder

    monkeypatch.setattr("dinorankclip.data.scenes.make.make_scenes", make_scenes)
    monkeypatch.chdir(tmp_path)
    assert len(open_pairs("scenes")) == 4
    assert len(open_pairs("scenes", split="val")) == 2


@POSIX
def test_what_can_never_be_a_file_is_missing_and_not_merely_away(tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    (tmp_path / "circle.jpg").symlink_to("circle.jpg")
    table = tmp_path / "pairs.csv"
    table.write_text(f"image,caption\na.jpg,a\n{'a long caption ' * 400},b\ncircle.jpg,c\n")
    source = TableSource(table, ReadingSettings())
    assert [cause_of(source, index) for index in range(3)] == [None, "missing-image", "missing-image"]


def test_stamps_tell_a_replaced_image(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jpg").write_bytes(b"old")
        (tmp_path / f"{name}.txt").write_text(name)
    table = tmp_path / "pairs.csv"
    table.write_text("image,caption\na.jpg,one\nb.jpg,two\nmissing.jpg,three\n")
    listed, folder = TableSource(table), FolderSource(tmp_path)
    before = listed.stamps(), folder.stamps()
    assert before[0].shape == (3, 2) and before[0][2].tolist() == [-1, -1]
    assert listed.sizes().tolist() == [3, 3, -1]
    (tmp_path / "b.jpg").write_bytes(b"new")  # as long as the old one
    os.utime(tmp_path / "b.jpg", ns=(0, 1))  # whatever the resolution of this disk's clock
    assert TableSource(table).fingerprint == listed.fingerprint
    for source, old in zip((listed, folder), before):
        assert (source.stamps() != old).any(1).tolist() == [False, True, False]
    assert SplitPart(listed, [2, 0]).stamps().tolist() == listed.stamps()[[2, 0]].tolist()
