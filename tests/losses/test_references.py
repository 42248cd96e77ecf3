"""Orders and transitions from a teacher, and centring over histories: loops, hand values, gradients, refusals."""

import math

import pytest
import torch

from dinorankclip.config import LossSettings
from dinorankclip.losses import Objective, RankingLoss
from dinorankclip.losses.plackett_luce import plackett_luce_nll
from dinorankclip.losses.references import centred_table, mean_table_nll, teacher_similarities
from dinorankclip.losses.transitions import centred_queries
from dinorankclip.types import Embeddings, Progress
from tests.losses.paper_loops import Items, dot, unit

PAIRS, DIM, WIDTH = 6, 5, 3
GROUPS = torch.tensor([0, 1, 0, 2, 3, 4])  # pairs 0 and 2 belong together


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def alone(rows):
    return rows


class Learnt(Items):
    """Corrections by heads, centred over the histories of all `rankings` or not."""

    def __init__(self, rows, weights, gates, order, rankings, centred):
        super().__init__(rows, weights, gates)
        self.mean = {}
        for r in range(2, order + 1) if centred else ():
            pasts = [tuple(y[k - r + 1 : k]) for y in rankings for k in range(r - 1, len(y))]
            for d in range(len(rows)) if pasts else ():
                self.mean[r, d] = sum(super(Learnt, self).correction(r, past, d) for past in pasts) / len(pasts)

    def correction(self, r, past, d):
        return super().correction(r, past, d) - self.mean.get((r, d), 0.0)


class Fixed(Items):
    """Corrections by frozen features, centred over the histories of all `rankings` or not."""

    def __init__(self, features, gates, scale, rankings, centred):
        self.features, self.scale, self.gates = features, scale, gates
        before = [y[k - 1] for y in rankings for k in range(1, len(y))]
        self.mean = [
            sum(dot(features[a], features[d]) for a in before) / len(before) if centred else 0.0
            for d in range(len(features))
        ]

    def correction(self, r, past, d):
        assert r == 2
        return self.gates[2] * self.scale * (dot(self.features[past[0]], self.features[d]) - self.mean[d])


def looped(loss, image, text, scale, teacher, groups, length):
    """Return rank_in and rank_cross at μ = 2 as loops over Python lists of scalars."""
    v, t = [unit(row) for row in image], [unit(row) for row in text]
    frozen = {name: [unit(row) for row in rows] for name, rows in teacher.items()}
    of = {"image": v, "text": t}
    found = {"in": 0.0, "cross": 0.0}
    for term in found:
        for ranks in ("image", "text"):
            ranked = ranks if term == "in" else {"image": "text", "text": "image"}[ranks]
            # the paired reference exchanges the modalities of both sides
            swap = {"image": "text", "text": "image"}
            rankings, thetas = [], []
            for i in range(len(v)):
                taking_part = [d for d in range(len(v)) if d == i or groups[d] != groups[i]]
                if loss.reference == "paired":
                    key = {d: -dot(of[swap[ranks]][i], of[swap[ranked]][d]).item() for d in taking_part}
                elif loss.reference == "model":
                    key = {d: -dot(of[ranks][i], of[ranked][d]).item() for d in taking_part}
                else:
                    key = {d: -dot(frozen[ranks][i], frozen[ranks][d]).item() for d in taking_part}
                    key[i] = -math.inf
                rankings.append(sorted(taking_part, key=lambda d, key=key: (key[d], d))[:length])
                thetas.append({d: scale * dot(of[ranks][i], of[ranked][d]) for d in taking_part})
            heads = loss.transitions[ranked]
            gates = {int(r): 1 / (1 + torch.exp(-s)) for r, s in heads.gates.items()}
            features = {
                "learnt": None,
                "model": [[x.detach() for x in row] for row in of[ranked]],
                "teacher": frozen.get(ranked),
            }[loss.transitions_from]
            if features is None:
                weights = dict(heads.heads.named_parameters())
                items = Learnt(of[ranked], weights, gates, loss.order, rankings, loss.centred)
            else:
                items = Fixed(features, gates, heads.scale, rankings, loss.centred)
            for theta, ranking in zip(thetas, rankings):
                found[term] = found[term] - items.log_probability(theta, ranking, loss.order) / len(v) / 2
    return {f"rank_{term}": 2 * value / 16 / length for term, value in found.items()}


CASES = {
    "paired, order 1": {"order": 1},
    "model, order 1": {"order": 1, "reference": "model"},
    "teacher, order 1": {"order": 1, "reference": "teacher"},
    "teacher, order 3": {"order": 3, "reference": "teacher"},
    "centred, order 2": {"order": 2, "centred": True},
    "centred, order 4": {"order": 4, "centred": True},
    "centred, teacher's order": {"order": 3, "centred": True, "reference": "teacher"},
    "transitions of the teacher": {"order": 2, "transitions": "teacher", "transition_scale": 3.0},
    "transitions of the model": {"order": 2, "transitions": "model"},
    "all": {"order": 2, "transitions": "teacher", "reference": "teacher", "centred": True, "transition_scale": 3.0},
}
LENGTHS = ((6, "auto"), (3, "reference"), (4, "auto"))
FORMS = [(case, *form) for case in CASES for form in LENGTHS if case != "centred, order 4" or form[0] < 6]


def inputs():
    image = draw(PAIRS, DIM)
    text = image + draw(PAIRS, DIM, seed=1)
    teacher = {"image": draw(PAIRS, 4, seed=2), "text": draw(PAIRS, 7, seed=3)}
    return image.requires_grad_(), text.requires_grad_(), teacher


@pytest.mark.parametrize(("case", "length", "backend"), FORMS)
def test_values_and_gradients_are_those_of_the_loops(case, length, backend):
    loss = RankingLoss(DIM, head_dim=WIDTH, list_length=length, backend=backend, seed=5, **CASES[case]).double()
    with torch.no_grad():
        for name, p in loss.named_parameters():
            p.copy_(0.5 * draw(*p.shape, seed=7) if ".gates." not in name else p + 3)
    image, text, teacher = inputs()
    scale = torch.tensor(7.0, dtype=torch.float64, requires_grad=True)
    leaves = [image, text, scale, *loss.parameters()]
    for groups in (torch.arange(PAIRS), GROUPS):
        ours = loss(image, text, scale, groups=groups, teacher=teacher).terms
        theirs = looped(loss, image, text, scale, teacher, groups.tolist(), length)
        for name in theirs:
            assert ours[name].item() == pytest.approx(theirs[name].item(), abs=1e-11)
            options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
            for a, b in zip(*(torch.autograd.grad(each[name], leaves, **options) for each in (ours, theirs))):
                assert (a - b).abs().max() < 1e-10


def test_without_text_features_those_of_the_images_order_both_sides():
    image, text, teacher = inputs()
    objective = Objective(DIM, "rank", LossSettings(order=1, reference="teacher")).double()
    named, scale, now = Embeddings({"image": image, "text": text}), torch.tensor(7.0), Progress(9, 10, 1)
    alone = objective(named, scale, now, teacher_features={"image_summary": teacher["image"]})
    both = {f"{side}_summary": teacher["image"] for side in ("image", "text")}
    assert alone.total == objective(named, scale, now, teacher_features=both).total
    assert alone.total != objective(named, scale, now, teacher_features=both | {"text_summary": teacher["text"]}).total


def test_the_teacher_is_another_order_and_no_gradient_reaches_it():
    image, text, teacher = inputs()
    teacher = {name: rows.requires_grad_() for name, rows in teacher.items()}
    values = {}
    for reference in ("paired", "model", "teacher"):
        loss = RankingLoss(DIM, 2, WIDTH, reference=reference, transitions="teacher").double()
        values[reference] = loss(image, text, 7.0, teacher=teacher).total
    assert len({value.item() for value in values.values()}) == 3
    assert torch.autograd.grad(values["teacher"], teacher["image"], allow_unused=True) == (None,)


def test_a_lists_own_order_is_the_most_likely_one():
    """Order 1, reference "model": no other order of a list costs less, so gradients sharpen what is there."""
    image, text, teacher = inputs()
    cost = {
        reference: RankingLoss(DIM, 1, reference=reference).double()(image, text, 7.0, teacher=teacher).total.item()
        for reference in ("paired", "model", "teacher")
    }
    assert cost["model"] < min(cost["paired"], cost["teacher"])


def test_teacher_similarities_by_hand_and_as_loops():
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
    inf = torch.inf
    expected = torch.tensor([[inf, 1, 0.6], [1, inf, 0.6], [0.6, 0.6, inf]])
    torch.testing.assert_close(teacher_similarities(features, slice(0, 3)), expected)
    torch.testing.assert_close(teacher_similarities(features, slice(1, 2)), expected[1:2])  # 1 before its copy 0


def order_of(rows, items, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(items, generator=generator)[:length] for _ in range(rows)])


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("length", [1, 4, 7])
def test_table_lists_equal_queries_and_keys_and_have_true_gradients(removed, length, monkeypatch):
    monkeypatch.setattr("dinorankclip.losses.plackett_luce_blocked.CPU_ITEMS", 14)  # two rows a block
    theta, table, order = 3 * draw(5, 7), draw(7, 7, seed=1), order_of(5, 7, length)
    if removed:
        theta[torch.arange(5), [0, 3, 5, 1, 6]] = -torch.inf
    theta.requires_grad_()
    weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    queries = torch.nn.functional.pad(0.7 * table[order[:, :-1]], (0, 0, 1, 0))
    expected = plackett_luce_nll(theta, order, queries, torch.eye(7, dtype=theta.dtype), backend="reference").mean()
    results = []
    for backend in ("auto", "reference"):
        value = mean_table_nll(theta, order, table, weight, backend)
        assert value.item() == pytest.approx(expected.item(), abs=1e-12)
        options = {"allow_unused": True, "materialize_grads": True}
        results.append(torch.autograd.grad(value, (theta, weight), **options))
    for a, b in zip(*results):
        assert (a - b).abs().max() < 1e-12
    if not removed:
        assert torch.autograd.gradcheck(lambda a, b: mean_table_nll(a, order, table, b), (theta, weight))


def test_a_table_list_by_hand():
    """Two positions of three equal items, 0 then 1: log 3, then e^(w·2) among e^(w·2) and e^0."""
    theta, order = torch.zeros(1, 3, dtype=torch.float64), torch.tensor([[0, 1]])
    table = torch.tensor([[9.0, 2.0, 0.0]] * 3, dtype=torch.float64)
    value = mean_table_nll(theta, order, table, torch.tensor(0.5, dtype=torch.float64))
    assert value.item() == pytest.approx(math.log(3) + math.log(1 + math.exp(-1)), abs=1e-12)


@pytest.mark.parametrize("partly", [False, True])
def test_the_mean_over_histories_of_every_candidates_correction_is_zero(partly):
    rows, length, active = 4, 5, (2, 3)
    queries, keys = draw(rows, length, 2 * WIDTH), draw(7, 2 * WIDTH, seed=1)
    queries[:, :1, :WIDTH], queries[:, :2, WIDTH:] = 0, 0  # histories that are too short
    counted = torch.arange(length) < torch.tensor([[5], [3], [4], [1]]) if partly else None
    centred = centred_queries(queries, active, counted, alone)
    for number, r in enumerate(active):
        block = slice(number * WIDTH, (number + 1) * WIDTH)
        places = [(i, k) for i in range(rows) for k in range(r - 1, length) if counted is None or counted[i, k]]
        popularity = torch.stack([keys[:, block] @ centred[i, k, block] for i, k in places]).mean(0)
        assert popularity.abs().max() < 1e-14
        mean = torch.stack([queries[i, k, block] for i, k in places]).mean(0)
        for i in range(rows):
            for k in range(length):
                expected = queries[i, k, block] - mean if (i, k) in places else torch.zeros(WIDTH)
                torch.testing.assert_close(centred[i, k, block], expected.double(), atol=1e-14, rtol=0)
    leaf = queries.requires_grad_()
    assert torch.autograd.gradcheck(lambda q: centred_queries(q, active, counted, alone), (leaf,))


def test_centring_removes_a_popularity_and_keeps_what_depends_on_the_history():
    queries = draw(3, 4, WIDTH)
    queries[:, 0] = 0
    popular = queries + torch.nn.functional.pad(torch.ones(3, 3, WIDTH, dtype=torch.float64), (0, 0, 1, 0))
    same = [centred_queries(q, (2,), None, alone) for q in (queries, popular)]
    torch.testing.assert_close(*same)
    assert same[0].abs().max() > 0.1


def test_a_centred_table_as_loops():
    table, order = draw(5, 5), order_of(3, 5, 4)
    counted = torch.arange(4) < torch.tensor([[4], [2], [3]])
    before = [order[i, k - 1].item() for i in range(3) for k in range(1, 4) if counted[i, k]]
    expected = table - torch.stack([table[a] for a in before]).mean(0)
    torch.testing.assert_close(centred_table(table, order, counted, alone), expected)
    whole = centred_table(table, order, None, alone)
    assert whole[order[:, :-1].flatten()].mean(0).abs().max() < 1e-14


@pytest.mark.parametrize("transitions", ["teacher", "model"])
def test_only_the_gates_learn_in_fixed_transitions(transitions):
    loss = RankingLoss(DIM, 2, transitions=transitions, gate_start=(-1.0,))
    assert {name: p.item() for name, p in loss.named_parameters()} == {
        f"transitions.{modality}.gates.2": -1.0 for modality in ("image", "text")
    }
    image, text, teacher = (x if isinstance(x, dict) else x.float() for x in inputs())
    out = loss(image, text, 7.0, detailed=True, teacher=teacher)
    out.total.backward()
    assert all(p.grad.abs() > 0 for p in loss.parameters())
    assert out.report["gate2_image"] == pytest.approx(1 / (1 + math.e)) and out.report["spread2_text"] > 0
    assert loss.nll_with(image, text, 7.0, (2,), teacher) != loss.nll_with(image, text, 7.0, (), teacher)


def test_the_objective_takes_features_of_a_cache_or_of_the_model():
    image, text, teacher = inputs()
    named = {"image": image, "text": text}
    summaries = {f"{name}_summary": rows for name, rows in teacher.items()}
    objective = Objective(DIM, "rank", LossSettings(order=1, reference="teacher")).double()
    scale, progress = torch.tensor(7.0, dtype=torch.float64), Progress(500, 640, 64)
    assert objective.needs_teacher and not Objective(DIM, "rank").needs_teacher
    of_model = objective(Embeddings(named | summaries), scale, progress).total
    of_cache = objective(Embeddings(named), scale, progress, teacher_features=summaries).total
    assert torch.equal(of_model, of_cache)
    with pytest.raises(ValueError, match="there is nothing"):
        objective(Embeddings(named), scale, progress)
    with pytest.raises(ValueError, match="there is text"):
        objective(Embeddings(named), scale, progress, teacher_features={"text_summary": teacher["text"]})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"reference": "student"}, "reference is paired, model, teacher"),
        ({"transitions": "fixed"}, "transitions are learnt, teacher, model"),
        ({"transitions": "teacher", "order": 3}, "has order 2 alone, not 3"),
    ],
)
def test_forms_that_do_not_fit_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        RankingLoss(8, **wrong)


def test_features_of_other_pairs_are_refused():
    image, text, teacher = inputs()
    loss = RankingLoss(DIM, 1, reference="teacher").double()
    with pytest.raises(ValueError, match=r"features of 6 pairs are \[6, C\]; those of text \[5, 7\]"):
        loss(image, text, 7.0, teacher=teacher | {"text": teacher["text"][:5]})
