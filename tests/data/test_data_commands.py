"""The command: verbs, help, exit codes; packing and showing."""

import itertools
import os
import subprocess
import sys

import pytest
from pair_making import damaged_members, good_members, jpeg, write_set, write_tar

from dinorankclip.commands import entry
from dinorankclip.data.open_data import open_pairs, splits_of


def run(capsys, *argv):
    """Exit code, output, errors."""
    try:
        entry.main(list(argv))
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def contents(where, split):
    source = open_pairs(where, split=split)
    return {(sample.image, sample.captions) for sample in map(source.read, range(len(source)))}


def test_help_is_light_and_shows_examples(capsys):
    for argv in (["--help"], []):
        code, out, _ = run(capsys, *argv)
        assert code == 0 and all(verb.example in out for verb in entry.VERBS.values())
    heavy = "import sys; from dinorankclip.commands import entry; entry.main(['--help']); "
    heavy += "assert not {'torch', 'numpy', 'open_clip'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", heavy], check=True, stdout=subprocess.DEVNULL)


def test_unknown_verbs_get_the_nearest(capsys):
    assert run(capsys, "trian") == (2, "", "error: no verb 'trian': did you mean 'train'? (dinorankclip --help)\n")
    assert f"there are {', '.join(entry.VERBS)}" in run(capsys, "xyzzy")[2]
    assert run(capsys, "data", "shwo") == (2, "", "error: data has no 'shwo': did you mean 'show'?\n")


@pytest.mark.parametrize("verb", ["make", "pack", "show", "check"])
def test_each_data_verb_shows_its_example(capsys, verb):
    code, out, _ = run(capsys, "data", verb, "--help")
    assert code == 0 and f"Examples:\n  dinorankclip data {verb}" in out
    assert f"dinorankclip data {verb}" in run(capsys, "data", "--help")[1]


def test_mistakes_are_one_line_and_exit_2(capsys, tmp_path):
    nothing = str(tmp_path / "nothing")
    code, out, err = run(capsys, "data", "show", nothing)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: there is no {nothing}. Pairs (--data of train) are: scenes (built in); a folder")
    assert "Did you mean scenes, the built-in data?" in run(capsys, "data", "show", "scene")[2]
    code, _, err = run(capsys, "data", "show", "--nn", "3")
    assert code == 2 and "--n" in err


def test_ctrl_c_is_quiet(capsys, monkeypatch):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr("dinorankclip.commands.data.main", interrupted)
    assert run(capsys, "data", "show") == (130, "", "")


def test_a_dead_worker_is_explained_wherever_torch_raises(capsys, monkeypatch):
    def dead(argv):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr("dinorankclip.commands.data.main", dead)
    code, _, err = run(capsys, "data", "show")
    assert code == 2 and "reading process died" in err


def test_pack_round_trips_through_every_layout(capsys, tmp_path):
    write_set(tmp_path / "set", count=10, shards=2)
    write_set(tmp_path / "set", count=4, shards=1, part="val", first=50)
    steps = ["set", "table", "folder", "shards"]
    for before, to in itertools.pairwise(steps):
        code, out, _ = run(capsys, "data", "pack", f"{tmp_path}/{before}", f"{tmp_path}/{to}", "--to", to)
        assert code == 0 and "train 10, val 4 pairs" in out
        assert splits_of(tmp_path / to) == ("train", "val")
        for split in ("train", "val"):
            assert contents(tmp_path / to, split) == contents(tmp_path / "set", split)
    assert (tmp_path / "shards" / "dataset_type.txt").read_text().strip() == "retrieval"


def test_pack_shard_size_and_existing_folders(capsys, tmp_path):
    write_tar(tmp_path / "in.tar", good_members(25))
    assert run(capsys, "data", "pack", f"{tmp_path}/in.tar", f"{tmp_path}/out", "--shard-size", "10")[0] == 0
    assert (tmp_path / "out/train/nshards.txt").read_text().strip() == "3"
    assert len(open_pairs(tmp_path / "out/train", split="all")) == 25
    code, _, err = run(capsys, "data", "pack", f"{tmp_path}/in.tar", f"{tmp_path}/out")
    assert code == 2 and "exists already" in err


def test_pack_counts_damage_and_leaves_nothing_when_it_fails(capsys, tmp_path):
    write_tar(tmp_path / "in.tar", [*good_members(5), *damaged_members(2)])
    for where, out in ((f"{tmp_path}/in.tar", "a"), (f"pipe:cat {tmp_path}/in.tar", "b")):
        code, printed, _ = run(capsys, "data", "pack", where, f"{tmp_path}/{out}", "--to", "folder")
        assert code == 0 and "20 damaged pairs left out" in printed and "2 not-utf8" in printed
        assert printed.startswith(f"5 pairs in {tmp_path}/{out}\n")
        assert len(open_pairs(tmp_path / out, split="all")) == 5
    assert run(capsys, "data", "pack", f"{tmp_path}/in.csv", f"{tmp_path}/c")[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "in.tar"]


def test_pack_makes_safe_names(capsys, tmp_path):
    for name in ("v1.5 photo.jpg", "v1_5 photo.png", "up.jpg"):
        (tmp_path / name).write_bytes(jpeg(len(name)))
    (tmp_path / "in").mkdir()
    rows = 'image,caption\n../v1.5 photo.jpg,"two\nlines"\n../v1_5 photo.png,b\n../up.jpg,c\n'
    (tmp_path / "in" / "a.csv").write_text(rows)
    assert run(capsys, "data", "pack", f"{tmp_path}/in", f"{tmp_path}/out")[0] == 0
    source = open_pairs(tmp_path / "out" / "train", split="all")
    assert [source.key(i) for i in range(3)] == ["v1_5 photo", "v1_5 photo-2", "up"]
    assert source.captions(0) == ("two lines",)


def test_pack_keeps_names_that_are_no_utf8_and_hidden_files_of_the_new_folder(capsys, tmp_path):
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"{name}.jpg").write_bytes(jpeg(1))
    (tmp_path / "in" / f"{name}.txt").write_text("coffee")
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / ".DS_Store").write_bytes(b"seen")
    assert run(capsys, "data", "pack", f"{tmp_path}/in", f"{tmp_path}/table", "--to", "table")[0] == 0
    source = open_pairs(tmp_path / "table", split="all")
    assert source.key(0) == f"images/{name}.jpg" and source.read(0).captions == ("coffee",)
    assert (tmp_path / "table" / ".DS_Store").read_bytes() == b"seen"


def test_show_writes_a_sheet_and_escapes(capsys, tmp_path):
    members = [*good_members(7), ("x.jpg", jpeg(9)), ("x.txt", b"<script>alert(1)</script> & more")]
    write_tar(tmp_path / "in.tar", members)
    for kind in ("png", "html"):
        code, out, _ = run(capsys, "data", "show", f"{tmp_path}/in.tar", "--n", "20", "--out", f"{tmp_path}/s.{kind}")
        assert code == 0 and "8 of 8 pairs" in out
    page = (tmp_path / "s.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page
    assert page.count("<img") == 8
    assert run(capsys, "data", "show", f"{tmp_path}/in.tar", "--out", f"{tmp_path}/s.gif")[0] == 2


@pytest.mark.parametrize("verb", [("data", "pack"), ("data", "show"), ("embed",), ("score",), ("teacher", "cache")])
def test_verbs_that_do_not_train_have_no_flags_of_the_training_loader(capsys, verb):
    flags = run(capsys, *verb, "--help")[1]
    assert "--reading.val-fraction" in flags
    of_training = ("crop-scale", "flip", "workers", "patience", "max-damaged")
    assert not any(f"--reading.{name}" in flags for name in of_training)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["make", "scenes", "out", "--seed", "-1"], "--seed -1: at least 0"),
        (["make", "scenes", "out", "--workers", "-1"], "--workers -1: at least 1"),
        (["show", "out", "--n", "0"], "--n 0: at least 1"),
        (["show", "out", "--seed", "-1"], "--seed -1: at least 0"),
        (["pack", "in", "out", "--shard-size", "0"], "--shard-size 0: at least 1"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(capsys, words, message):
    code, _, errors = run(capsys, "data", *words)
    assert code == 2 and message in errors
