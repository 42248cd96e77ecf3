"""Logistic regression: hand-worked cases, an oracle that shares nothing with it, and what certificates promise."""

import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.evaluate.logistic import fit_path
from dinorankclip.evaluate.logistic_span import Point, Targets, _Span, place, search
from dinorankclip.types import UserError

GRID = [10.0**power for power in range(-3, 5)]


def fit(features, labels, classes, C, **options):
    return fit_path(features, labels, classes, [C], **options)[0]


def blobs(items, width, classes, apart=1.0, seed=0, dtype=torch.float64):
    """Classes of equal size around random means."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(items) % classes
    means = apart * torch.randn(classes, width, generator=draw, dtype=torch.float64)
    return (means[labels] + torch.randn(items, width, generator=draw, dtype=torch.float64)).to(dtype), labels


def slow_objective(features, labels, weight, bias, C):
    """The definition, item by item."""
    total = 0.5 * sum(w * w for row in weight.tolist() for w in row)
    for x, y in zip(features.tolist(), labels.tolist()):
        z = [sum(w * v for w, v in zip(row, x)) + b for row, b in zip(weight.tolist(), bias.tolist())]
        total += C * (math.log(sum(math.exp(each) for each in z)) - z[y])
    return total


def objective(features, labels, weight, bias, C):
    logits = features.double() @ weight.double().T + bias.double()
    return C * F.cross_entropy(logits, labels, reduction="sum") + 0.5 * weight.double().square().sum()


def oracle(features, labels, classes, C):
    """The least objective by torch's own L-BFGS, in double precision."""
    features = (features - features.mean(0)).double()
    weight = torch.zeros(classes, features.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=2000,
        history_size=30,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimiser.zero_grad()
        loss = objective(features, labels, weight, bias, C)
        loss.backward()
        return loss

    optimiser.step(closure)
    return closure().item()


def least_of(function, low, high):
    """Golden-section search."""
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return (low + high) / 2


@pytest.mark.parametrize("C", [0.1, 1.0, 50.0])
def test_two_points_on_a_line_have_the_solution_of_a_one_dimensional_search(C):
    features, labels = torch.tensor([[-1.0], [1.0]], dtype=torch.float64), torch.tensor([0, 1])

    def symmetric(a):  # weights -a and a, no bias
        return 2 * C * math.log1p(math.exp(-2 * a)) + a * a

    a = least_of(symmetric, 0.0, 20.0)
    found = fit(features, labels, 2, C, tolerance=1e-13)
    torch.testing.assert_close(found.weight, torch.tensor([[-a], [a]], dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.bias, torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)
    assert found.objective == pytest.approx(symmetric(a), rel=1e-10)

    def binary(w):  # scikit-learn's form with one row of weights, at twice the C
        return 2 * C * 2 * math.log1p(math.exp(-w)) + 0.5 * w * w

    assert 2 * a == pytest.approx(least_of(binary, 0.0, 40.0), abs=1e-6)


def test_without_features_the_bias_gives_the_class_shares():
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])
    found = fit(torch.zeros(10, 4, dtype=torch.float64), labels, 3, 7.0, tolerance=1e-12)
    torch.testing.assert_close(found.bias.softmax(0), torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64))
    assert found.weight.abs().max() == 0


@pytest.mark.parametrize(("items", "width", "classes"), [(60, 5, 3), (40, 5, 2), (20, 50, 4)])
def test_objective_is_the_definition_and_matches_an_oracle(items, width, classes):
    features, labels = blobs(items, width, classes)
    for found in fit_path(features, labels, classes, [0.01, 1.0, 300.0], tolerance=1e-10):
        assert found.converged
        assert found.objective == pytest.approx(
            slow_objective(features, labels, found.weight, found.bias, found.C), rel=1e-9
        )
        assert found.objective == pytest.approx(oracle(features, labels, classes, found.C), rel=1e-8)


def test_the_gradient_vanishes_at_the_solution_and_its_square_is_the_gap():
    features, labels = blobs(90, 12, 5)
    features = features - features.mean(0)  # else a rest of the bias' gradient shows in that of the weights
    for C in (0.1, 10.0):
        found = fit(features, labels, 5, C, tolerance=1e-9)
        weight, bias = found.weight.clone().requires_grad_(), found.bias.clone().requires_grad_()
        by_weight, by_bias = torch.autograd.grad(objective(features, labels, weight, bias, C), (weight, bias))
        assert by_weight.abs().max() < 1e-3 and by_bias.abs().max() < 1e-3
        assert 0.5 * by_weight.square().sum() * 0.999 <= found.gap <= 1e-9 * found.objective


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-3, 1e-4])
def test_no_objective_lies_more_than_the_gap_above_the_least(tolerance):
    features, labels = blobs(150, 40, 6, apart=0.5)
    least = fit_path(features, labels, 6, GRID, tolerance=1e-11)
    for loose, tight in zip(fit_path(features, labels, 6, GRID, tolerance=tolerance), least):
        assert -1e-11 < loose.objective / tight.objective - 1 <= tolerance
        assert loose.objective - tight.objective <= loose.gap * (1 + 1e-6) + 1e-10 * tight.objective


def test_a_path_equals_fits_from_nothing_and_keeps_the_order_of_its_values():
    features, labels = blobs(120, 30, 7)
    Cs = [10.0, 0.1, 1000.0, 10.0]
    path = fit_path(features, labels, 7, Cs, tolerance=1e-12)
    assert [found.C for found in path] == Cs
    for found in path:
        alone = fit(features, labels, 7, found.C, tolerance=1e-12)
        assert found.objective == pytest.approx(alone.objective, rel=1e-11)
        torch.testing.assert_close(found.weight, alone.weight, atol=1e-4, rtol=1e-4)
    again = fit(features, labels, 7, 10.0, start=path[0], tolerance=1e-10)
    assert again.iterations <= 2 and again.objective == pytest.approx(path[0].objective, rel=1e-10)


def test_fewer_items_than_features_is_the_same_problem_in_the_span_of_the_items():
    features, labels = blobs(25, 80, 5)
    basis, _ = torch.linalg.qr(features.T)  # [80, 25]
    direct = fit_path(features, labels, 5, GRID, tolerance=1e-11)
    rotated = fit_path(features @ basis, labels, 5, GRID, tolerance=1e-11)
    for one, other in zip(direct, rotated):
        assert one.objective == pytest.approx(other.objective, rel=1e-10)
        torch.testing.assert_close(one.weight, other.weight @ basis.T, atol=1e-4, rtol=1e-3)


def test_shifting_the_features_changes_the_bias_alone():
    features, labels = blobs(80, 10, 4)
    plain, shifted = (fit(x, labels, 4, 3.0, tolerance=1e-11) for x in (features, features + 100))
    assert plain.objective == pytest.approx(shifted.objective, rel=1e-10)
    torch.testing.assert_close(plain.weight, shifted.weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_separable_classes_converge_for_any_C(dtype):
    features, labels = blobs(100, 20, 5, apart=8.0, dtype=dtype)
    path = fit_path(features, labels, 5, [1e-6, 1.0, 1e3, 1e6, 1e9])
    for found in path:
        assert found.converged and torch.isfinite(found.weight).all() and torch.isfinite(found.bias).all()
    assert (path[-1].logits(features).argmax(1) == labels).all()
    # Weights grow like the logarithm of C: by about the same length for every factor of a thousand.
    lengths = [found.weight.double().norm().item() for found in path[2:]]
    assert lengths[1] - lengths[0] == pytest.approx(lengths[2] - lengths[1], rel=0.1)


def awkward():
    noise, labels = blobs(150, 12, 5, apart=0.0)
    rare = torch.cat([torch.zeros(146, dtype=torch.long), torch.arange(1, 5)])
    return {
        "noise": (noise, labels),
        "one feature many times": (noise[:, :1].expand(-1, 30), labels),
        "large numbers far from zero": (1000 * noise + 30000, labels),
        "small numbers": (1e-4 * noise, labels),
        "rare classes": (noise, rare),
        "one item a class": (noise[:5], torch.arange(5)),
    }


@pytest.mark.parametrize("name", awkward())
def test_single_precision_stays_within_the_tolerance_and_honest_on_awkward_data(name):
    """Tracked logits must not drift from the weights: the objective is compared with that of the returned weights."""
    features, labels = awkward()[name]
    features = features.float()
    Cs = [1e-2, 1.0, 1e2, 1e4, 1e6]
    least = fit_path(features.double(), labels, 5, Cs, tolerance=1e-8)
    for single, double in zip(fit_path(features, labels, 5, Cs), least):
        assert single.converged
        own = objective(features, labels, single.weight, single.bias, single.C).item()
        assert single.objective == pytest.approx(own, rel=3e-5)
        assert single.objective == pytest.approx(double.objective, rel=1e-4)


def test_features_that_spread_very_unevenly_need_no_thousand_steps():
    """Weak models give such features: few directions hold nearly all of their variance, and classes overlap."""
    features, labels = blobs(400, 40, 6, apart=0.4)
    features = features * torch.logspace(0, -3, 40, dtype=torch.float64)
    Cs = [10.0**power for power in range(-1, 6)]
    least = fit_path(features, labels, 6, Cs, tolerance=1e-8)
    for found, tight in zip(fit_path(features.float(), labels, 6, Cs), least):
        assert found.converged and found.iterations < 30
        assert found.objective == pytest.approx(tight.objective, rel=1e-4)


def test_weights_are_right_for_a_small_C_though_nearly_all_of_the_objective_is_there_without_them():
    features, labels = blobs(200, 30, 10, apart=0.3)
    features = features / 30**0.5
    for C in (1e-4, 1e-2):
        loose, tight = fit(features.float(), labels, 10, C), fit(features, labels, 10, C, tolerance=1e-11)
        assert tight.objective > 0.99 * C * 200 * math.log(10)
        assert (loose.weight - tight.weight).norm() < 0.005 * tight.weight.norm()


@pytest.mark.parametrize("apart", [0.2, 1.0])
def test_weights_and_logits_are_within_one_per_cent_along_the_whole_path(apart):
    """Classes of very different sizes, so that the bias matters most where the weights are small."""
    features, labels = blobs(400, 30, 5, apart=apart)
    keep = torch.rand(400, generator=torch.Generator().manual_seed(1)) < 0.8**labels
    features, labels = features[keep] / 30**0.5, labels[keep]
    tight = fit_path(features, labels, 5, GRID, tolerance=1e-11)
    for found, least in zip(fit_path(features.float(), labels, 5, GRID), tight):
        assert found.converged
        assert (found.weight - least.weight).norm() < 0.01 * least.weight.norm()
        off = found.logits(features) - least.logits(features)
        off = off - off.mean(1, keepdim=True)  # what all classes have in common says nothing
        assert off.norm() < 0.01 * ((features - features.mean(0)) @ least.weight.T).norm()


def test_a_limit_that_is_too_low_is_said():
    features, labels = blobs(100, 30, 5)
    found = fit(features, labels, 5, 1e4, limit=2)
    assert not found.converged and found.iterations == 2 and found.gap > 1e-4 * found.objective


@pytest.mark.parametrize(
    ("labels", "classes", "text"),
    [
        ([0, 1, 3, 0], 4, "1 of 4 classes have no item to learn from: 2"),
        ([0, 1, 2, 0], 2, "class index 2 is outside 0…1"),
        ([0, 1, -1, 0], 2, "class index -1 is outside 0…1"),
        ([0, 0, 0, 0], 1, "at least 2 classes"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(labels, classes, text):
    with pytest.raises(UserError, match=text):
        fit(torch.randn(4, 3), torch.tensor(labels), classes, 1.0)


def test_other_input_that_cannot_be_learned_is_refused():
    labels = torch.tensor([0, 1])
    with pytest.raises(UserError, match="positive"):
        fit_path(torch.randn(2, 3), labels, 2, [1.0, 0.0])
    with pytest.raises(UserError, match="not finite"):
        fit(torch.tensor([[1.0], [math.nan]]), labels, 2, 1.0)
    with pytest.raises(ValueError, match="start has weights"):
        fit(torch.randn(2, 3), labels, 2, 1.0, start=fit(torch.randn(2, 4), labels, 2, 1.0))


# ------------------------------------------------------------------------------------------------------- its parts


def test_the_residual_is_the_gradient_of_the_loss_and_variances_are_exact():
    draw = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(20, 4, generator=draw, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(0, 4, (20,), generator=draw)
    targets = Targets(labels, 4)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    found = targets.softmax(logits.detach())
    assert found.loss == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(found.residual, torch.autograd.grad(loss, logits)[0])
    P = targets.probabilities(found)
    torch.testing.assert_close(P, logits.detach().softmax(1))
    torch.testing.assert_close(targets.variances(found, P), P * (1 - P))


def test_an_item_that_is_almost_certain_keeps_its_digits_in_single_precision():
    targets = Targets(torch.tensor([0]), 2)
    found = targets.softmax(torch.tensor([[30.0, 0.0]]))
    assert found.loss == pytest.approx(math.exp(-30), rel=1e-5)
    assert found.residual[0].tolist() == pytest.approx([-math.exp(-30), math.exp(-30)], rel=1e-5)
    assert targets.variances(found, targets.probabilities(found))[0, 0].item() == pytest.approx(math.exp(-30), rel=1e-5)
    hopeless = targets.softmax(torch.tensor([[-500.0, 500.0]]))
    assert hopeless.loss == 1000 and hopeless.residual[0].tolist() == [-1, 1]


def spanned():
    draw = torch.Generator().manual_seed(3)
    items = torch.cat([torch.randn(30, 6, generator=draw, dtype=torch.float64), torch.ones(30, 1)], 1)
    targets = Targets(torch.arange(30) % 4, 4)
    points = []
    for _ in range(3):
        weight = torch.randn(4, 7, generator=draw, dtype=torch.float64)
        points.append(Point(weight, items @ weight.T))
    return items, targets, place(targets, 2.0, points[0]), points[1:]


def test_derivatives_in_a_span_are_those_of_the_objective():
    items, targets, here, directions = spanned()
    labels = torch.arange(30) % 4

    def value(c):
        weight = here.point.weight + sum(c[i][:, None] * one.weight for i, one in enumerate(directions))
        return 2.0 * F.cross_entropy(items @ weight.T, labels, reduction="sum") + 0.5 * weight[:, :-1].square().sum()

    c = 0.1 * torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    span = _Span(targets, 2.0, here, directions)
    there = span.at(c)
    assert there.objective == pytest.approx(value(c).item(), rel=1e-12)
    slope, bend = torch.autograd.functional.jacobian(value, c), torch.autograd.functional.hessian(value, c)
    torch.testing.assert_close(span.gradient(c, there.softmax), slope)
    torch.testing.assert_close(span.second_derivatives(there.softmax), bend.reshape(8, 8))


def test_a_search_ends_at_the_lowest_place_of_the_span():
    items, targets, here, directions = spanned()
    found, step = search(targets, 2.0, here, directions, enough=1e-10)
    assert found.objective < here.objective
    torch.testing.assert_close(found.point.weight, here.point.weight + step.weight)
    torch.testing.assert_close(found.point.logits, items @ found.point.weight.T)
    span = _Span(targets, 2.0, found, directions)
    assert span.gradient(span.origin, found.softmax).abs().max() < 1e-4
    # A direction that leads nowhere, and the same one twice, do no harm.
    nowhere = Point(0 * step.weight, 0 * step.logits)
    again, _ = search(targets, 2.0, here, [*directions, directions[0], nowhere], enough=1e-10)
    assert again.objective == pytest.approx(found.objective, rel=1e-8)
