"""One image's tokens, gates and words; planes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dinorankclip.evaluate.examples import project
from dinorankclip.models.fusion import Fused
from dinorankclip.models.joint import Encoded, details_of
from dinorankclip.models.loaded import load_model
from dinorankclip.serve.tokens import colours, enlarged, tokens_of_gram
from tests.serve.serving import DAMAGED, PAIRS


@pytest.fixture(scope="module")
def looked(state, place):
    """What the model itself says of image 3."""
    model = load_model(str(place / "runs" / "three"), "cpu")
    pixels = model.preprocess(state.collection.source.image(3))[None]
    return model, pixels, model.look(pixels)


def test_gate_and_angle_are_the_models_own(client, looked):
    _, _, details = looked
    gate = client.get("/api/inside/3?model=a").json()["gate"]
    values = details.gate[0].numpy()
    assert gate["angle"] == pytest.approx(float(details.angle[0]), abs=1e-6) and gate["dimensions"] == len(values) == 32
    assert gate["mean"] == pytest.approx(values.mean(), abs=1e-6) and gate["open"] == (values > 0.5).sum()
    assert sum(gate["values_histogram"]["counts"]) == 32 and len(gate["values_histogram"]["edges"]) == 21
    assert {entry["dimension"]: entry["value"] for entry in gate["largest"]} == pytest.approx(
        {int(at): float(values[at]) for at in np.argsort(-values, kind="stable")[:12]}
    )


def test_the_bound_of_the_angle_is_that_of_the_proposition(client, looked):
    model, pixels, _ = looked
    with torch.inference_mode():
        encoded = model.parts.see(model.parts.normalised(pixels))
    ratio = float(encoded.fused.gate.abs().max() * encoded.fused.residual.norm() / encoded.contrastive.norm())
    gate = client.get("/api/inside/3").json()["gate"]
    assert gate["angle_bound"] == pytest.approx(np.degrees(np.arcsin(ratio)), abs=1e-4)
    assert gate["angle"] <= gate["angle_bound"]


def test_sources_and_colours(client):
    found = client.get("/api/inside/3").json()
    assert found["sources"] == ["trunk", "student"] and found["grid"] == [4, 4]
    for source in found["sources"]:
        values = np.array(found["pca"][source])
        assert values.shape == (16, 3) and values.min(0).tolist() == [0, 0, 0] and values.max(0).tolist() == [255] * 3


@pytest.mark.parametrize("source", ["trunk", "student"])
def test_a_patch_has_its_cosines_with_all_patches(client, looked, source):
    tokens = (looked[2].trunk_tokens if source == "trunk" else looked[2].tokens)[0].flatten(0, 1)
    found = client.get(f"/api/inside/3/patch?source={source}&patch=6").json()["map"]
    expected = [float(F.cosine_similarity(tokens[6], token, dim=0)) for token in tokens]
    assert found == pytest.approx(expected, abs=1e-5) and found[6] == pytest.approx(1) and max(found) <= 1
    assert found != client.get(f"/api/inside/3/patch?source={source}&patch=7").json()["map"]


def test_words_are_compared_with_projected_patches(client, looked):
    model, pixels, _ = looked
    found = client.get("/api/inside/3/words", params={"q": "a boat"}).json()
    with torch.inference_mode():
        visual = model.parts.trunk.towers.visual
        tokens = visual._embeds(model.parts.normalised(pixels))
        for block in visual.transformer.resblocks:
            tokens = block(tokens)
        patches = F.normalize(visual.ln_post(tokens)[0, 1:] @ visual.proj, dim=-1)
    text = model.read(["a boat"]).contrastive[0]
    assert found["source"] == "trunk" and found["map"] == pytest.approx((patches @ text).tolist(), abs=1e-5)


def test_a_model_without_students_says_so(client):
    found = client.get("/api/inside/3?model=b").json()
    assert found["sources"] == ["trunk"] and found["gate"] is None
    for words in ("no students", "no fusion", "No teacher"):
        assert any(words in sentence for sentence in found["lacks"])
    answer = client.get("/api/inside/3/patch?model=b&source=student&patch=1")
    assert answer.status_code == 409 and "only trunk" in answer.json()["message"]


@pytest.mark.parametrize(("path", "status"), [
    (f"{PAIRS}", 404), (f"{DAMAGED}", 409), ("3/patch?patch=16", 404), ("3/patch?patch=-1", 404), ("3?model=z", 404),
    ("3/words?q=", 422), ("3/patch", 422),
])  # fmt: skip
def test_what_is_not_there_is_refused(client, path, status):
    answer = client.get(f"/api/inside/{path}")
    assert answer.status_code == status and answer.json()["message"]


def test_a_coarser_map_is_enlarged_by_the_nearest_patch():
    assert enlarged(torch.tensor([[1, 2], [3, 4]]), (4, 4)).tolist() == [1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4]
    assert enlarged(torch.arange(9).view(3, 3), (3, 3)).tolist() == list(range(9))


def test_tokens_of_a_gram_have_its_cosines_and_colours():
    tokens = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    same = tokens_of_gram(tokens @ tokens.T)
    torch.testing.assert_close(same @ same.T, tokens @ tokens.T, atol=1e-4, rtol=1e-4)
    one, other = (colours(rows.view(3, 3, -1)).reshape(9, 3).astype(int) for rows in (tokens, same))
    for channel in range(3):  # the same component, up to its sign
        difference = min(abs(one - other)[:, channel].max(), abs(255 - one - other)[:, channel].max())
        assert difference <= 1


def test_colours_of_equal_tokens_are_no_error():
    assert colours(torch.ones(2, 2, 7)).tolist() == [[[0, 0, 0]] * 2] * 2


def test_the_angle_is_of_the_fused_part_alone():
    """An aligned model puts the starter's embedding beside the fused one."""
    v, fused = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    encoded = Encoded(torch.tensor([[9.0, 9.0, 1.0, 1.0]]), v, None, Fused(fused, fused - v, torch.ones(1, 2)))
    assert float(details_of(encoded).angle[0]) == pytest.approx(45.0, abs=1e-4)


def test_planes_share_their_images(client, state):
    found = client.get("/api/plane").json()
    assert found["indexes"] == state.collection.usable.tolist() and found["note"] is None
    for id in "ab":
        expected = project({"images": torch.from_numpy(np.array(state.rows[id].images))})
        np.testing.assert_allclose(found["points"][id], expected.points["images"], atol=1e-6)
        assert found["explained"][id] == pytest.approx(expected.explained)
    some = client.get("/api/plane?rows=5").json()
    assert len(some["indexes"]) == len(some["points"]["b"]) == 5 and "5 of 12" in some["note"]


def test_a_plane_without_its_extra_says_so(client, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = client.get("/api/plane?kind=umap")
    assert answer.status_code == 409 and "dinorankclip[umap]" in answer.json()["message"]
    assert client.get("/api/plane?kind=tsne").status_code == 422
