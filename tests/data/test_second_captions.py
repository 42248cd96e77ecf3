"""Second captions of ALIP: every place they may come from, and what happens where they are missing."""

import json
import re
from pathlib import Path

import pytest
from pair_making import good_members, jpeg, write_tar

from dinorankclip.config import ReadingSettings
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.second_captions import open_second_captions
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import ImageSpec, TextSpec, UserError

COUNT = 30
KEYS = [f"k{number:05d}" for number in range(COUNT)]


def second(number):
    return f"generated words about {number}"


def with_seconds(count=COUNT, first=0, leave_out=()):
    """Members of a shard: one caption an image, and a second caption beside it."""
    for name, data in good_members(count, first, captions=1):
        yield name, data
        number = int(name[1:6])
        if name.endswith(".txt") and number not in leave_out:
            yield name.replace(".txt", ".second.txt"), second(number).encode()


def shards(folder, members=None):
    write_tar(folder / "s-0.tar", members or list(good_members(COUNT, captions=1)))
    return f"{folder}/s-0.tar"


def sidecar(path, keys=KEYS):
    captions = {key: second(number) for number, key in enumerate(keys)}
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"key": k, "caption": c}) + "\n" for k, c in captions.items()))
    else:
        path.write_text("note,key,caption\n" + "".join(f'x,{k},"{c}"\n' for k, c in captions.items()))
    return path


def opened(where, **reading):
    settings = ReadingSettings(**reading)
    train = open_pairs(where, settings, "train")
    return train, settings, open_second_captions(train, settings)


@pytest.mark.parametrize("kind", [".jsonl", ".csv"])
def test_a_file_of_keys_and_captions(tmp_path, kind):
    where = shards(tmp_path)
    train, _, captions = opened(where, second_captions=str(sidecar(tmp_path / f"second{kind}")))
    assert [captions(train.key(i)) for i in range(3)] == [(second(int(train.key(i)[1:])),) for i in range(3)]
    assert captions("another") == ()
    assert train.captions(0) == (f"caption 0 of picture {int(train.key(0)[1:])}",)  # the data's own stay alone


def test_several_second_captions_of_an_image(tmp_path):
    path = tmp_path / "second.jsonl"
    path.write_text("".join(json.dumps({"key": key, "captions": ["a", " b "]}) + "\n" for key in KEYS))
    assert opened(shards(tmp_path), second_captions=str(path))[2]("k00001") == ("a", "b")


def test_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"key": KEYS, "caption": [second(number) for number in range(COUNT)]})
    parquet.write_table(table, tmp_path / "second.parquet")
    captions = opened(shards(tmp_path), second_captions=str(tmp_path / "second.parquet"))[2]
    assert captions("k00007") == (second(7),)


def test_members_of_shards_leave_the_index_of_pairs_alone(tmp_path):
    plain = open_pairs(shards(tmp_path / "plain"), split="all")
    where = shards(tmp_path / "both", list(with_seconds()))
    captions = opened(where, second_captions="beside")[2]
    assert captions("k00004") == (second(4),) and captions("k99999") == ()
    source = open_pairs(where, split="all")
    assert len(source) == len(plain) and source.captions(4) == plain.captions(4) and source.image(4) == plain.image(4)


def test_files_of_a_folder(tmp_path):
    for number, key in enumerate(KEYS):
        (tmp_path / f"{key}.jpg").write_bytes(jpeg(number))
        (tmp_path / f"{key}.txt").write_text(f"own caption of {number}")
        (tmp_path / f"{key}.second.txt").write_text(second(number) + "\n")
    train, _, captions = opened(str(tmp_path), second_captions="beside")
    key = train.key(2)
    assert captions(key) == (second(int(key[1:6])),) and train.captions(2) == (f"own caption of {int(key[1:6])}",)


def test_a_column_of_a_table(tmp_path):
    rows = []
    for number, key in enumerate(KEYS):
        (tmp_path / f"{key}.jpg").write_bytes(jpeg(number))
        rows += [f"{key}.jpg,own caption {turn} of {number},{second(number)}" for turn in range(2)]
    (tmp_path / "pairs.csv").write_text("image,caption,synthetic\n" + "\n".join(rows))
    train, _, captions = opened(str(tmp_path / "pairs.csv"), second_caption_column="synthetic")
    assert captions("k00009.jpg") == (second(9),)
    assert train.fingerprint == open_pairs(tmp_path / "pairs.csv").fingerprint  # caches of a teacher stay valid
    with pytest.raises(UserError, match=r"Did you mean --reading.second-caption-column 'synthetic'"):
        opened(str(tmp_path / "pairs.csv"), second_caption_column="synthetik")
    with pytest.raises(UserError, match="only tables"):
        opened(shards(tmp_path / "tars"), second_caption_column="synthetic")


def test_batches_carry_the_given_captions(tmp_path):
    train, reading, captions = opened(
        shards(tmp_path, list(with_seconds())), second_captions="beside", workers=0, val_most=5
    )
    tokenizer = Tokenizer(TextSpec())
    loader = PairLoader(
        train, ImageSpec(32), tokenizer, batch=10, seed=0, reading=reading, second_caption=True,
        second_captions=captions,
    )  # fmt: skip
    batch = next(iter(loader))
    expected = tokenizer([second(int(key[1:])) for key in batch.keys])
    assert batch.second_texts.tolist() == expected.tolist() and batch.damage == []


def test_a_stream_carries_its_own(tmp_path):
    for shard in range(3):
        write_tar(tmp_path / f"{shard}.tar", list(with_seconds(10, first=10 * shard, leave_out=(15,))))
    where = f"pipe:cat {tmp_path}/{{0..2}}.tar"
    train, reading, captions = opened(where, second_captions="beside", epoch_samples=20, workers=0, max_damaged=0.2)
    tokenizer = Tokenizer(TextSpec())
    loader = PairLoader(
        train, ImageSpec(32), tokenizer, batch=10, seed=0, reading=reading, second_caption=True,
        second_captions=captions,
    )  # fmt: skip
    causes = set()
    for _, batch in zip(range(4), loader):
        assert batch.second_texts.tolist() == tokenizer([second(int(key[1:])) for key in batch.keys]).tolist()
        causes |= set(batch.damage)
    assert causes <= {("k00015", "no-second-caption")}


def test_captions_of_other_data_are_refused(tmp_path):
    where = shards(tmp_path)
    foreign = sidecar(tmp_path / "foreign.jsonl", [f"other-{key}" for key in KEYS])
    with pytest.raises(UserError, match=r"27 of 27 .* no second caption, such as 'k.*a key there is 'other-k00000'"):
        opened(where, second_captions=str(foreign))
    with pytest.raises(UserError, match=r"no second captions in .*reads KEY\.second\.txt"):
        opened(where, second_captions="beside")
    few = sidecar(tmp_path / "few.jsonl", KEYS[:-1])
    assert opened(where, second_captions=str(few))[2](KEYS[0])  # one may be missing: it is replaced and counted


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "does not exist"),
        ("second.txt", "a", "is not one of .jsonl"),
        ("second.jsonl", '{"key": "a"}\n', "line 1: expected"),
        ("second.jsonl", '{"key": "a", "caption": "b"}\nnonsense\n', "line 2: expected"),
        ("second.csv", "name,caption\na,b\n", r"has no column 'key'; its columns are 'name', 'caption'. Rename it"),
    ],
)
def test_a_file_that_cannot_be_read_is_explained(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        opened(shards(tmp_path), second_captions=str(tmp_path / name))


def test_the_identity_follows_the_captions(tmp_path):
    where, path = shards(tmp_path), sidecar(tmp_path / "second.jsonl")
    before = opened(where, second_captions=str(path))[2].identity
    assert opened(where, second_captions=str(path))[2].identity == before
    path.write_text(path.read_text().replace("words", "terms"))
    assert opened(where, second_captions=str(path))[2].identity != before


def test_the_script_of_the_documentation_makes_them(tmp_path, monkeypatch):
    members = [*good_members(COUNT, captions=1), ("k00099.jpg", b"no image"), ("k00099.txt", b"a caption")]
    where = shards(tmp_path, members)
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    script = re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time there is nothing left to do
        exec(script, {"DATA": where})
    assert len(Path("second.jsonl").read_text().splitlines()) == COUNT + 1
    captions = opened(where, second_captions="second.jsonl", max_damaged=0.1)[2]
    assert captions("k00003") == ("a picture of 48 by 40 pixels",) and captions("k00099") == ()
