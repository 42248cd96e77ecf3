"""The bridge from class probabilities to caption space: loops, values by hand, gradients, and its tables."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.models import class_name_bridge as bridge
from dinorankclip.types import UserError


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(row):
    return row / math.sqrt(float((row * row).sum()))


def slow_directions(names, descriptions, described, share):
    middles = []
    for c in range(len(names)):
        middle = unit(sum(unit(row) for row in names[c]))
        own = [unit(row) for row, of in zip(descriptions, described.tolist()) if of == c]
        if own:
            middle = (1 - share) * middle + share * sum(own) / len(own)
        middles.append(middle)
    return torch.stack([middle - sum(middles) / len(middles) for middle in middles])


def slow_embedding(logits, directions, sharpness):
    rows = []
    for row in logits.tolist():
        weights = [math.exp(sharpness * z) for z in row]
        rows.append(unit(sum(w / sum(weights) * d for w, d in zip(weights, directions))))
    return torch.stack(rows)


@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_directions_as_loops(share):
    names, descriptions, described = drawn(6, 3, 5), drawn(4, 5, seed=1), torch.tensor([2, 0, 2, 5])
    found = bridge.class_directions(names, descriptions, described, share)
    torch.testing.assert_close(found, slow_directions(names, descriptions, described, share))
    torch.testing.assert_close(found.mean(0), torch.zeros(5, dtype=torch.float64))


def test_directions_by_hand():
    names = torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[0.0, 2.0], [0.0, 1.0]]])  # units: (1, 1)/√2 and (0, 1)
    half = 0.5**0.5
    plain = bridge.class_directions(names, torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    torch.testing.assert_close(plain, torch.tensor([[half / 2, (half - 1) / 2], [-half / 2, (1 - half) / 2]]))
    # The second class is described by (1, 0): halfway from its name (0, 1) it is (0.5, 0.5).
    found = bridge.class_directions(names, torch.tensor([[5.0, 0.0]]), torch.tensor([1]), share=0.5)
    apart = (half - 0.5) / 2
    torch.testing.assert_close(found, torch.tensor([[apart, apart], [-apart, -apart]]))


def test_an_embedding_as_loops():
    logits, directions = 3 * drawn(7, 6), drawn(6, 5, seed=1)
    for sharpness in (0.6, 1.0, 4.0):
        found = bridge.class_name_embedding(logits, directions, sharpness)
        torch.testing.assert_close(found, slow_embedding(logits, directions, sharpness))


def test_an_embedding_by_hand():
    logits = torch.tensor([[math.log(9.0), 0.0]])  # at sharpness ½ the probabilities are 3/4 and 1/4
    found = bridge.class_name_embedding(logits, torch.tensor([[4.0, 0.0], [0.0, 16.0]]), sharpness=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8]]))


def test_a_sure_classifier_gives_the_direction_of_its_class():
    directions = drawn(6, 5)
    found = bridge.class_name_embedding(1e4 * torch.eye(6, dtype=torch.float64), directions)
    torch.testing.assert_close(found, F.normalize(directions, dim=-1))


def test_gradients():
    logits, directions = drawn(3, 4).requires_grad_(), drawn(4, 5, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(bridge.class_name_embedding, (logits, directions))
    names, descriptions = drawn(4, 2, 5).requires_grad_(), drawn(3, 5, seed=1).requires_grad_()
    described = torch.tensor([1, 1, 3])
    assert torch.autograd.gradcheck(lambda n, s: bridge.class_directions(n, s, described), (names, descriptions))


def test_the_names_are_those_of_open_clip_and_cost_no_import_of_it():
    names = bridge.imagenet_names()
    assert len(names) == 1000 and (names[0], names[1], names[207]) == ("tench", "goldfish", "Golden Retriever")
    code = "import sys; from dinorankclip.models.class_name_bridge import imagenet_names as n; n(); "
    code += "sys.exit('open_clip' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_missing_names_are_a_clear_message(monkeypatch):
    monkeypatch.setattr(bridge.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install open_clip_torch"):
        bridge.imagenet_names()


def test_descriptions_fit_the_names_of_their_classes():
    descriptions, names = bridge.people_in_classes(), bridge.imagenet_names()
    people = {"person", "people", "man", "woman", "baby", "child", "gymnast", "guard", "soldier", "priest", "boxer"}
    assert all(people & set(sentence.split()) for sentence in descriptions.values())
    known = {414: "backpack", 486: "cello", 617: "lab coat", 671: "mountain bike", 981: "baseball", 978: "beach"}
    assert all(word in descriptions[index] and word in names[index] for index, word in known.items())
    shared = [i for i, text in descriptions.items() if set(text.lower().split()) & set(names[i].lower().split())]
    assert len(shared) > 0.7 * len(descriptions)  # an index that slipped would share no word


def test_imagenet_directions_put_each_sentence_in_its_place():
    asked = []

    def encode(sentences):
        asked.append(list(sentences))
        return torch.stack([drawn(8, seed=sum(map(ord, sentence))) for sentence in sentences])

    found = bridge.imagenet_directions(encode)
    assert found.shape == (1000, 8) and asked[0][3:6] == ["goldfish", "a photo of a goldfish.", "a goldfish"]
    names = encode(asked[0]).reshape(1000, 3, 8)
    described = torch.tensor(list(bridge.people_in_classes()))
    torch.testing.assert_close(found, slow_directions(names, encode(asked[1]), described, bridge.DESCRIPTION_SHARE))
