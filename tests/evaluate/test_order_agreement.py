import pytest
import torch
import torch.nn.functional as F

from dinorankclip.evaluate.rank_metrics import order_agreement
from tests.evaluate.slow_orders import slow_kendall, slow_spearman


def units(*shape, seed=0):
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def cosines(a, b):
    return ((a @ b.T) * 1e6).round().tolist()


def test_every_pair_follows_the_loops():
    image, text = units(9, 3), units(9, 3, seed=1)
    found, drawn = order_agreement(image, text, chunk=4)
    assert drawn.tolist() == list(range(9))
    ii, tt, it, ti = cosines(image, image), cosines(text, text), cosines(image, text), cosines(text, image)
    for i in range(9):
        others = [j for j in range(9) if j != i]
        for name, a, b in (("in-modal", ii, tt), ("cross-modal", it, ti)):
            x, y = [a[i][j] for j in others], [b[i][j] for j in others]
            assert found[f"{name} tau-b"][i] == pytest.approx(slow_kendall(x, y))
            assert found[f"{name} rho"][i] == pytest.approx(slow_spearman(x, y))


def test_equal_modalities_agree_and_random_ones_do_not():
    image = units(300, 12)
    # A rotation of everything keeps each modality's own order; only the cross-modal one notices.
    turned = image @ torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(5)))[0]
    for values in order_agreement(image, image)[0].values():
        assert values.mean() == pytest.approx(1, abs=1e-3)
    found = order_agreement(image, turned)[0]
    assert found["in-modal tau-b"].mean() > 0.999 > 0.5 > abs(found["cross-modal tau-b"].mean())
    for values in order_agreement(image, units(300, 12, seed=2))[0].values():
        assert abs(values.mean()) < 0.02


def test_an_image_order_turned_round_gives_minus_one():
    angles = torch.linspace(0, 1, 6)
    image = torch.stack([angles.cos(), angles.sin()], 1)
    # Seen from the first pair, texts stand in the opposite order.
    text = torch.stack([(1 - angles).cos(), (1 - angles).sin()], 1)
    text[0] = image[0]
    assert order_agreement(image, text)[0]["in-modal tau-b"][0] == pytest.approx(-1)


def test_a_collapsed_model_agrees_with_nothing():
    row = units(1, 64).expand(20, 64)
    for values in order_agreement(row, units(20, 64, seed=1))[0].values():
        assert abs(values.mean()) < 0.15
    assert set(order_agreement(row, row)[0]["in-modal tau-b"]) == {0.0}


def test_pairs_are_drawn_by_the_seed():
    image, text = units(50, 4), units(50, 4, seed=1)
    found, drawn = order_agreement(image, text, most=20, seed=3)
    assert len(drawn) == len(set(drawn.tolist())) == len(found["in-modal rho"]) == 20
    assert drawn.tolist() == order_agreement(image, text, most=20, seed=3)[1].tolist()
    assert drawn.tolist() != order_agreement(image, text, most=20, seed=4)[1].tolist()
    with pytest.raises(ValueError, match="50 images and 49 texts"):
        order_agreement(image, text[1:])
