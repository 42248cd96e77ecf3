"""Models, set, images, search, embeddings."""

import io

import numpy as np
import pytest
from PIL import Image

from dinorankclip.models.loaded import load_model
from dinorankclip.serve.nearest import nearest, ranks_of
from dinorankclip.serve.state import Limits
from tests.models.model_making import photo
from tests.serve.serving import DAMAGED, HOSTILE, PAIRS, client_of, served


def jpeg_bytes(number=0):
    out = io.BytesIO()
    photo(number).save(out, "JPEG")
    return out.getvalue()


def test_models_say_what_they_have_and_lack(client):
    three, zero = client.get("/api/models").json()
    assert (three["id"], three["order"], three["method"], three["image_size"]) == ("a", 3, "rank", 32)
    assert three["has"] == {
        "students": True, "fusion": True, "gates": True, "dense": False, "heads": True, "teacher_cache": False
    }  # fmt: skip
    assert zero["order"] == 0 and not any(zero["has"].values()) and zero["rows"] == PAIRS - 1
    assert any("order 0" in sentence for sentence in zero["lacks"])
    assert any("no students" in sentence for sentence in zero["lacks"])


def test_the_set_counts_images_captions_and_damage(client):
    found = client.get("/api/set").json()
    assert found == {
        "name": "pairs", "split": "all", "images": PAIRS, "captions": 25, "known_pairs": True, "damaged": 1
    }  # fmt: skip


@pytest.mark.parametrize(("size", "longest"), [(16, 16), (40, 40), (160, 61), (1024, 61)])
def test_images_are_jpegs_within_the_size(client, size, longest):
    answer = client.get(f"/api/image/1?size={size}")
    picture = Image.open(io.BytesIO(answer.content))
    assert answer.headers["content-type"] == "image/jpeg" and picture.format == "JPEG" and max(picture.size) == longest
    assert "x-damaged" not in answer.headers


def test_a_damaged_photo_is_a_drawn_picture(client):
    answer = client.get(f"/api/image/{DAMAGED}?size=64")
    assert answer.status_code == 200 and answer.headers["x-damaged"] == "1"
    assert Image.open(io.BytesIO(answer.content)).size == (64, 64)
    about = client.get(f"/api/image/{DAMAGED}/about").json()
    assert about["damaged"] and about["size"] is None and about["captions"] == [] and "format" in about["why"]


@pytest.mark.parametrize("path", [f"{PAIRS}", "-1", f"{PAIRS}/about", "99999999999"])
def test_an_index_out_of_range_is_a_404(client, path):
    answer = client.get(f"/api/image/{path}")
    assert answer.status_code == 404 and f"0 to {PAIRS - 1}" in answer.json()["message"]


def test_images_have_no_paths(client):
    for path in ("..%2F..%2Fetc%2Fpasswd", "../pairs/00.jpg", "00.jpg"):
        assert client.get(f"/api/image/{path}").status_code in (404, 422)
    assert client.get("/api/image/1?size=5000").status_code == 422


def test_a_hostile_caption_and_file_name_stay_text(client):
    answer = client.get("/api/image/2/about")
    assert answer.json()["captions"][0] == HOSTILE and "<" not in answer.text and ">" not in answer.text
    named = client.get("/api/image/7/about")
    assert named.json()["key"] == '07"><img src=x>.jpg' and "<img" not in named.text
    assert client.get("/api/search", params={"q": HOSTILE}).json()["query"] == HOSTILE
    assert "<" not in client.get("/api/duel?image=2&k=25").text


def test_search_orders_images_by_cosine(client, state, place):
    found = client.get("/api/search", params={"q": "a red mug", "k": 100, "model": "b"}).json()
    model = load_model(str(place / "runs" / "zero"), "cpu")
    query = model.encode_text(["a red mug"])[0]
    cosines = {
        index: float(model.encode_image(model.preprocess(state.collection.source.image(index))[None])[0] @ query)
        for index in range(PAIRS)
        if index != DAMAGED
    }
    assert [item["index"] for item in found["items"]] == sorted(cosines, key=lambda index: -cosines[index])
    assert [item["rank"] for item in found["items"]] == list(range(1, PAIRS))
    for item in found["items"]:
        assert item["score"] == pytest.approx(cosines[item["index"]], abs=1e-5)
        assert item["caption"] == state.collection.captions_at(item["index"])[0]


def test_a_photo_of_the_set_finds_itself(client, state):
    answer = client.post("/api/search/photo?k=3", content=state.collection.source.image(5))
    first = answer.json()["items"][0]
    assert answer.status_code == 200 and first["index"] == 5 and first["score"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("params", "words"), [
    ({"q": "   "}, "empty"), ({"q": "x" * 2001}, "2,000"), ({"q": "x", "k": 0}, "between 1 and 100"),
    ({"q": "x", "k": 101}, "between 1 and 100"), ({"q": "x", "model": "c"}, "only a and b"),
])  # fmt: skip
def test_queries_have_limits(client, params, words):
    answer = client.get("/api/search", params=params)
    assert answer.status_code in (404, 422) and words in answer.json()["message"]


def test_damaged_and_missing_uploads_are_refused_in_words(client):
    for path in ("/api/search/photo", "/api/embed/photo"):
        for content in (b"", b"no image at all", jpeg_bytes()[:200]):
            answer = client.post(path, content=content)
            assert answer.status_code == 422 and "photo" in answer.json()["message"]


def test_an_upload_has_a_largest_size_announced_or_not(client, state):
    large = b"\xff" * (state.limits.upload_bytes + 1)
    assert client.post("/api/search/photo", content=large).status_code == 413
    pieces = (large[at : at + 1_000_000] for at in range(0, len(large), 1_000_000))  # no content-length
    answer = client.post("/api/search/photo", content=pieces)
    assert answer.status_code == 413 and "16 MB" in answer.json()["message"]


def test_an_upload_of_too_many_pixels_is_refused_before_it_is_decoded(client):
    out = io.BytesIO()
    Image.new("1", (9000, 9000)).save(out, "PNG")
    answer = client.post("/api/embed/photo", content=out.getvalue())
    assert len(out.getvalue()) < 100_000 and answer.status_code == 413 and "40 million" in answer.json()["message"]


def test_embeddings_are_the_models(client, place):
    model = load_model(str(place / "runs" / "three"), "cpu")
    rows = client.post("/api/embed", json={"model": "a", "texts": ["a boat", "two dogs"]}).json()["rows"]
    np.testing.assert_allclose(rows, model.encode_text(["a boat", "two dogs"]).numpy(), atol=1e-6)
    row = client.post("/api/embed/photo?model=a", content=jpeg_bytes(3)).json()["row"]
    np.testing.assert_allclose(row, model.encode_image(model.preprocess(jpeg_bytes(3))[None])[0].numpy(), atol=1e-6)


def test_texts_to_embed_are_bounded(client):
    for texts in ([], ["x"] * 257, [""]):
        assert client.post("/api/embed", json={"model": "a", "texts": texts}).status_code == 422
    assert client.post("/api/embed", content=b"{").status_code == 422


def test_more_work_than_can_wait_is_refused_with_a_time(place):
    busy = served([place / "runs" / "zero"], place / "pairs", place / "store", limits=Limits(threads=1, waiting=0))
    busy.prepare()
    busy.worker._pending = 1  # one request is under way
    answer = client_of(busy).get("/api/search", params={"q": "x"})
    assert (
        answer.status_code == 503 and answer.headers["retry-after"] == "1" and "ask again" in answer.json()["message"]
    )
    busy.worker._pending = 0
    assert client_of(busy).get("/api/search", params={"q": "x"}).status_code == 200


def test_nearest_and_ranks_equal_the_loops():
    draw = np.random.default_rng(0)
    for _ in range(20):
        scores = draw.integers(0, 6, 40).astype(np.float32)  # many ties
        order = sorted(range(40), key=lambda n: (-scores[n], n))
        assert nearest(scores, 7).tolist() == order[:7] and nearest(scores, 99).tolist() == order
        assert ranks_of(scores, np.arange(40)) == [order.index(n) + 1 for n in range(40)]
