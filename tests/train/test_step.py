"""Decay groups, schedule, updates and gradients in chunks; the share of a step that Adam's epsilon takes."""

import dataclasses
import math
from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn

from dinorankclip.config import BudgetSettings, LossSettings, OptimSettings, TrainSettings
from dinorankclip.device import choose
from dinorankclip.losses.objective import Objective
from dinorankclip.losses.telemetry import undamped, undamped_shares
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train.step import (
    PARTS,
    NonFinite,
    Updater,
    backward,
    decayed,
    freeze,
    learning_rate,
    parameter_groups,
    warmup_length,
)
from dinorankclip.types import Batch, LossTerms, Progress, UserError, View

CPU = choose("cpu")


def random_batch(pairs=12, size=48, second=False):
    generator = torch.Generator().manual_seed(7)
    texts = torch.randint(1, 40_000, (pairs, 9), generator=generator)
    texts[:, 0], texts[:, -1] = 49406, 49407
    return Batch(
        images=torch.randint(0, 256, (pairs, 3, size, size), dtype=torch.uint8, generator=generator),
        texts=texts,
        keys=[str(i) for i in range(pairs)],
        views=[View()] * pairs,
        captions=[""] * pairs,
        second_texts=texts.flip(0) if second else None,
    )


def test_warmup_then_half_a_cosine():
    assert warmup_length(1000) == 50
    assert warmup_length(1_000_000) == 10_000
    assert warmup_length(1000, 7) == 7
    rates = [learning_rate(step, 100, 2.0, 10) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[10] == 2.0
    assert rates[55] == pytest.approx(1.0)
    assert rates[99] == pytest.approx(1 + math.cos(math.pi * 89 / 90))
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_norms_biases_and_scalars_are_not_decayed():
    model = JointModel(trunk_config("drc-tiny"))
    groups = parameter_groups(dict(model.named_parameters()), OptimSettings(weight_decay=0.2))
    plain = {n for group in groups if group["weight_decay"] == 0 for n in group["names"]}
    names = {n for n, _ in model.named_parameters()}
    assert sum(len(g["names"]) for g in groups) == len(names)
    assert {n for n in names if ".ln_" in n or n.endswith("bias") or "logit_scale" in n} <= plain
    assert "trunk.towers.token_embedding.weight" not in plain


def test_gates_of_the_orders_are_not_decayed():
    objective = Objective(16, "rank", LossSettings(order=5))
    groups = parameter_groups(dict(objective.named_parameters()), OptimSettings(weight_decay=0.2))
    plain = {n for group in groups if group["weight_decay"] == 0 for n in group["names"]}
    gates = {n for n, _ in objective.named_parameters() if ".gates." in n}
    assert len(gates) == 8 and gates <= plain  # orders 2 to 5 of two modalities
    assert any("heads.2.query.weight" in n for group in groups if group["weight_decay"] for n in group["names"])


def one_step(objective, settings):
    """How far each parameter of the objective moved in a first step with gradient 1, and the updater."""
    updater = Updater({"objective": objective}, settings, 10)
    before = {name: p.detach().clone() for name, p in updater.parameters.items()}
    for p in updater.parameters.values():
        p.grad = torch.ones_like(p)
    updater.step(Progress(0, 10, 1), nn.Parameter(torch.tensor(1.0)))
    return {name: p.detach() - before[name] for name, p in updater.parameters.items()}, updater


def test_the_heads_of_the_orders_have_a_rate_of_their_own():
    settings = OptimSettings(lr=1e-3, weight_decay=0.0, clip_norm=None, heads_rate=30.0)
    part = nn.ModuleDict({"ranking": Objective(16, "rank").ranking, "other": nn.Linear(2, 2)})
    moved, updater = one_step(part, settings)
    for name, change in moved.items():
        rate = 0.03 if ".transitions." in name else 1e-3
        torch.testing.assert_close(change, torch.full_like(change, -rate), rtol=1e-3, atol=0.0)
    assert updater.rate(0) == 1e-3  # what is logged is the trunk's
    named = [name for group in updater.optimizers[0].param_groups for name in group["names"]]
    assert sorted(named) == sorted(updater.parameters)


def test_the_heads_of_the_orders_may_have_an_epsilon_of_their_own():
    part = nn.ModuleDict({"ranking": Objective(16, "rank").ranking, "other": nn.Linear(2, 2)})
    settings = OptimSettings(lr=1e-3, weight_decay=0.0, clip_norm=None, eps=1.0)
    for heads_eps, of_heads in ((None, 0.5), (1e-12, 1.0)):  # gradient 1: ε = 1 leaves half of a step
        moved, _ = one_step(part, dataclasses.replace(settings, heads_eps=heads_eps))
        for name, change in moved.items():
            left = of_heads if ".transitions." in name else 0.5
            torch.testing.assert_close(change, torch.full_like(change, -left * 1e-3), rtol=1e-3, atol=0.0)


class Parted(nn.Module):
    """Parameters with the names that they have in a run."""

    def __init__(self):
        super().__init__()
        self.trunk, self.image_student = nn.Linear(3, 2), nn.Linear(3, 2)
        self.trunk.logit_scale = nn.Parameter(torch.tensor(1.0))
        self.image_fusion = nn.ModuleDict({"residual": nn.Linear(3, 2), "gate": nn.Linear(3, 2)})


def test_fusion_gates_and_temperature_have_rates_of_their_own():
    settings = OptimSettings(
        lr=1e-3, weight_decay=0.0, clip_norm=None, heads_rate=2.0, fusion_rate=3.0, gates_rate=5.0, temperature_rate=7.0
    )
    updater = Updater({"model": Parted(), "objective": Objective(16, "rank")}, settings, 10)
    before = {name: p.detach().clone() for name, p in updater.parameters.items()}
    for p in updater.parameters.values():
        p.grad = torch.ones_like(p)
    updater.step(Progress(0, 10, 1), nn.Parameter(torch.tensor(1.0)))
    wanted = {
        "model.trunk.weight": 1.0, "model.trunk.logit_scale": 7.0, "model.image_student.bias": 1.0,
        "model.image_fusion.residual.weight": 3.0, "model.image_fusion.gate.weight": 15.0,
        "model.image_fusion.gate.bias": 15.0, "objective.ranking.transitions.text.heads.3.first.weight": 2.0,
        "objective.ranking.transitions.image.gates.2": 10.0,
    }  # fmt: skip
    for name, factor in wanted.items():
        change = updater.parameters[name].detach() - before[name]
        torch.testing.assert_close(change, torch.full_like(change, -1e-3 * factor), rtol=1e-3, atol=0.0)
    named = [name for group in updater.optimizers[0].param_groups for name in group["names"]]
    assert sorted(named) == sorted(updater.parameters)


@pytest.mark.parametrize("apart", [False, True])
def test_clipped_apart_a_large_gradient_of_students_leaves_the_trunk_alone(apart):
    """Norms by hand: trunk 3 (9 ones at 1), student 4000, fusion 0.5 in all; limit 1."""
    model = Parted()
    with torch.no_grad():
        model.trunk.logit_scale.zero_()
    updater = Updater({"model": model}, OptimSettings(clip_norm=1.0, clip_apart=apart), 10)
    size = {"trunk": 1.0, "image_student": 4000 / 8**0.5, "image_fusion": 0.5 / 4}
    for name, p in updater.parameters.items():
        p.grad = torch.full_like(p, size[name.split(".")[1]])
    seen = {}
    updater.optimizers[0].step = lambda: seen.update({n: p.grad.clone() for n, p in updater.parameters.items()})
    total = float(updater.step(Progress(0, 10, 1), nn.Parameter(torch.tensor(1.0))))
    assert total == pytest.approx(math.sqrt(9 + 4000**2 + 0.25), rel=1e-6)  # the log has the norm of all
    apart_shares = {"trunk": 1 / 3, "image_student": 1 / 4000, "image_fusion": 1.0}
    share = apart_shares if apart else dict.fromkeys(size, 1 / total)
    for name, grad in seen.items():
        part = name.split(".")[1]
        torch.testing.assert_close(grad, torch.full_like(grad, size[part] * share[part]), rtol=1e-5, atol=0.0)


def test_parts_that_are_clipped_apart():
    names = {
        "model.trunk.towers.logit_scale": 0, "model.trunk.towers.visual.proj": 0, "model.text_student.norm.bias": 1,
        "model.text_fusion.gate.bias": 2, "objective.ranking.transitions.image.gates.2": 3,
        "objective.distillation.image.projector.weight": 4,
    }  # fmt: skip
    for name, number in names.items():
        assert next(i for i, part in enumerate(PARTS) if fnmatchcase(name, part)) == number


def test_a_step_at_the_usual_rate_is_that_of_two_groups_bit_for_bit():
    """Runs made before heads had groups of their own go on as they began: their state is kept by parameter."""
    settings = OptimSettings()
    moved, updater = one_step(Objective(16, "rank", seed=3), settings)
    named = dict(Objective(16, "rank", seed=3).named_parameters(prefix="objective"))
    groups = [
        {"params": [p for n, p in named.items() if decayed(n, p) is kept], "weight_decay": decay}
        for kept, decay in ((True, settings.weight_decay), (False, 0.0))
    ]
    old = torch.optim.AdamW(groups, lr=updater.rate(0), betas=settings.betas, eps=settings.eps, fused=True)
    before = {name: p.detach().clone() for name, p in named.items()}
    for p in named.values():
        p.grad = torch.ones_like(p)
    torch.nn.utils.clip_grad_norm_(named.values(), settings.clip_norm)
    old.step()
    assert all(torch.equal(named[name].detach() - before[name], change) for name, change in moved.items())
    assert updater.state().keys() == {f"{n}/{key}" for n, p in named.items() for key in old.state[p]}


def test_a_parameter_without_a_rule_is_an_error():
    with pytest.raises(UserError, match="no weight-decay rule covers the parameter 'strange'"):
        decayed("strange", nn.Parameter(torch.zeros(2, 2)))


def test_freezing_by_pattern():
    model = JointModel(trunk_config("drc-tiny"))
    frozen = freeze(model, ("trunk.towers.visual.*",))
    assert frozen and all(not p.requires_grad for n, p in model.named_parameters() if ".visual." in n)
    assert all(
        not n.startswith("model.trunk.towers.visual") for n in Updater({"model": model}, OptimSettings(), 9).parameters
    )
    freeze(model, ("*",))
    with pytest.raises(UserError, match="nothing is left to train"):
        Updater({"model": model}, OptimSettings(), 9)
    with pytest.raises(UserError, match="matches no parameter"):
        freeze(model, ("trunk.vision.*",))


@pytest.mark.parametrize("method", ["clip", "siglip", "cyclip", "alip", "rankclip", "rank"])
def test_two_passes_give_the_gradient_of_one_shot(method):
    batch = random_batch(second=method == "alip")
    progress = Progress(9, 10, 10)
    found = []
    for chunk in (None, 5):  # 12 pairs: chunks of 5, 5 and 2
        model = JointModel(trunk_config("drc-tiny"), seed=1)
        objective = Objective(model.dim, method)
        if method == "siglip":
            model.trunk.start_sigmoid()
        terms = backward(model, objective, batch, progress, CPU, chunk)
        grads = {n: p.grad for n, p in [*model.named_parameters(), *objective.named_parameters()]}
        found.append((float(terms.total.detach()), grads))
    (one_loss, one), (two_loss, two) = found
    assert abs(one_loss - two_loss) < 1e-5
    assert {n for n, g in one.items() if g is None} == {n for n, g in two.items() if g is None}
    for name in one:
        if one[name] is not None:
            torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-4)


class Diverged(nn.Module):
    def forward(self, embeddings, scale, progress, detailed=False):
        term = embeddings.image.sum() * float("nan")
        return LossTerms(term, {"contrastive": scale * 0, "ranking": term})


def test_a_non_finite_term_is_named_and_nothing_changes():
    model = JointModel(trunk_config("drc-tiny"))
    before = {n: p.clone() for n, p in model.named_parameters()}
    with pytest.raises(NonFinite, match="process 0: ranking"):
        backward(model, Diverged(), random_batch(), Progress(0, 10, 1), CPU)
    assert all(p.grad is None and torch.equal(p, before[n]) for n, p in model.named_parameters())


class Noting(nn.Module):
    """An objective that knows nothing of biases, groups and teachers, or names what it wants."""

    def forward(self, embeddings, scale, progress, detailed=False, groups=None):
        self.groups = groups
        return LossTerms(embeddings.image.sum(), {"sum": embeddings.image.sum()})


def test_an_objective_gets_the_inputs_that_it_names():
    model = JointModel(trunk_config("drc-tiny"))
    model.trunk.start_sigmoid()
    batch = dataclasses.replace(
        random_batch(), groups=torch.arange(12)[:, None], teacher_features={"x": torch.ones(12)}
    )
    objective = Noting()
    backward(model, objective, batch, Progress(0, 10, 1), CPU)
    assert objective.groups is batch.groups
    with pytest.raises(NonFinite):
        backward(model, Diverged(), batch, Progress(0, 10, 1), CPU)


@pytest.mark.parametrize("method", ["clip", "siglip", "alip", "rank"])
def test_pairs_that_belong_together_count_in_chunks_as_in_one_shot(method):
    groups = torch.arange(12).remainder(7)[:, None]  # pairs 0 and 7, 1 and 8, … in different chunks
    found = []
    for chunk, ids in ((None, groups), (5, groups), (None, None)):
        model = JointModel(trunk_config("drc-tiny"), seed=1)
        model.trunk.start_sigmoid()
        batch = dataclasses.replace(random_batch(second=method == "alip"), groups=ids)
        terms = backward(model, Objective(model.dim, method), batch, Progress(9, 10, 10), CPU, chunk)
        found.append((float(terms.total.detach()), model.trunk.towers.text_projection.grad))
    (one, one_grad), (two, two_grad), (plain, plain_grad) = found
    assert abs(one - two) < 1e-5 and one < plain
    torch.testing.assert_close(two_grad, one_grad, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(plain_grad, one_grad, atol=1e-5)


def test_a_refused_step_leaves_the_objective_as_it_was():
    model = JointModel(trunk_config("drc-tiny"))
    with torch.no_grad():
        model.trunk.towers.visual.proj.fill_(float("nan"))
    objective = Objective(model.dim, "alip")
    with pytest.raises(NonFinite, match="contrastive"):
        backward(model, objective, random_batch(second=True), Progress(0, 10, 1), CPU)
    assert objective.alip_thresholds.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("frozen", [(), ("trunk.towers.visual.*",)])
def test_terms_are_compared_alike_in_chunks_and_where_learning_moves_them(frozen):
    reports = []
    for chunk in (None, 5):
        model = JointModel(trunk_config("drc-tiny"), seed=1)
        freeze(model, frozen)
        objective, now = Objective(model.dim, "cyclip"), Progress(0, 10, 1)
        report = backward(model, objective, random_batch(), now, CPU, chunk, True, True).report
        reports.append({name: value for name, value in report.items() if name.startswith("gradient_")})
    one, two = reports
    assert one["gradient_norm/contrastive"] > 0 and two == pytest.approx(one, rel=1e-4)


def test_batch_statistics_are_refused_where_the_batch_is_cut():
    from dinorankclip.train.assemble import _refuse_batch_statistics

    model = nn.Sequential(nn.BatchNorm1d(3))
    _refuse_batch_statistics(model, TrainSettings())
    with pytest.raises(UserError, match="BatchNorm"):
        _refuse_batch_statistics(model, TrainSettings(budget=BudgetSettings(batch=8, chunk=4)))


def test_a_frozen_batch_norm_keeps_its_statistics_and_may_be_cut():
    from dinorankclip.train.assemble import _refuse_batch_statistics

    model = JointModel(trunk_config("drc-tiny"))
    model.trunk.towers.visual.norm, model.trunk.towers.other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    freeze(model, ("trunk.towers.visual.*",))
    model.train()
    frozen, learning = model.trunk.towers.visual.norm, model.trunk.towers.other
    assert model.training and learning.training and not frozen.training
    frozen(torch.randn(16, 3) + 5)
    assert frozen.running_mean.abs().max() == 0 and model.eval().train() is model and not frozen.training
    cut = TrainSettings(budget=BudgetSettings(batch=8, chunk=4))
    with pytest.raises(UserError, match="BatchNorm"):
        _refuse_batch_statistics(model, cut)
    freeze(model, ("trunk.towers.other.*",))
    _refuse_batch_statistics(model.train(), cut)


def test_a_non_finite_gradient_is_not_applied():
    model = JointModel(trunk_config("drc-tiny"))
    updater = Updater({"model": model}, OptimSettings(), 10)
    before = {n: p.clone() for n, p in model.named_parameters()}
    model.trunk.logit_scale.grad = torch.tensor(float("inf"))
    with pytest.raises(NonFinite, match=r"processes: the gradient of model\.trunk\.towers\.logit_scale\."):
        updater.step(Progress(0, 10, 1), model.trunk.logit_scale)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize(("sign", "bound"), [(-1.0, math.log(100)), (1.0, 0.0)])
def test_the_temperature_stays_within_its_bounds(sign, bound):
    model = JointModel(trunk_config("drc-tiny"))
    updater = Updater({"model": model}, OptimSettings(lr=10.0, warmup_steps=1), 10)
    model.trunk.logit_scale.grad = torch.tensor(sign)
    updater.step(Progress(0, 10, 1), model.trunk.logit_scale)
    assert model.trunk.logit_scale.item() == pytest.approx(bound)


def test_by_hand():
    # one step with gradient 3 and β = 0.98 leaves v = 0.02 · 9, hence √v̂ = 3; ε = 1 leaves 3/4 of the step
    share = undamped(torch.tensor([0.18, 0.0]), torch.tensor(1.0), 0.98, 1.0)
    assert share.tolist() == pytest.approx([0.75, 0.0])


def test_it_is_the_share_of_the_step_that_was_taken():
    objective = Objective(8, "rank", LossSettings(order=3, head_dim=4))
    settings = OptimSettings(lr=1.0, weight_decay=0.0, clip_norm=None, eps=1e-6, warmup_steps=1)
    updater = Updater({"objective": objective}, settings, 10)
    sizes = {"image.heads.2.": 1e-6, "text.heads.2.": 1.0}  # order 3 has not begun: it has no gradient
    for part, size in sizes.items():
        for name, p in updater.parameters.items():
            if part in name:
                p.grad = torch.full_like(p, size)
    before = {name: p.detach().clone() for name, p in updater.parameters.items()}
    updater.step(Progress(0, 10, 1), nn.Parameter(torch.tensor(1.0)))
    shares = undamped_shares(updater.optimizers, updater.parameters.items())
    assert shares == pytest.approx({"undamped2_image": 0.5, "undamped2_text": 1 / (1 + 1e-6)})
    moved = before["objective.ranking.transitions.image.heads.2.key.weight"]
    moved = moved - updater.parameters["objective.ranking.transitions.image.heads.2.key.weight"].detach()
    assert moved.mean().item() == pytest.approx(settings.lr * shares["undamped2_image"], rel=1e-5)


def test_a_method_without_heads_has_none():
    updater = Updater({"objective": nn.ModuleDict({"other": nn.Linear(2, 2)})}, OptimSettings(), 10)
    assert undamped_shares(updater.optimizers, updater.parameters.items()) == {}
