"""Sealed scenes: swaps are wrong and read well, new combinations are new."""

import re

import torch

from bench.sealed_scenes import Swap, combinations_of, new_combinations, sealed_scenes, swap_scores, swaps_of
from dinorankclip.data.scenes.relevance import caption_relevance_matrix
from dinorankclip.data.scenes.scene import Scene, Thing


def thing(kind, x, y=0.5):
    return Thing(kind, "red", "plain", "small", x, y, 0.26)


def test_swaps_change_two_words_or_one_and_are_wrong():
    scenes = sealed_scenes(11, 60)
    swaps = swaps_of(scenes)
    assert {swap.kind for swap in swaps} == {"sides", "colours"} and len(swaps) > 20
    for swap in swaps:
        assert swap.right in scenes[swap.image].captions and swap.wrong != swap.right
        right, wrong = (re.sub(r"\b[Aa]n?\b", "a", text).split() for text in (swap.right, swap.wrong))
        changed = [(a, b) for a, b in zip(right, wrong) if a != b]
        assert len(right) == len(wrong) and len(changed) == (1 if swap.kind == "sides" else 2)
        if swap.kind == "colours":
            (a, b), (c, d) = ([word.strip(".,;").lower() for word in pair] for pair in changed)
            assert (a, b) == (d, c)
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", swap.wrong.lower())
        true = scenes[swap.image].contents[scenes[swap.image].captions.index(swap.right)]
        assert caption_relevance_matrix([true], [scenes[swap.image].scene])[0, 0] == 1


def test_a_combination_is_new_if_no_training_scene_has_it():
    known = Scene("beach", (thing("mug", 0.2), thing("sofa", 0.8)))
    turned = Scene("beach", (thing("mug", 0.8), thing("sofa", 0.2)))
    assert combinations_of(known) == {("mug", "left", "sofa"), ("sofa", "right", "mug")}
    single = Scene("beach", (thing("mug", 0.2),))
    assert new_combinations([known], [known, turned, single]).tolist() == [1]


def test_swap_scores_count_nearer_captions_and_halve_ties():
    images = torch.eye(3)
    swaps = [Swap(0, "", "", "sides"), Swap(1, "", "", "sides"), Swap(2, "", "", "colours")]
    right, wrong = torch.eye(3), torch.eye(3)[[1, 1, 0]]
    assert swap_scores(images, right, wrong, swaps) == {"swapped sides": 0.75, "swapped colours": 1.0}
