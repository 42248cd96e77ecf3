"""Pairs that share an image, a caption or a group are no negatives of each other: loops, gradients, planted labels."""

import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.config import LossSettings
from dinorankclip.losses import Objective, RankingLoss, info_nce, sigmoid
from dinorankclip.losses.contrastive import info_nce_rows
from dinorankclip.losses.groups import gathered_groups, other_positives, repeated
from dinorankclip.losses.sigmoid import sigmoid_loss, sigmoid_rows
from dinorankclip.types import Embeddings, Progress
from tests.losses.paper_loops import Items, dot, unit

PAIRS, DIM = 7, 5
# pairs 0 and 3 share an image, 1 and 4 a caption, 4 and 5 a group: 1 and 5 do not belong together
GROUPS = torch.tensor(
    [[10, 20, -1], [11, 21, -1], [12, 22, 31], [10, 23, -1], [13, 21, 30], [14, 24, 30], [15, 25, -1]]
)
TOGETHER = {(0, 3), (3, 0), (1, 4), (4, 1), (4, 5), (5, 4)}
APART = torch.arange(21).view(7, 3)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def batch(dtype=torch.float64):
    image = draw(PAIRS, DIM, dtype=dtype)
    return image, image + draw(PAIRS, DIM, seed=1, dtype=dtype)


def candidates(i):
    return [j for j in range(PAIRS) if (i, j) not in TOGETHER]


def test_pairs_that_belong_together_by_hand_and_as_loops():
    every = torch.arange(PAIRS)
    found = {tuple(place) for place in other_positives(GROUPS, every).nonzero().tolist()}
    assert found == TOGETHER and repeated(GROUPS) and not repeated(APART)
    ids = torch.randint(-2, 12, (9, 3), generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([2, 0, 7])
    table, listed = ids.tolist(), [x for row in ids.tolist() for x in row if x >= 0]
    loops = [[m != n and any(a == b >= 0 for a in table[n] for b in table[m]) for m in range(9)] for n in rows.tolist()]
    assert other_positives(ids, rows).tolist() == loops
    assert repeated(ids) == (len(set(listed)) < len(listed))


def test_ids_that_never_repeat_and_no_ids_at_all_are_no_groups():
    assert gathered_groups(None) is None and gathered_groups(APART) is None
    assert gathered_groups(torch.full((4, 3), -1)) is None and gathered_groups(torch.arange(4)) is None
    assert gathered_groups(torch.tensor([3, 3, 0])).tolist() == [[1], [1], [-1]]  # the second of two different ids


def test_ids_that_occur_once_are_dropped_without_a_difference():
    every, fewer = torch.arange(PAIRS), gathered_groups(GROUPS)
    assert torch.equal(other_positives(fewer, every), other_positives(GROUPS, every))
    assert gathered_groups(GROUPS[:4]).shape == (4, 1)  # of the first four pairs, two share an image and no more


def test_info_nce_leaves_them_out_as_loops_do():
    image, text = batch()
    v, t = ([unit(row) for row in rows] for rows in (image, text))
    total = 0.0
    for i in range(PAIRS):
        own = 9.0 * dot(v[i], t[i])
        total += math.log(sum(math.exp(9.0 * dot(v[i], t[j])) for j in candidates(i))) - own
        total += math.log(sum(math.exp(9.0 * dot(v[j], t[i])) for j in candidates(i))) - own
    assert info_nce(image, text, 9.0, GROUPS).item() == pytest.approx(float(total) / 2 / PAIRS, abs=1e-12)
    leaves = (image.requires_grad_(), text.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: info_nce(a, b, 9.0, GROUPS), leaves)
    assert torch.autograd.gradcheck(lambda a, b: info_nce_rows(a, b, 3.0, slice(2, 6), GROUPS), leaves)


def test_info_nce_by_hand():
    # three equal pairs: with ln 3 of chance each; two of them share a caption, hence ln 2, ln 2 and ln 3
    rows, groups = torch.ones(3, 2, dtype=torch.float64), torch.tensor([[5], [5], [-1]])
    value = info_nce_rows(F.normalize(rows, dim=1), F.normalize(rows, dim=1), 10.0, groups=groups)
    assert value.tolist() == pytest.approx([math.log(2), math.log(2), math.log(3)])


def test_all_pairs_in_one_group_leave_nothing_to_learn():
    image, text = (x.requires_grad_() for x in batch())
    info_nce(image, text, 9.0, torch.zeros(PAIRS, 1, dtype=torch.int64)).backward()
    assert image.grad.abs().max() == 0


@pytest.mark.parametrize("block", [1 << 20, 14])
def test_the_sigmoid_loss_leaves_them_out_as_loops_do(monkeypatch, block):
    monkeypatch.setattr(sigmoid, "BLOCK", block)  # 14: blocks of two rows
    image, text = batch()
    v, t = ([unit(row) for row in rows] for rows in (image, text))
    total = 0.0
    for i in range(PAIRS):
        for j in candidates(i):
            logit = 9.0 * dot(v[i], t[j]) - 4.0
            total += math.log1p(math.exp(-logit if i == j else logit))
    assert sigmoid_loss(image, text, 9.0, -4.0, GROUPS).item() == pytest.approx(float(total) / PAIRS, abs=1e-12)
    numbers = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (9.0, -4.0)]
    leaves = (image.requires_grad_(), text.requires_grad_(), *numbers)
    assert torch.autograd.gradcheck(lambda *x: sigmoid_loss(*x, GROUPS), leaves)
    assert torch.autograd.gradcheck(lambda *x: sigmoid_rows(*x, slice(2, 6), GROUPS), leaves)


def list_loops(loss, image, text, scale):
    """rank_in and rank_cross by loops over the candidates of each row; numbers are tensors, for autograd."""
    v, t = [unit(row) for row in image], [unit(row) for row in text]
    sides = {}
    for side, rows in (("image", v), ("text", t)):
        heads = loss.transitions[side]
        weights = {name.removeprefix("heads."): p.detach() for name, p in heads.named_parameters()}
        sides[side] = Items(rows, weights, {r: heads.gate(r).detach() for r in range(2, loss.order + 1)})
    lists = {
        "cross": ((sides["text"], v, t, t, v), (sides["image"], t, v, v, t)),
        "in": ((sides["image"], v, v, t, t), (sides["text"], t, t, v, v)),
    }
    found = {}
    for term, directions in lists.items():
        total = torch.zeros((), dtype=torch.float64)
        for ranked, left, right, ref_left, ref_right in directions:
            for i in range(PAIRS):
                among = [d for d in candidates(i) if loss.include_self or d != i]
                theta = {d: scale * dot(left[i], right[d]) for d in among}
                reference = {d: dot(ref_left[i], ref_right[d]).item() for d in among}
                ranking = sorted(among, key=lambda d, reference=reference: (-reference[d], d))
                ranking = ranking[: loss.list_length or len(ranking)]
                log_p = ranked.log_probability(theta, ranking, loss.order, loss.rankclip_eps)
                total = total - log_p / 2 / PAIRS
        positions = loss.list_length or PAIRS - (not loss.include_self)
        found[f"rank_{term}"] = 2.0 / 16 / positions * total  # μ = 2 at the end of a schedule
    return found


@pytest.mark.parametrize(
    ("order", "options"),
    [
        (1, {}),
        (3, {}),
        (4, {"include_self": False}),
        (3, {"list_length": 3}),
        (2, {"list_length": 6, "include_self": False}),  # pair 4 has four candidates: two positions are empty
        (3, {"backend": "reference"}),
        (1, {"rankclip_eps": 1e-3}),
    ],
)
def test_lists_leave_them_out_as_loops_do(order, options):
    loss = RankingLoss(DIM, order, 3, seed=5, **options).double()
    with torch.no_grad():
        for gate in (gate for heads in loss.transitions.values() for gate in heads.gates.values()):
            gate.fill_(0.5)
    found = []
    for ours in (True, False):
        image, text = (x.clone().requires_grad_() for x in batch())
        scale = torch.tensor(6.0, dtype=torch.float64, requires_grad=True)
        if ours:
            terms = loss(image, text, scale, groups=GROUPS).terms
            terms = {name: terms[name] for name in ("rank_cross", "rank_in")}
        else:
            terms = list_loops(loss, image, text, scale)
        gradients = torch.autograd.grad(sum(terms.values()), (image, text, scale))
        found.append([terms["rank_cross"], terms["rank_in"], *gradients])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


METHODS = ("clip", "siglip", "cyclip", "alip", "rankclip", "rank")


def computed(method, groups, several=True, detailed=False):
    """Total and gradients of an objective on a batch of single precision."""
    rows = {
        name: draw(PAIRS, DIM, seed=n, dtype=torch.float32) for n, name in enumerate(("image", "text", "second_text"))
    }
    leaves = {name: x.requires_grad_() for name, x in rows.items()}
    objective = Objective(DIM, method, LossSettings(head_dim=3, several_positives=several), seed=2)
    bias = torch.tensor(-5.0) if method == "siglip" else None
    now = Progress(600, 640, 64)
    out = objective(Embeddings(leaves), torch.tensor(9.0), now, detailed, bias=bias, groups=groups)
    out.total.backward()
    return [out.total.detach(), *(x.grad for x in leaves.values() if x.grad is not None)], out.report


@pytest.mark.parametrize("method", METHODS)
def test_where_nothing_repeats_or_by_choice_every_method_is_the_plain_loss_bit_for_bit(method):
    plain, report = computed(method, None, detailed=True)
    for groups, several in ((APART, True), (GROUPS, False)):
        same, same_report = computed(method, groups, several, detailed=True)
        assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True)) and report == same_report
    assert not torch.equal(computed(method, GROUPS)[0][0], plain[0])


def test_the_log_has_the_loss_of_guessing_where_it_is_not_ln_b():
    left = [len(candidates(i)) for i in range(PAIRS)]
    _, report = computed("clip", GROUPS, detailed=True)
    assert report["contrastive_chance"] == pytest.approx(sum(map(math.log, left)) / PAIRS)
    assert "contrastive_chance" not in computed("clip", APART, detailed=True)[1]


DETAILS, SIGNAL, NOISE, WIDTH = 16, 0.5, 0.1, 4


def labelled_pairs(count, generator):
    """Labels, image features and caption features. Both see the label, a weak signal, and details of the pair."""
    labels = torch.randint(0, 2, (count,), generator=generator)
    details = torch.randn(count, DETAILS, generator=generator)
    seen = torch.cat([SIGNAL * (2.0 * labels - 1)[:, None], details], 1)
    noise = NOISE * torch.randn(2, count, DETAILS + 1, generator=generator)
    return labels, seen + noise[0], seen + noise[1]


def zero_shot_after(several, seed):
    """Accuracy on new images of a linear model, with the two labels without details as prompts."""
    generator = torch.Generator().manual_seed(seed)
    towers = [(torch.randn(DETAILS + 1, WIDTH, generator=generator) / 3).requires_grad_() for _ in range(2)]
    optimizer = torch.optim.Adam(towers, lr=0.01)
    for _ in range(800):
        labels, image, text = labelled_pairs(64, generator)
        optimizer.zero_grad()
        info_nce(image @ towers[0], text @ towers[1], 10.0, labels[:, None] if several else None).backward()
        optimizer.step()
    labels, image, _ = labelled_pairs(2000, generator)
    prompts = torch.zeros(2, DETAILS + 1)
    prompts[:, 0] = torch.tensor([-SIGNAL, SIGNAL])
    with torch.no_grad():
        scores = F.normalize(image @ towers[0], dim=1) @ F.normalize(prompts @ towers[1], dim=1).T
    return (scores.argmax(1) == labels).double().mean().item()


@pytest.mark.parametrize("seed", range(3))
def test_two_planted_labels_are_learnt_where_the_plain_loss_stays_near_chance(seed):
    """Half of a batch has the label of a pair. The plain loss must tell these pairs apart, by details: an embedding of
    four numbers has no room left for the label. Chance is 50 %."""
    plain, several = zero_shot_after(False, seed), zero_shot_after(True, seed)
    print(f"seed {seed}: plain {plain:.3f}, several positives {several:.3f}")
    assert several > 0.95
    assert plain < 0.56
