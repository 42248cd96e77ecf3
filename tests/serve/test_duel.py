"""Two models on one query, and on all of them."""

import math
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch

from dinorankclip.evaluate.intervals import compare
from dinorankclip.evaluate.retrieval import alike, ranks, retrieval_scores
from dinorankclip.serve import duel as duel_module
from dinorankclip.serve import long_work
from dinorankclip.serve.answers import Refused
from dinorankclip.serve.duel import Duel, some_queries, verdict_words
from tests.serve.serving import HOSTILE, PAIRS


def slow_ranks(state, id, direction):
    """Ranks, from 1, of every query's best right item, by loops over all pairs."""
    rows, captions = state.rows[id], state.collection.captions
    owners = [image for image, group in enumerate(captions) for _ in group]
    images, texts = rows.images.astype(np.float64), rows.texts.astype(np.float64)
    found = []
    for query in range(len(texts) if direction == "t2i" else len(images)):
        asked, gallery = (texts[query], images) if direction == "t2i" else (images[query], texts)
        right = [owners[query]] if direction == "t2i" else [t for t, owner in enumerate(owners) if owner == query]
        order = sorted(range(len(gallery)), key=lambda g: (-float(asked @ gallery[g]), g))
        found.append(min(order.index(item) for item in right) + 1)
    return np.array(found)


def test_words_are_answered_by_both_models(client):
    found = client.get("/api/duel", params={"q": "a red mug", "k": 5}).json()
    alone = {id: client.get("/api/search", params={"q": "a red mug", "k": 100, "model": id}).json() for id in "ab"}
    assert found["query"] == {"text": "a red mug", "kind": "words", "right": []} and found["right_rank"] is None
    for id, other in (("a", "b"), ("b", "a")):
        place = {item["index"]: item["rank"] for item in alone[other]["items"]}
        assert [item["index"] for item in found[id]] == [item["index"] for item in alone[id]["items"]][:5]
        assert [item["rank_other"] for item in found[id]] == [place[item["index"]] for item in found[id]]
        assert {item["right"] for item in found[id]} == {None}
    both = {item["index"] for item in found["a"]} & {item["index"] for item in found["b"]}
    assert {pair["index"] for pair in found["common"]} == both and found["overlap"] == pytest.approx(len(both) / 5)


def test_a_caption_knows_its_image(client, state):
    found = client.get("/api/duel?caption=4&k=12").json()
    assert found["query"] == {"text": HOSTILE, "kind": "caption", "right": [2], "index": 4}
    for id in "ab":
        right = [item for item in found[id] if item["right"]]
        assert [item["index"] for item in right] == [2] and right[0]["rank"] == found["right_rank"][id]
        assert found["right_rank"][id] == slow_ranks(state, id, "t2i")[4]


def test_an_image_finds_captions(client, state):
    found = client.get("/api/duel?image=2&k=25").json()
    assert found["items_are"] == "captions" and found["query"]["right"] == [4, 5, 6]
    assert found["right_rank"] == {id: int(slow_ranks(state, id, "i2t")[2]) for id in "ab"}
    assert all(item["text"] == state.collection.texts[item["index"]] for item in found["a"])
    assert sorted(item["index"] for item in found["b"]) == list(range(25))


@pytest.mark.parametrize(("query", "status"), [
    ("caption=25", 404), ("caption=-1", 404), (f"image={PAIRS}", 404), ("image=4", 409), ("", 422),
    ("q=x&image=1", 422), ("q=x&k=1000", 422),
])  # fmt: skip
def test_queries_that_do_not_exist_are_refused(client, query, status):
    answer = client.get(f"/api/duel?{query}")
    assert answer.status_code == status and answer.json()["message"]


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_the_summary_is_that_of_a_paired_oracle(client, state, direction):
    found = client.get(f"/api/duel/summary?direction={direction}").json()
    a, b = slow_ranks(state, "a", direction), slow_ranks(state, "b", direction)
    captions = state.collection.captions
    clusters = alike(captions) if direction == "i2t" else alike(captions)[state.collection.owner]
    assert found["n"] == len(a) == {"t2i": 25, "i2t": 12}[direction]
    for k in (1, 5, 10):
        score, expected = found["scores"][f"R@{k}"], compare(a <= k, b <= k, clusters)
        assert score["a"] == pytest.approx((a <= k).mean()) and score["b"] == pytest.approx((b <= k).mean())
        assert score["difference"] == pytest.approx((b <= k).mean() - (a <= k).mean())
        assert (score["low"], score["high"]) == (expected.low, expected.high)
    assert (found["won"], found["lost"], found["tied"]) == ((b < a).sum(), (b > a).sum(), (b == a).sum())
    assert found["median_rank"] == {"a": np.median(a), "b": np.median(b)}
    assert found["words"].startswith(("B finds", "No difference shown"))


def test_the_summary_is_that_of_the_compare_command(client, state):
    """`compare` reads stored items; here they are those that `score` would store."""
    stored = []
    for id in "ab":
        images, texts = (torch.from_numpy(np.array(rows)) for rows in (state.rows[id].images, state.rows[id].texts))
        stored.append({score.name: score for score in retrieval_scores(images, texts, state.collection.captions)})
    for direction in ("t2i", "i2t"):
        summary = client.get(f"/api/duel/summary?direction={direction}").json()
        for k in (1, 5, 10):
            a, b = (scores[f"{direction} R@{k}"] for scores in stored)
            items = [each.items.astype(np.float32) for each in (a, b)]  # as scores_items.npz holds them
            difference = compare(*items, a.clusters, level=0.95, draws=1000)
            shown = summary["scores"][f"R@{k}"]
            assert shown["a"] == pytest.approx(a.value) and shown["b"] == pytest.approx(b.value)
            assert (shown["difference"], shown["low"], shown["high"], shown["verdict"]) == (
                difference.mean, difference.low, difference.high, difference.verdict
            )  # fmt: skip


def test_won_and_lost_queries_are_listed_by_their_change(client, state):
    a, b = slow_ranks(state, "a", "t2i"), slow_ranks(state, "b", "t2i")
    for outcome, kept in (("won", b < a), ("lost", b > a), ("all", a > 0)):
        found = client.get(f"/api/duel/queries?outcome={outcome}&limit=200").json()
        assert found["total"] == kept.sum() == len(found["items"])
        for item in found["items"]:
            assert (item["rank_a"], item["rank_b"]) == (a[item["query"]], b[item["query"]])
            assert item["text"] == state.collection.texts[item["query"]]
        change = [abs(math.log(item["rank_a"] / item["rank_b"])) for item in found["items"]]
        assert change == sorted(change, reverse=True)
        page = client.get(f"/api/duel/queries?outcome={outcome}&offset=2&limit=3").json()
        assert page["items"] == found["items"][2:5] and page["total"] == found["total"]


def test_queries_of_images_are_named_by_their_index(client):
    found = client.get("/api/duel/queries?direction=i2t&limit=200").json()
    assert sorted(item["query"] for item in found["items"]) == [index for index in range(PAIRS) if index != 4]


def test_one_model_is_no_duel(alone):
    for path in ("/api/duel?q=x", "/api/duel/summary", "/api/duel/queries"):
        answer = alone.get(path)
        assert answer.status_code == 409 and "two models" in answer.json()["message"]


def test_a_large_set_is_compared_on_some_queries_and_says_so(state, monkeypatch):
    whole = Duel(state).ranks("t2i")
    monkeypatch.setattr(duel_module, "MOST_SIMILARITIES", 10 * len(state.collection.usable))
    some = Duel(state)
    ranks = some.ranks("t2i")
    assert len(ranks.queries) == 10 and np.array_equal(ranks.a, whole.a[ranks.queries])
    assert np.array_equal(ranks.b, whole.b[ranks.queries]) and "10 of 25 queries" in some.summary("t2i")["words"]


def test_a_long_comparison_says_how_far_it_is_and_ends_with_the_server(client, state, monkeypatch):
    go_on, wanted = threading.Event(), client.get("/api/duel/summary").json()
    monkeypatch.setattr(long_work, "PATIENCE", 0.0)
    monkeypatch.setattr(duel_module, "ranks", partial(ranks, chunk=10))
    slow = Duel(state)
    work = slow._works["t2i"]
    advance = work._advance

    def wait(done, total):
        advance(done, total)
        assert go_on.wait(20)

    monkeypatch.setattr(work, "_advance", wait)
    monkeypatch.setitem(state.__dict__, "duel", slow)
    answers = []
    until = time.monotonic() + 20
    while not (answers and answers[-1].json()["message"].endswith(": 5 of 25")) and time.monotonic() < until:
        answers.append(client.get("/api/duel/summary"))
    assert {answer.status_code for answer in answers} == {202} and answers[-1].headers["retry-after"] == "1"
    assert answers[-1].json()["message"] == "comparing both models on all captions: 5 of 25"
    go_on.set()
    assert work._ended.wait(20) and client.get("/api/duel/summary").json() == wanted

    stopped = Duel(state)
    monkeypatch.setattr(state, "stopping", go_on)
    with pytest.raises(Refused, match="comparing both models"):
        stopped.ranks("t2i")
    assert stopped._works["t2i"]._ended.wait(20) and stopped._works["t2i"].peek() is None


def test_right_items_of_some_queries(state):
    right = state.collection.right.texts
    chosen = np.array([5, 2, 9])
    assert [some_queries(right, chosen).of(at) for at in range(3)] == [right.of(5), right.of(2), right.of(9)]


def test_the_verdict_in_words():
    draw = np.random.default_rng(0)
    low, high = draw.random(400) < 0.2, draw.random(400) < 0.6
    assert verdict_words(compare(low, high), "captions").startswith("B finds more: +")
    assert verdict_words(compare(high, low), "images").startswith("B finds less: −")
    assert "these captions would show" in verdict_words(compare(low, np.roll(low, 1)), "captions")
