"""Lists under every order, against the loops of the losses' tests."""

import math

import numpy as np
import pytest
import torch

from dinorankclip.serve.served_model import ServedModel
from tests.losses.list_oracle import Oracle
from tests.serve.serving import client_of, served, write_run

ITEMS = [1, 2, 3, 5, 8, 11]


def ask(client, **asked):
    answer = client.post(
        "/api/lists", json={"model": "a", "from": "image", "anchor": 1, "items": ITEMS, "order": 1} | asked
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def material(state, by, model="a"):
    """θ and the reference similarities of the list, and rows of the ranked items, by loops."""
    rows, collection = state.rows[model], state.collection
    first = {int(place): int(np.flatnonzero(collection.owner == row)[0]) for row, place in enumerate(collection.usable)}
    row = {int(place): at for at, place in enumerate(collection.usable)}
    image, text = {i: rows.images[row[i]] for i in row}, {i: rows.texts[first[i]] for i in row}
    asking, ranked = (image, text) if by == "image" else (text, image)
    scale = float(state.models[model].loaded.parts.scale())
    theta = [scale * float(asking[1].astype(np.float64) @ ranked[item]) for item in ITEMS]
    other = [float(ranked[1].astype(np.float64) @ asking[item]) for item in ITEMS]
    return theta, other, torch.from_numpy(np.stack([ranked[item] for item in ITEMS]))


@pytest.mark.parametrize("by", ["image", "caption"])
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_the_likelihood_is_that_of_the_slow_oracle(client, state, by, order):
    found = ask(client, order=order, **{"from": by})
    theta, other, items = material(state, by)
    reference = sorted(range(len(ITEMS)), key=lambda d: (-other[d], d))
    heads = state.models["a"].ranking.transitions["text" if by == "image" else "image"]
    oracle = Oracle(heads.state_dict(), items, order, heads.item_scale)
    assert found["theta"] == pytest.approx(theta, abs=1e-4)
    assert found["reference"] == [ITEMS[place] for place in reference]
    assert found["nll"] == pytest.approx(-oracle.log_probability(theta, reference), abs=2e-4)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_steps_are_greedy_and_their_product_is_the_likelihood_of_the_sorted_list(client, state, order):
    found = ask(client, order=order)
    theta, _, items = material(state, "image")
    heads = state.models["a"].ranking.transitions["text"]
    oracle = Oracle(heads.state_dict(), items, order, heads.item_scale)
    log = 0.0
    for step, chosen in zip(found["steps"], found["sorted"]):
        shares = step["probabilities"]
        assert step["chosen"] == chosen and sum(shares.values()) == pytest.approx(1)
        assert shares[str(chosen)] == max(shares.values())
        log += math.log(shares[str(chosen)])
    assert sorted(found["sorted"]) == sorted(ITEMS) and len(found["steps"]) == len(ITEMS)
    places = [ITEMS.index(item) for item in found["sorted"]]
    assert log == pytest.approx(oracle.log_probability(theta, places), abs=2e-4)


def test_order_zero_is_uniform_and_its_likelihood_a_constant(client):
    found = ask(client, order=0)
    assert found["sorted"] == ITEMS and found["nll"] == pytest.approx(math.log(math.factorial(6)))
    assert list(found["steps"][0]["probabilities"].values()) == pytest.approx([1 / 6] * 6)


def test_transitions_appear_with_their_order(client, state):
    one, two, three = (ask(client, order=order) for order in (1, 2, 3))
    assert one["beta"] is None and one["gamma"] is None and two["gamma"] is None
    _, _, items = material(state, "image")
    heads = state.models["a"].ranking.transitions["text"]
    expected = heads.centred_pairs(items).numpy()
    found = np.array(two["beta"], float)
    assert np.isnan(np.diag(found)).all() and np.isnan(found).sum() == len(ITEMS)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    before = ITEMS.index(three["gamma_before"])
    np.testing.assert_allclose(np.array(three["gamma"], float), heads.centred_triples(items, before).numpy(), atol=1e-4)
    assert three["gamma_before"] == three["sorted"][0]


def test_orders_have_gates_and_inert_orders_say_why(client):
    orders = ask(client)["orders"]
    assert [entry["order"] for entry in orders] == [0, 1, 2, 3]
    assert [entry["lambda"] for entry in orders] == [0.0, 1.0, 0.5, 0.5]
    assert [entry["inert"] for entry in orders] == [False, False, False, True]  # by the log of the run
    assert "0.001" in orders[3]["why"]


def test_a_closed_gate_is_inert_on_the_list_itself(place, tmp_path):
    run = write_run(tmp_path / "closed", 2, None, 3, opened=-12.0)
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    state = served([run], place / "pairs", place / "store")
    state.prepare()
    found = ask(client_of(state), order=2)
    assert found["orders"][2]["inert"] and "On this list" in found["orders"][2]["why"]
    assert found["sorted"] == ask(client_of(state), order=1)["sorted"]


def test_a_model_of_order_zero_says_what_it_lacks(client):
    found = ask(client, model="b", order=1)
    assert [entry["order"] for entry in found["orders"]] == [0, 1] and "learnt no lists" in found["orders"][1]["why"]
    answer = client.post("/api/lists", json={"model": "b", "anchor": 1, "items": ITEMS, "order": 2})
    assert answer.status_code == 409 and "learnt no lists" in answer.json()["message"]


def test_heads_that_were_not_kept_are_named(place, tmp_path):
    run = write_run(tmp_path / "lost", 3, None, 4)
    (run / "checkpoints" / "step-9" / "training.safetensors").unlink()
    state = served([run], place / "pairs", place / "store")
    state.prepare()
    client = client_of(state)
    found = ask(client, order=1)
    assert [entry["inert"] for entry in found["orders"]] == [False, False, True, True]
    answer = client.post("/api/lists", json={"anchor": 1, "items": ITEMS, "order": 3})
    assert answer.status_code == 409 and "heads are not here" in answer.json()["message"]
    assert isinstance(state.models["a"], ServedModel) and not state.models["a"].has()["heads"]


@pytest.mark.parametrize(("change", "status"), [
    ({"items": [1, 2, 3]}, 422), ({"items": list(range(17))}, 422), ({"items": [1, 1, 2, 3]}, 422),
    ({"items": [1, 2, 3, 4]}, 409), ({"items": [1, 2, 3, 99]}, 404), ({"anchor": 99}, 404), ({"order": 4}, 409),
    ({"order": -1}, 422), ({"from": "sound"}, 422), ({"model": "z"}, 404),
])  # fmt: skip
def test_lists_that_cannot_be_are_refused(client, change, status):
    asked = {"model": "a", "from": "image", "anchor": 1, "items": ITEMS, "order": 1} | change
    answer = client.post("/api/lists", json=asked)
    assert answer.status_code == status and answer.json()["message"]
