"""`embed` and `search` as they are typed."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from dinorankclip import io as files
from dinorankclip.commands.entry import main
from dinorankclip.models.loaded import load_model
from dinorankclip.search.background import Background, Standing
from dinorankclip.search.photo_search import PhotoSearch
from tests.models.model_making import photo, saved, small_model
from tests.systems import POSIX


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "INDEX_FOLDER", tmp_path / "index")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("plain") / "model", small_model(seed=1))


@pytest.fixture
def pairs(tmp_path):
    (tmp_path / "pairs").mkdir()
    for number in range(3):
        photo(number, 60, 48).save(tmp_path / "pairs" / f"{number}.jpg")
        (tmp_path / "pairs" / f"{number}.txt").write_text(f"scene {number}\n")
    return tmp_path / "pairs"


def fails(capsys, *words):
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_pairs_give_images_and_texts_with_the_same_keys(model, pairs, tmp_path, capsys):
    command = ["embed", str(model), "--data", str(pairs), "--out", str(tmp_path / "out")]
    main(command)
    assert "3 images, 3 texts" in capsys.readouterr().out
    main(command)
    assert "is complete already: 3 images, 3 texts" in capsys.readouterr().out
    out, loaded = tmp_path / "out", load_model(model)
    assert (out / "image_keys.txt").read_text() == (out / "text_keys.txt").read_text() == "0.jpg\n1.jpg\n2.jpg\n"
    expected = loaded.encode_text(["scene 0", "scene 1", "scene 2"]).numpy()
    np.testing.assert_allclose(np.load(out / "texts.npy"), expected, atol=1e-6)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["complete"] and manifest["plan"]["the model"] == loaded.identity
    assert manifest["plan"]["preprocessing"]["size"] == 32 and manifest["about"]["model"] == str(model)


def test_rows_that_another_command_stored_are_not_computed_again(model, pairs, tmp_path, capsys, monkeypatch):
    plain = tmp_path / "plain"
    main(["embed", str(model), "--images", str(pairs), "--out", str(plain)])
    assert "before" not in capsys.readouterr().out
    main(["search", str(model), "--images", str(pairs), "a boat"])
    (pairs / "extra").mkdir()
    main(["embed", str(model), "--images", str(pairs), "--out", "taken"])
    assert "were embedded before" in capsys.readouterr().out
    np.testing.assert_allclose(np.load("taken/images.npy"), np.load(plain / "images.npy"), atol=1e-6)
    assert Path("taken/image_keys.txt").read_text() == (plain / "image_keys.txt").read_text()
    photo(7, 60, 48).save(pairs / "1.jpg")  # the index is older than this photo
    main(["embed", str(model), "--images", str(pairs), "--out", "new"])
    assert "before" not in capsys.readouterr().out
    assert not np.allclose(np.load("new/images.npy")[1], np.load("taken/images.npy")[1])


def test_rows_of_pairs_come_from_the_store_of_scores(model, pairs, tmp_path, capsys, monkeypatch):
    from dinorankclip.data.open_data import open_stored
    from dinorankclip.evaluate.embeddings import EmbeddingStore

    monkeypatch.setattr("dinorankclip.search.embed_pieces.EmbeddingStore", lambda: EmbeddingStore(tmp_path / "store"))
    main(["embed", str(model), "--data", str(pairs), "--out", "first"])
    assert "before" not in capsys.readouterr().out
    EmbeddingStore(tmp_path / "store").images(load_model(model), open_stored(pairs, split="all"))
    main(["embed", str(model), "--data", str(pairs), "--out", "second"])
    assert "were embedded before" in capsys.readouterr().out
    np.testing.assert_allclose(np.load("second/images.npy"), np.load("first/images.npy"), atol=1e-6)


def test_images_alone_in_half_precision(model, pairs, tmp_path):
    (tmp_path / "list.txt").write_text("pairs/2.jpg\npairs/0.jpg\n")
    main(["embed", str(model), "--images", str(tmp_path / "list.txt"), "--half", "--out", "out"])
    assert np.load("out/images.npy").dtype == np.float16
    assert (tmp_path / "out" / "image_keys.txt").read_text() == "pairs/2.jpg\npairs/0.jpg\n"
    assert not (tmp_path / "out" / "texts.npy").exists()


def test_what_embed_cannot_do_is_said(model, pairs, capsys):
    assert "--images, --captions, or --data" in fails(capsys, "embed", model, "--out", "out")
    assert "leave out" in fails(capsys, "embed", model, "--out", "out", "--data", pairs, "--images", pairs)
    assert "pipe:" in fails(capsys, "embed", model, "--out", "out", "--data", "pipe:cat x.tar")
    assert "there is no nowhere" in fails(capsys, "embed", model, "--out", "out", "--images", "nowhere")
    assert "holds no model" in fails(capsys, "embed", "nowhere", "--out", "out", "--images", pairs)


def test_search_prints_ranks_scores_and_paths(model, pairs, capsys):
    main(["search", str(model), "--images", str(pairs), "a red mug", "a boat", "--top", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[3]] == ['"a red mug"', '"a boat"'] and len(lines) == 6
    rank, score, path = lines[1].split()
    assert rank == "1" and -1 <= float(score) <= 1 and path.startswith(str(pairs))
    assert float(score) >= float(lines[2].split()[1])
    assert (pairs / ".dinorankclip").is_dir()


def test_search_reads_queries_line_by_line_and_by_photo(model, pairs, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("a mug\na boat\n"))
    main(["search", str(model), "--images", str(pairs), "--image-query", str(pairs / "1.jpg"), "--interactive"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [f"like {pairs}/1.jpg", '"a mug"', '"a boat"']
    assert lines[1].split() == ["1", "1.000", f"{pairs}/1.jpg"]


def test_search_takes_lines_in_any_encoding_and_puts_them_on_the_page(model, pairs, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\na boat\n"), encoding="utf-8"))
    main(["search", str(model), "--images", str(pairs), "a mug", "--interactive", "--html", "found.html"])
    assert "caf\ufffd" in capsys.readouterr().out
    page = Path("found.html").read_text(encoding="utf-8")
    assert all(words in page for words in ("a mug", "caf\ufffd", "a boat"))


def test_search_writes_a_page_and_names_damaged_photos(model, pairs, capsys):
    (pairs / "bad.jpg").write_bytes(b"x")
    (pairs / "odd\x1b[31m.jpg").write_bytes((pairs / "0.jpg").read_bytes())
    main(["search", str(model), "--images", str(pairs), "<b>", "--html", "deep/found.html"])
    printed = capsys.readouterr()
    assert "not-an-image" in printed.err and "bad.jpg" in printed.err and "\x1b" not in printed.out
    assert "4 photos in" in Path("deep/found.html").read_text(encoding="utf-8")


@pytest.fixture
def many(tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(40):
        photo(number, 60, 48).save(tmp_path / "many" / f"{number:02d}.jpg")
    return tmp_path / "many"


def stands_out(monkeypatch, level):
    standing = Standing(level, 50, 107)
    monkeypatch.setattr(Background, "standing", lambda self, scores: standing)


def test_search_says_that_nothing_stands_out_in_place_of_photos(model, many, capsys, monkeypatch):
    words = ["search", str(model), "--images", str(many), "a red mug", "--top", "2"]
    stands_out(monkeypatch, 3.0)
    main(words)
    assert capsys.readouterr().out.count(".jpg") == 2
    stands_out(monkeypatch, 0.3)
    main([*words, "--html", "found.html"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == '"a red mug"' and len(lines) == 3 and "--anyway lists them" in lines[1]
    assert "nothing stands out: " in lines[1] and "higher than 50 of 107" in lines[1]
    assert (
        "Nothing stands out: " in Path("found.html").read_text() and Path("found.html").read_text().count("<li>") == 2
    )
    main([*words, "--anyway"])
    out = capsys.readouterr().out
    assert "nothing stands out" in out and out.count(".jpg") == 2 and "--anyway" not in out


@POSIX
def test_search_names_the_checkpoint_and_a_model_at_chance(many, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    saved(run / "checkpoints" / "step-7", small_model(seed=1))
    (run / "checkpoints" / "last").symlink_to("step-7")
    (run / "checkpoints" / "last" / "training.json").write_text('{"step": 7}')
    scores = {"val/t2i R@10": 0.06, "val/images": 200.0}
    (run / "scores.json").write_text(json.dumps({"step": 7, "scores": scores}))
    main(["search", str(run), "--images", str(many), "a red mug"])
    said = capsys.readouterr().err
    assert f"{run}: step 7 (checkpoints/step-7); 0.6 of 10 held-out captions found their photo" in said
    assert "this model is at chance (0.5 of 10 is chance)" in said and f"dinorankclip doctor {run}" in said


def test_search_warns_of_a_photo_that_answers_everything(model, many, capsys, monkeypatch):
    monkeypatch.setattr(PhotoSearch, "hub", lambda self: ("07.jpg", 0.5))
    main(["search", str(model), "--images", str(many), "a red mug"])
    assert "07.jpg comes first for 50 % of unrelated queries" in capsys.readouterr().err


def test_what_search_cannot_do_is_said(model, pairs, capsys):
    assert "nothing to look for" in fails(capsys, "search", model, "--images", pairs)
    assert "--top" in fails(capsys, "search", model, "--images", pairs, "--top", "0", "mug")
    assert "does not exist" in fails(capsys, "search", model, "--images", "nowhere", "mug")
    assert "holds no model" in fails(capsys, "search", "nowhere", "--images", pairs, "mug")


@pytest.mark.parametrize("verb", ["embed", "search"])
def test_help_shows_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0 and f"dinorankclip {verb} runs/first" in capsys.readouterr().out
