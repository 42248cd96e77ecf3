"""Indexes of many rows: exact answers, recall, stale and damaged files; and search in a folder that `embed` wrote."""

import json
import os
import platform
import shutil

import numpy as np
import pytest

from dinorankclip.api.searching import search as search_api
from dinorankclip.checksums import DamagedFile, bytes_hash, sealed
from dinorankclip.commands.entry import main
from dinorankclip.models.loaded import load_model
from dinorankclip.search import codes, large_index
from dinorankclip.search.background import Background, NearBackground
from dinorankclip.search.codes import Codes, RowFile, encoded, share_found
from dinorankclip.search.embedded import EmbeddedSearch
from dinorankclip.search.large_index import KINDS, kind_for, make_index, open_index, sample_queries, true_nearest
from tests.models.model_making import photo, saved, small_model

N, D = 6000, 32


def quiet(*_):
    pass


@pytest.fixture(scope="module")
def rows():
    """A mixture of 60 groups with some equal rows."""
    draws = np.random.default_rng(0)
    rows = draws.standard_normal((60, D))[draws.integers(0, 60, N)] + 0.5 * draws.standard_normal((N, D)) + 0.5
    rows[100] = rows[4000] = rows[7]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def file(rows, tmp_path):
    np.save(tmp_path / "images.npy", rows)
    return RowFile(tmp_path / "images.npy")


def right(rows, query, top):
    scores = rows @ query
    order = np.lexsort((np.arange(len(rows)), -scores))[:top]
    return order, scores[order]


@pytest.mark.parametrize(("readers", "integers"), [(1, False), (8, False), (1, True), (8, True)])
def test_exact_is_a_scan_of_the_rows_with_ties_by_place(rows, file, tmp_path, monkeypatch, readers, integers):
    if integers:
        pytest.importorskip("numkong")
    else:
        monkeypatch.setattr(codes, "missing_packages", lambda extra: ["numkong"])
    monkeypatch.setattr(codes, "READERS", readers)
    monkeypatch.setattr(codes, "BLOCK", 300)
    index = make_index(file, tmp_path, "exact", "s", rows[:3], quiet)
    draws = np.random.default_rng(1)
    for query in [rows[7], rows[-1], *draws.standard_normal((20, D)).astype(np.float32) / 3, np.zeros(D, np.float32)]:
        for top in (1, 10, 200):
            places, scores = index.nearest(query, top)
            expected, values = right(rows, query, top)
            assert places.tolist() == expected.tolist()
            np.testing.assert_allclose(scores, values, atol=1e-6)
    assert index.nearest(rows[7], 3)[0].tolist() == [7, 100, 4000]
    several = index.candidates(rows[:5], 10)
    assert all(set(right(rows, rows[at], 10)[0]) <= set(found.tolist()) for at, found in enumerate(several))
    assert max(map(len, several)) < 40, "hardly more than needed"


def test_every_score_lies_within_the_error_of_its_record(rows):
    records, queries = encoded(rows, 5), np.random.default_rng(2).standard_normal((50, D)).astype(np.float32)
    estimates = (records["code"].astype(np.float32) @ queries.T) * records["scale"][:, None]
    slack = records["error"][:, None] * np.linalg.norm(queries, axis=1) + 1e-5
    assert (np.abs(estimates - rows @ queries.T) <= slack).all()
    assert records["row"].tolist() == list(range(5, 5 + N)) and records["error"].max() < 0.02
    assert encoded(np.zeros((1, D), np.float32), 0)["error"] < 1e-4


def test_records_are_read_in_ranges_and_a_cut_file_is_refused(rows, tmp_path):
    (tmp_path / "a").write_bytes(encoded(rows, 0).tobytes())
    found = Codes(tmp_path / "a", D).candidates(rows[50:51], [(0, 40), (60, 90)], 5)[0][0]
    assert len(found) >= 5 and all(place < 40 or 60 <= place < 90 for place in found)
    reader = Codes(tmp_path / "a", D)
    os.truncate(tmp_path / "a", 10_000)
    with pytest.raises(large_index.UserError, match="ends too early"):
        reader.candidates(rows[:1], [(0, N)], 5)


@pytest.mark.parametrize("kind", KINDS)
def test_recall_is_measured_and_kept(rows, file, tmp_path, kind):
    if kind == "graph":
        pytest.importorskip("usearch")
    queries = sample_queries(file, rows[:20] + 0.01)
    made = make_index(file, tmp_path, kind, "s", queries, quiet, lambda index: {"hub": 3})
    index = open_index(file, tmp_path, kind, "s")
    assert (index.look, index.recall, index.facts) == (made.look, made.recall, {"hub": 3})
    found = [index.nearest(query, 10)[0] for query in queries]
    share = share_found(found, [right(rows, query, 10)[0] for query in queries])
    assert share >= 0.97 and abs(share - made.recall) < 0.02  # ties of equal rows
    assert open_index(file, tmp_path, kind, "other rows") is None
    make_index(file, tmp_path, kind, "other rows", queries, quiet)
    assert open_index(file, tmp_path, kind, "s") is None, "the older one is removed"


def test_true_nearest_goes_over_all_pieces(rows, file, monkeypatch):
    monkeypatch.setattr(large_index, "BLOCK", 500)
    found = true_nearest(file, rows[200:230], 10)
    assert [sorted(some) for some in found] == [sorted(right(rows, rows[at], 10)[0]) for at in range(200, 230)]


def test_clusters_hold_every_row_once(rows, file, tmp_path, monkeypatch):
    monkeypatch.setattr(large_index, "_SORTED_AT_ONCE", 700)
    index = make_index(file, tmp_path, "ivf", "s", rows[:5], quiet)
    records = np.fromfile(index.path, codes.record_of(D))
    assert sorted(records["row"].tolist()) == list(range(N))
    np.testing.assert_allclose(records["code"] * records["scale"][:, None], rows[records["row"]], atol=0.005)


def test_clusters_are_added_until_they_hold_enough_rows(rows, file, tmp_path):
    index = make_index(file, tmp_path, "ivf", "s", rows[:5], quiet)
    index.look = 1
    assert len(index.nearest(rows[3], 500)[0]) == 500 and len(index.nearest(rows[3], N)[0]) == N


def test_what_a_killed_maker_left_is_removed(rows, file, tmp_path):
    left = tmp_path / f".index-exact-x.rows.{platform.node()}.{2**30}"
    left.touch()
    make_index(file, tmp_path, "exact", "s", rows[:2], quiet)
    assert not left.exists()


def test_damaged_and_foreign_index_files_are_refused(rows, file, tmp_path):
    make_index(file, tmp_path, "exact", "s", rows[:2], quiet)
    (path,) = tmp_path.glob("index-exact-*.rows")
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 5))
    assert open_index(file, tmp_path, "exact", "s") is not None, "a copy is hashed and accepted"
    data = bytearray(path.read_bytes())
    data[777] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match="is damaged: it is not as it was written"):
        open_index(file, tmp_path, "exact", "s")
    os.truncate(path, 100)
    with pytest.raises(DamagedFile, match="another size"):
        open_index(file, tmp_path, "exact", "s")
    about = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps(sealed(about | {"rows": 7})))
    with pytest.raises(DamagedFile, match="of other rows"):
        open_index(file, tmp_path, "exact", "s")


def test_half_precision_rows_and_the_choice_of_a_kind(rows, tmp_path):
    np.save(tmp_path / "half.npy", rows.astype(np.float16))
    file = RowFile(tmp_path / "half.npy")
    index = make_index(file, tmp_path, "exact", "h", rows[:2], quiet)
    half = rows.astype(np.float16).astype(np.float32)
    assert index.nearest(rows[9], 10)[0].tolist() == right(half, rows[9], 10)[0].tolist()
    assert (kind_for(10**6), kind_for(10**8)) == ("exact", "ivf")
    assert kind_for(10**7) in ("graph", "ivf")


def test_a_query_that_stands_out_does_so_among_the_nearest_alone(rows, file, tmp_path):
    queries = np.random.default_rng(4).standard_normal((60, D)).astype(np.float32) / D**0.5
    index = make_index(file, tmp_path, "exact", "s", rows[:2], quiet)
    whole, near = Background(queries, rows), NearBackground.measured(queries, index)
    assert NearBackground(queries, **json.loads(json.dumps(near.facts()))).facts() == near.facts()
    assert (near.hub, near.hub_share) == (whole.hub, pytest.approx(whole.hub_share))
    for query in (rows[3], queries[0], rows[700]):
        exact, estimate = whole.standing(rows @ query), near.standing(query, index)
        assert estimate.stands_out == exact.stands_out and abs(estimate.level - exact.level) < 1.5


# --- a folder that `embed` wrote


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    base = tmp_path_factory.mktemp("base")
    (base / "photos").mkdir()
    for number in range(36):
        photo(number, 60, 48).save(base / "photos" / f"{number:02d}.jpg")
    (base / "photos" / "07.jpg").write_bytes(b"no image")
    saved(base / "model", small_model(seed=1))
    main(["embed", str(base / "model"), "--images", str(base / "photos"), "--out", str(base / "out")])
    return base


@pytest.mark.parametrize("kind", KINDS)
def test_search_finds_what_the_embedded_rows_say(embedded, capsys, kind):
    if kind == "graph":
        pytest.importorskip("usearch")
    words = ["search", str(embedded / "model"), "--images", str(embedded / "out"), "a red mug", "--top", "3"]
    main([*words, "--anyway", "--index", kind, "--html", str(embedded / "page.html")])
    printed = capsys.readouterr()
    assert f"{kind} index of 35 images: recall@10 against a scan" in printed.err and "07.jpg" in printed.err
    rows, keys = np.load(embedded / "out/images.npy"), (embedded / "out/image_keys.txt").read_text().split()
    query = load_model(embedded / "model").encode_text(["a red mug"])[0].numpy()
    expected = [keys[place] for place in right(rows, query, 3)[0]]
    assert [line.split("/")[-1] for line in printed.out.splitlines() if "photos/" in line] == expected
    assert "data:image/jpeg" in (embedded / "page.html").read_text()
    main([*words, "--index", kind])
    assert "recall" not in capsys.readouterr().err, "the index is stored"


def test_the_api_and_a_photo_as_query(embedded):
    (found,) = search_api(embedded / "model", embedded / "out", like=embedded / "photos/11.jpg", top=2)
    assert found.hits[0].path == embedded / "photos/11.jpg" and found.hits[0].score == pytest.approx(1, abs=1e-4)


def test_a_damaged_photo_may_have_any_name(embedded, tmp_path):
    shutil.copytree(embedded / "out", tmp_path / "out")
    (tmp_path / "out/damaged.tsv").write_bytes(b"\xff\xe2\x80\xa8.jpg\tcorrupt\n")
    found = EmbeddedSearch(str(embedded / "model"), tmp_path / "out", lambda: load_model(embedded / "model"), print)
    assert list(found.damaged.keys.values()) == ["corrupt"]


def test_folders_that_cannot_be_searched_say_why(embedded, tmp_path, capsys):
    def refused(*words):
        with pytest.raises(SystemExit):
            main(["search", *map(str, words), "a mug"])
        return capsys.readouterr().err

    saved(tmp_path / "other", small_model(seed=2))
    assert "was embedded by another model" in refused(tmp_path / "other", "--images", embedded / "out")
    photos = embedded / "photos"
    assert "is for a folder of embeddings" in refused(embedded / "model", "--images", photos, "--index", "ivf")


def test_new_embeddings_get_a_new_index(embedded, tmp_path, monkeypatch):

    shutil.copytree(embedded / "out", tmp_path / "out")
    notes = []

    def finder():
        return EmbeddedSearch(
            str(embedded / "model"), tmp_path / "out", lambda: load_model(embedded / "model"), notes.append
        )

    finder().by_words("a cat", 2)
    made = len(notes)
    rows = tmp_path / "out/images.npy"
    data = bytearray(rows.read_bytes())
    data[-4:] = data[-8:-4]
    rows.write_bytes(data)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    manifest["hashes"]["images.npy"][-1][1] = bytes_hash([bytes(data[128:])])
    (tmp_path / "out/manifest.json").write_text(json.dumps(sealed(manifest)))
    finder()
    assert len(notes) == made + 1 and "recall@10" in notes[-1]
