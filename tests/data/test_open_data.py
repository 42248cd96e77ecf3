"""Images without captions, captions without images."""

import pytest
from pair_making import jpeg, write_tar

from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.open_data import TextLines, WithoutCaptions, open_captions, open_images
from dinorankclip.types import UserError


def write_images(folder, names):
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    return folder


def keys(source):
    return [source.key(index) for index in range(len(source))]


def test_a_folder_gives_all_images_below_it_sorted(tmp_path):
    write_images(tmp_path, ["b/2.jpg", "b/10.JPG", "a.jpeg", "b/c/x y.jpg", ".hidden/no.jpg", "b/.no.jpg"])
    (tmp_path / "notes.md").write_text("no image")
    source = open_images(tmp_path)
    assert keys(source) == ["a.jpeg", "b/10.JPG", "b/2.jpg", "b/c/x y.jpg"]
    assert source.image(1) == jpeg(1)
    assert WithoutCaptions(source).read(0).captions == ()


def test_a_replaced_image_changes_the_stamps_and_not_the_fingerprint(tmp_path):
    write_images(tmp_path, ["a.jpg", "b.jpg"])
    before = open_images(tmp_path)
    stamps = before.stamps()
    (tmp_path / "b.jpg").write_bytes(jpeg(7))
    after = open_images(tmp_path)
    assert after.fingerprint == before.fingerprint
    assert (after.stamps()[0] == stamps[0]).all() and (after.stamps()[1] != stamps[1]).any()


def test_a_list_keeps_its_order_and_its_odd_names(tmp_path):
    names = ["z.jpg", "sub/ä ö.jpg", 'quo"te.jpg', "a.jpg"]
    write_images(tmp_path, names)
    listing = tmp_path / "list.txt"
    listing.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*names, "", "gone.jpg"]).encode())
    source = open_images(listing)
    assert keys(source) == [*names, "gone.jpg"]
    assert [source.image(index) for index in range(4)] == [jpeg(number) for number in range(4)]
    with pytest.raises(Damage, match="missing-image"):
        source.image(4)


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_a_table_gives_each_image_once_in_its_order(tmp_path, kind):
    write_images(tmp_path, ["b.jpg", "a.jpg"])
    rows = ["b.jpg", "a.jpg", "b.jpg", ""]
    table = tmp_path / f"table.{kind}"
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table({"photo": rows}), table)
    else:
        table.write_text("photo\n" + "".join(f'"{row}"\n' for row in rows))
    source = open_images(table, ReadingSettings(image_column="photo"))
    assert keys(source) == ["b.jpg", "a.jpg", "row 4 (no image)"]
    with pytest.raises(Damage, match="missing-image"):
        source.image(2)
    with pytest.raises(UserError, match=r"--reading\.image-column"):
        open_images(table)


def test_shards_need_neither_captions_nor_classes(tmp_path):
    write_tar(tmp_path / "0.tar", [("a.jpg", jpeg(0)), ("b.jpg", jpeg(1)), ("b.cls", b"3")])
    write_tar(tmp_path / "1.tar", [("c.jpg", jpeg(2)), ("c.txt", b"a caption")])
    for where in (tmp_path, tmp_path / "{0..1}.tar", tmp_path / "*.tar"):
        source = open_images(where)
        assert keys(source) == ["a", "b", "c"]
        assert [source.image(index) for index in range(3)] == [jpeg(0), jpeg(1), jpeg(2)]


def test_what_is_no_source_of_images_is_explained(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.txt").write_text("\n\n")
    (tmp_path / "movie.mp4").write_bytes(b"x")
    for where, words in [
        ("empty", "no images in"),
        ("list.txt", "one path a line"),
        ("emty", "Did you mean .*empty"),
        ("movie.mp4", "images come from"),
    ]:
        with pytest.raises(UserError, match=words):
            open_images(tmp_path / where)
    with pytest.raises(UserError, match="pipe:"):
        open_images("pipe:cat x.tar")


def test_captions_come_line_by_line_with_their_numbers(tmp_path):
    path = tmp_path / "captions.txt"
    path.write_bytes(b"\xef\xbb\xbfa dog\r\n\n  two cats \n\xff\xfe\nlast")
    source = open_captions(path)
    assert keys(source) == ["1", "2", "3", "4", "5"]
    assert [source.captions(index) for index in (0, 2, 4)] == [("a dog",), ("two cats",), ("last",)]
    for index, cause in ((1, "empty-caption"), (3, "not-utf8")):
        with pytest.raises(Damage, match=cause):
            source.captions(index)


def test_a_last_line_break_begins_no_line(tmp_path):
    path = tmp_path / "lines.txt"
    for text, count in ((b"a\nb\n", 2), (b"a\nb", 2), (b"a\n\n", 2), (b"", 0), (b"\n", 1)):
        path.write_bytes(text)
        lines = TextLines(path)
        assert [*lines] == text.removesuffix(b"\n").split(b"\n")[:count] and len(lines) == count


def test_captions_of_a_table_and_of_pairs(tmp_path):
    write_images(tmp_path, ["a.jpg"])
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert open_captions(tmp_path).captions(0) == ("one", "two")
    table = tmp_path / "words.csv"
    table.write_text('title\n"a, b"\nc\n')
    source = open_captions(table, ReadingSettings(caption_column="title"))
    assert [source.captions(index) for index in range(len(source))] == [("a, b",), ("c",)]
    with pytest.raises(UserError, match=r"--reading\.caption-column"):
        open_captions(table)
    (tmp_path / "blank.txt").write_text(" \n")
    with pytest.raises(UserError, match="no captions in"):
        open_captions(tmp_path / "blank.txt")


def test_captions_of_one_part_of_pairs(tmp_path):
    for part, caption in (("train", "seen"), ("test", "unseen")):
        write_images(tmp_path / part, ["a.jpg"])
        (tmp_path / part / "a.txt").write_text(caption)
    assert open_captions(tmp_path, split="test").captions(0) == ("unseen",)
    with pytest.raises(UserError, match="--split"):
        open_captions(tmp_path)
