"""Evaluation sees every pair once, in order, whole."""

import torch
from pair_making import ListSource, jpeg, raw

from dinorankclip.data.damage import DamageCount
from dinorankclip.data.decode import decode
from dinorankclip.data.loader import iterate_pairs
from dinorankclip.data.samples import render_whole
from dinorankclip.types import ImageSpec


def test_in_order_with_damaged_ones_left_out():
    source = ListSource([raw(n) if n % 10 else "corrupt" for n in range(50)])
    damage = DamageCount(max_damaged=1.0)
    found = list(iterate_pairs(source, ImageSpec(24), batch=16, damage=damage))
    assert [len(keys) for keys, _, _ in found] == [16, 16, 13]
    assert [key for keys, _, _ in found for key in keys] == [f"k{n}" for n in range(50) if n % 10]
    assert damage.by_cause == {"corrupt": 5} and damage.seen == 50
    assert found[0][1].shape == (16, 3, 24, 24) and found[0][1].dtype == torch.uint8
    assert found[2][2][0] == ("one", "two")
    pixels = decode(jpeg(1))
    assert torch.equal(found[0][1][0], render_whole(pixels, 24))


def test_stopping_early_leaves_no_thread_waiting():
    for keys, _, _ in iterate_pairs(ListSource([raw(n) for n in range(50)]), ImageSpec(24), batch=8):
        assert len(keys) == 8
        break
