"""Two processes equal one: loss, gradients of embeddings and of heads, thresholds, telemetry; every method."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dinorankclip import distributed
from dinorankclip.config import AnchorSettings, LossSettings
from dinorankclip.losses import AnchorLoss, Objective, gradient_report
from dinorankclip.types import Embeddings, Progress

PAIRS, DIM = 10, 6
CASES = {
    "clip": ("clip", LossSettings()),
    "siglip": ("siglip", LossSettings()),
    "cyclip": ("cyclip", LossSettings()),
    "alip": ("alip", LossSettings()),
    "rankclip": ("rankclip", LossSettings()),
    "order 3": ("rank", LossSettings(order=3, head_dim=4)),
    "order 5, short lists, without self": ("rank", LossSettings(5, 4, list_length=7, include_self=False)),
    "order 3, centred": ("rank", LossSettings(order=3, head_dim=4, centred=True)),
    "order 1 of a teacher": ("rank", LossSettings(order=1, reference="teacher")),
    "order 2 of a teacher, centred": (
        "rank",
        LossSettings(2, reference="teacher", transitions="teacher", centred=True),
    ),
    "clip, anchored": ("clip", LossSettings()),
    "clip, decorrelated": ("clip", LossSettings(decorrelation=2.0)),
    "clip, two captions": ("clip", LossSettings(two_captions=True)),
    "clip, two captions, groups": ("clip", LossSettings(two_captions=True)),
    "clip, anchored, groups": ("clip", LossSettings()),
    "clip, groups": ("clip", LossSettings()),
    "siglip, groups": ("siglip", LossSettings()),
    "alip, groups": ("alip", LossSettings()),
    "order 3, groups": ("rank", LossSettings(order=3, head_dim=4)),
    "order 3, centred, groups": ("rank", LossSettings(order=3, head_dim=4, centred=True)),
}
# pairs 0 and 7, 2 and 3, 4 and 8 and 9 belong together: within a process and across
GROUPS = torch.tensor([[0, 10], [1, 11], [2, 12], [3, 12], [4, 14], [5, 15], [6, 16], [0, 17], [8, 14], [9, 14]])


def run(rows: slice) -> dict[str, dict[str, torch.Tensor]]:
    """What the owner of these rows sees; gradients averaged over processes, embeddings' gradients of own rows."""
    results = {}
    for case, (method, settings) in CASES.items():
        draw = torch.Generator().manual_seed(0)
        names = ("image", "text", "second_text")
        whole = {n: torch.randn(PAIRS, DIM, dtype=torch.float64, generator=draw) for n in names}
        own = {n: x[rows].clone().requires_grad_() for n, x in whole.items()}
        frozen = {f"{n}_summary": torch.randn(PAIRS, 5, dtype=torch.float64, generator=draw)[rows] for n in names[:2]}
        scale = torch.tensor(9.0, dtype=torch.float64, requires_grad=True)
        anchor = AnchorLoss(AnchorSettings(weight=1.0), 5, DIM) if "anchored" in case else None
        objective = Objective(DIM, method, settings, seed=1, anchor=anchor).double()
        bias = torch.tensor(-5.0, dtype=torch.float64, requires_grad=True) if method == "siglip" else None
        groups = GROUPS[rows] if case.endswith("groups") else None
        features = {"teacher_features": frozen, "bias": bias, "groups": groups}
        out = objective(Embeddings(own), scale, Progress(500, 640, 64), **features)
        telemetry = gradient_report(out.terms, (own["image"], own["text"]))
        out.total.backward()
        size = distributed.world().size
        parameters = {n: p for n, p in objective.named_parameters()} | {"scale": scale}
        parameters |= {} if bias is None else {"bias": bias}
        distributed.mean_gradients(parameters.values())
        used = names if method == "alip" or settings.two_captions else names[:2]
        results[case] = {
            "loss": torch.tensor(distributed.mean_over_processes({"loss": out.total.item()})["loss"]),
            **{f"row {n}": own[n].grad / size for n in used},
            **{f"parameter {n}": p.grad for n, p in parameters.items()},
            **{f"buffer {n}": b for n, b in objective.named_buffers()},
            **{f"telemetry {n}": torch.tensor(v) for n, v in telemetry.items()},
        }
    return results


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    half = PAIRS // 2
    torch.save(run(slice(rank * half, (rank + 1) * half)), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(process, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def test_groups_change_the_loss():
    values = run(slice(0, PAIRS))
    assert all(
        values[case]["loss"] < values[case.removesuffix(", groups")]["loss"] for case in CASES if "groups" in case
    )


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(case, both):
    one = run(slice(0, PAIRS))[case]
    first, second = both[0][case], both[1][case]
    assert set(one) == set(first) == set(second)
    for name, value in one.items():
        if name.startswith("row "):
            assert (torch.cat([first[name], second[name]]) - value).abs().max() < 1e-10, name
        else:
            # numbers exchanged for a log line travel in single precision
            close = 1e-6 if name == "loss" or name.startswith("telemetry") else 1e-10
            assert (first[name] - value).abs().max() < close, name
            assert (second[name] - value).abs().max() < close, name
