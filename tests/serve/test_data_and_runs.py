"""Queues of doubtful data, and runs."""

import io
import itertools
import json
import os
import time

import pytest

from dinorankclip.data.duplicates import groups_within, looks_of
from dinorankclip.serve.runs import MOST_POINTS, Runs, _thinned
from tests.models.model_making import photo
from tests.serve.serving import DAMAGED, client_of, served, write_run

SLOW = 20.0


def waited(client, path):
    """The answer, once the queue is made."""
    until = time.monotonic() + SLOW
    while (answer := client.get(path)).status_code == 202:
        assert time.monotonic() < until and answer.headers["retry-after"] == "1"
        time.sleep(0.02)
    return answer


@pytest.fixture(scope="module")
def doubtful(place, tmp_path_factory):
    """Pairs with a copy of a photo in another size, and a caption that is too long."""
    folder = tmp_path_factory.mktemp("doubtful") / "pairs"
    folder.mkdir()
    for number in range(5):
        photo(number, 128, 96).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"scene {number}" + " and more" * 200 * (number == 3) + "\n")
    photo(2, 128, 96).resize((96, 72)).save(folder / "copy.jpg")
    (folder / "copy.txt").write_text("a copy\n")
    state = served([place / "runs" / "zero"], folder, place / "store")
    state.prepare()
    return client_of(state)


def test_queues_are_counted(client):
    waited(client, "/api/data/near-duplicates")
    waited(client, "/api/data/cut-captions")
    queues = {queue["name"]: queue for queue in client.get("/api/data").json()["queues"]}
    assert {name: queue["count"] for name, queue in queues.items()} == {
        "damaged": 1, "near-duplicates": 0, "lowest-cosine": 25, "cut-captions": 0
    }  # fmt: skip
    assert all(queue["about"] and queue["progress"] is None for queue in queues.values())


def test_damaged_images_have_a_cause(client):
    found = client.get("/api/data/damaged").json()
    assert found["total"] == 1 and found["items"][0]["index"] == DAMAGED and found["items"][0]["key"] == "04.jpg"
    assert found["items"][0]["why"] == "no known image format"


def test_near_duplicates_form_groups(doubtful):
    found = waited(doubtful, "/api/data/near-duplicates").json()
    assert found["total"] == 2 and {item["group"] for item in found["items"]} == {1}
    assert [item["key"] for item in found["items"]] == ["2.png", "copy.jpg"]
    assert "2.png" in found["items"][1]["why"]


def test_cut_captions_are_found(doubtful):
    found = waited(doubtful, "/api/data/cut-captions").json()
    assert [item["key"] for item in found["items"]] == ["3.png"] and "of at most 77 tokens" in found["items"][0]["why"]


def test_the_lowest_cosines_come_first(client, state):
    found = client.get("/api/data/lowest-cosine?limit=200").json()
    rows, owner = state.rows["a"], state.collection.owner
    cosines = [float(rows.texts[t] @ rows.images[owner[t]]) for t in range(len(owner))]
    assert [item["caption"] for item in found["items"]] == sorted(range(25), key=lambda t: (cosines[t], t))
    page = client.get("/api/data/lowest-cosine?offset=20&limit=10").json()
    assert page["items"] == found["items"][20:] and page["total"] == 25


def test_ticked_keys_are_exported_and_only_keys_of_the_set(client):
    answer = client.post("/api/data/export", json={"keys": ["02.jpg", '07"><img src=x>.jpg', "02.jpg"]})
    assert answer.text == '02.jpg\n07"><img src=x>.jpg\n' and answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"].startswith("attachment")
    answer = client.post("/api/data/export", json={"keys": ["../../etc/passwd"]})
    assert answer.status_code == 404 and "not in the set" in answer.json()["message"]


def test_unknown_queues_and_pages_are_refused(client):
    assert client.get("/api/data/nothing").status_code == 404
    assert client.get("/api/data/damaged?limit=1000").status_code == 422
    assert client.get("/api/data/damaged?offset=-1").status_code == 422


def test_stopping_ends_long_work(place):
    state = served([place / "runs" / "zero"], place / "pairs", place / "store")
    state.prepare()
    state.stopping.set()
    assert state.queues.all()["queues"][1]["count"] is None  # near-duplicates have begun
    work = state.queues._queues["near-duplicates"].make
    assert state.all_ended(SLOW) and work.peek() is None and not work._failed


def test_copies_in_other_sizes_are_grouped():
    class Pictures:
        def __len__(self):
            return 8

        def key(self, index):
            return str(index)

        def image(self, index):
            out = io.BytesIO()
            size = (128, 96) if index % 3 else (100, 75)
            photo(index // 2 if index < 6 else index).resize(size).save(out, "PNG")
            return out.getvalue()

    assert groups_within(looks_of(Pictures())) == [[0, 1], [2, 3], [4, 5]]


def test_runs_are_listed_with_their_last_numbers(client):
    runs = {run["name"]: run for run in client.get("/api/runs").json()}
    assert set(runs) == {"three", "zero"} and runs["three"]["method"] == "rank"
    assert runs["zero"]["step"] == 9 and runs["zero"]["last"] == {"loss": 2.1, "epoch": 2.25}
    assert all("/" not in run["id"] for run in runs.values())


def test_curves_are_the_log(client):
    run = next(run for run in client.get("/api/runs").json() if run["name"] == "three")
    series = client.get(f"/api/runs/{run['id']}/curves").json()["series"]
    assert series["loss"] == [[step, pytest.approx(3.0 - step / 10)] for step in range(1, 10)]
    assert client.get("/api/runs/nothing/curves").status_code == 404
    assert client.get("/api/runs/..%2Fthree/curves").status_code == 404


def test_states_of_runs_and_runs_of_studies(tmp_path):
    finished = write_run(tmp_path / "study" / "cells" / "one", 0, None)
    (finished / "scores.json").write_text('{"step": 9, "scores": {}}')
    failed = write_run(tmp_path / "two", 0, None)
    (failed / "ended.json").write_text('{"how": "diverged"}')
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "config.json").write_text("{")
    (tmp_path / "three" / "metrics.jsonl").write_text("half a li")
    states = {run["name"]: run["state"] for run in Runs(tmp_path).all()}
    assert states == {"study/cells/one": "finished", "two": "diverged", "three": "running"}
    assert Runs(tmp_path / "nowhere").all() == []


def test_events_come_when_a_run_has_logged(tmp_path):
    run, known = write_run(tmp_path / "one", 0, None), {}
    runs = Runs(tmp_path)
    assert [each["step"] for each in runs.changed(known)] == [9] and runs.changed(known) == []
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 10, "loss": 0.5}) + "\n")
    later = time.time() + 1
    os.utime(run / "metrics.jsonl", (later, later))
    assert [(each["step"], each["last"]["loss"]) for each in runs.changed(known)] == [(10, 0.5)]


def test_long_curves_are_thinned_and_keep_their_end():
    points = [[float(step), 0.0] for step in range(4000)]
    thin = _thinned(points)
    assert len(thin) <= MOST_POINTS and thin[-1] == points[-1]
    assert len({after[0] - before[0] for before, after in itertools.pairwise(thin)}) == 1
