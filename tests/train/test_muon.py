"""Muon: its orthogonal steps, the matrices it takes, torch's own Muon beside it, and shares of several processes."""

import copy

import pytest
import torch
from torch import nn

from dinorankclip import distributed
from dinorankclip.config import OptimSettings
from dinorankclip.models.joint import JointModel, Students
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train import muon
from dinorankclip.train.muon import Muon, is_matrix, orthogonal, orthogonal_everywhere, polynomials
from dinorankclip.train.step import Updater, optimisers
from dinorankclip.types import Progress

STEPS = Progress(0, 10, 1)


def by_decomposition(matrix, iterations):
    """The docstring's loops: the polynomial of each singular value."""
    u, s, v = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for first, third, fifth in polynomials(iterations):
        s = first * s + third * s**3 + fifth * s**5
    return u * s @ v


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 6, 11), (2, 5, 20), (1, 1, 7)])
@pytest.mark.parametrize("iterations", [3, 4, 5])
def test_equals_the_polynomial_of_singular_values(shape, iterations):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.stack([by_decomposition(matrix, iterations) for matrix in matrices])
    torch.testing.assert_close(orthogonal(matrices, iterations), wanted, rtol=1e-9, atol=1e-9)


def test_by_hand():
    # diag(3, 4)/5 has singular values 0.6 and 0.8; three polynomials, one after the other.
    values = torch.tensor([0.6, 0.8], dtype=torch.float64)
    for a, b, c in ((8.1306, -23.7673, 17.5629), (3.6841, -2.7562, 0.5404), (2.7329, -2.0355, 0.4591)):
        values = a * values + b * values**3 + c * values**5
    found = orthogonal(torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64))[None], 3)
    torch.testing.assert_close(found[0], torch.diag(values))


@pytest.mark.parametrize(("iterations", "least"), [(3, 0.0091), (4, 0.0022), (5, 0.00051)])
def test_singular_values_end_near_one(iterations, least):
    values = torch.logspace(torch.tensor(least).log10(), 0, 500, dtype=torch.float64)
    for a, b, c in polynomials(iterations):
        values = a * values + b * values**3 + c * values**5
    assert values.min() > 0.695 and values.max() < 1.305
    wide = torch.randn(4, 32, 128, generator=torch.Generator().manual_seed(0))
    found = torch.linalg.svdvals(orthogonal(wide, iterations))
    assert found.min() > 0.69 and found.max() < 1.31


def test_a_gradient_of_zero_moves_nothing():
    assert orthogonal(torch.zeros(2, 4, 4)).abs().max() == 0


def test_scale_of_the_gradient_does_not_matter():
    matrices = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(orthogonal(1e-6 * matrices), orthogonal(1e3 * matrices))


def test_steps_are_those_of_torch():
    """torch.optim.Muon iterates other polynomials, in bfloat16, so it is near, not equal."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (24, 24), "b.weight": (96, 24), "c.weight": (24, 96)}
    ours = {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}
    theirs = copy.deepcopy(ours)
    group = {"params": list(ours.values()), "names": list(ours), "weight_decay": 0.1}
    left = Muon([group], lr=0.02, momentum=0.95, iterations=3)
    right = torch.optim.Muon(theirs.values(), lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    start = copy.deepcopy(ours)
    for _ in range(3):
        for name, parameter in ours.items():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            theirs[name].grad = parameter.grad.clone()
        left.step()
        right.step()
    for name, parameter in ours.items():
        moved, wanted = parameter - start[name], theirs[name] - start[name]
        assert (moved - wanted).norm() < 0.25 * wanted.norm()


def test_query_key_and_value_take_steps_of_their_own():
    fused = nn.Parameter(torch.zeros(24, 8))
    fused.grad = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
    optimizer = Muon([{"params": [fused], "names": ["x.in_proj_weight"]}], lr=1.0, momentum=0.0, iterations=3)
    optimizer.step()
    for part, gradient in zip(fused.detach().chunk(3), fused.grad.chunk(3)):
        torch.testing.assert_close(part, -0.2 * 8**0.5 * orthogonal(gradient[None], 3)[0])


def test_only_matrices_inside_blocks_are_muons():
    model = JointModel(trunk_config("drc-tiny"), 0, Students("vit-micro", "vit-micro"))
    names = {name for name, parameter in model.named_parameters() if is_matrix(name, parameter)}
    assert len(names) == 4 * (3 + 2) + 4 * (3 + 3)  # trunk: 3 and 2 blocks; students: 3 and 3
    assert not any(word in name for name in names for word in ("embedding", "proj.weight.", "conv1", "text_projection"))
    adamw, own = optimisers(dict(model.named_parameters()), OptimSettings(muon_rate=7.0))
    assert set(own.param_groups[0]["names"]) == names and own.param_groups[0]["rate_factor"] == 7.0
    others = {name for group in adamw.param_groups for name in group["names"]}
    assert others | names == {name for name, _ in model.named_parameters()} and not others & names
    (alone,) = optimisers(dict(model.named_parameters()), OptimSettings(name="adamw"))
    assert isinstance(alone, torch.optim.AdamW)


def test_blocks_alone_leave_nothing_to_adamw():
    model = JointModel(trunk_config("drc-tiny"))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_matrix(name, parameter))
    (own,) = Updater({"model": model}, OptimSettings(), 10).optimizers
    assert isinstance(own, Muon)


def test_state_comes_back():
    torch.manual_seed(0)
    model = JointModel(trunk_config("drc-tiny"))
    other = copy.deepcopy(model)
    first, second = (Updater({"model": each}, OptimSettings(), 10) for each in (model, other))

    def step(updater, seed):
        generator = torch.Generator().manual_seed(seed)
        for parameter in updater.parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        updater.step(Progress(seed, 10, 1), nn.Parameter(torch.tensor(1.0)))

    step(first, 0)
    other.load_state_dict(model.state_dict())
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()})
    assert any(name.endswith("attn.in_proj_weight/momentum") for name in first.state())
    for seed in (1, 2):
        step(first, seed)
        step(second, seed)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_the_limit_of_gradients_does_not_change_muons_direction():
    model = nn.ModuleDict({"trunk": nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(8, 8, bias=False)])})})
    parameter = model["trunk"]["blocks"][0].weight
    moved = []
    for limit in (None, 1e-3):
        with torch.no_grad():
            parameter.zero_()
        updater = Updater({"model": model}, OptimSettings(clip_norm=limit), 10)
        parameter.grad = torch.eye(8)
        updater.step(STEPS, nn.Parameter(torch.tensor(1.0)))
        moved.append(parameter.detach().clone())
    torch.testing.assert_close(moved[0], moved[1])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shares_of_processes_give_the_whole(count, monkeypatch):
    stack = torch.randn(count, 6, 6, generator=torch.Generator().manual_seed(0))
    shares = []
    for rank in range(2):
        monkeypatch.setattr(muon.distributed, "world", lambda rank=rank: distributed.World(rank, 2))
        monkeypatch.setattr(
            muon.distributed, "gather_rows", lambda rows: shares.append(rows) or torch.cat([rows, rows])
        )
        orthogonal_everywhere(stack, 3)
    torch.testing.assert_close(torch.cat(shares)[:count], orthogonal(stack, 3))
