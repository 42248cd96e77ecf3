"""Distillation terms: weights, masks, projectors; two processes equal one, chunks equal one shot."""

import dataclasses
import inspect
from typing import get_args, get_type_hints

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dinorankclip import distributed
from dinorankclip.commands.teacher import cache as teacher_cache
from dinorankclip.config import DistilSettings
from dinorankclip.losses.distillation import cosine_gram, gram_loss, rkd_items, rkd_loss
from dinorankclip.losses.distillation_terms import NEEDS, Branch, DistillationLoss, keeping_for, needed
from dinorankclip.losses.objective import Objective
from dinorankclip.types import Batch, Embeddings, Progress, UserError, View

PAIRS, WIDTH, LENGTH, WORDS = 8, 6, 7, 4
STUDENT_GRID, GRID = (4, 4), (2, 2)
IMAGE, TEXT = Branch(WIDTH, 5, 9), Branch(WIDTH, 3, 4)
NOW = Progress(3, 10, 1)
CRITERIA = get_args(get_type_hints(DistilSettings)["criterion"])


def settings(criterion, **others):
    return DistilSettings(cache="cache", criterion=criterion, branches="image+text", **others)


def loss_of(criterion, **others):
    return DistillationLoss(settings(criterion, **others), IMAGE, STUDENT_GRID, GRID, TEXT, seed=2)


def teacher_features(dtype=torch.float32):
    draw = torch.Generator().manual_seed(5)
    tokens, words = torch.randn(PAIRS, 4, 5, generator=draw), torch.randn(PAIRS, WORDS, 3, generator=draw)
    mask = torch.ones(PAIRS, WORDS, dtype=torch.bool)
    mask[1, 2:] = mask[3, 1:] = False  # two words, and one word
    words = words * mask[..., None]
    ids = torch.tensor([-1, 0, 0, 1, 2, 3, -1]).repeat(PAIRS, 1)
    floats = {
        "image_gram": tokens @ tokens.mT,
        "image_tokens": tokens,
        "image_summary": torch.randn(PAIRS, 9, generator=draw),
        "text_gram": words @ words.mT,
        "text_tokens": words,
        "text_summary": torch.randn(PAIRS, 4, generator=draw),
    }
    return {n: t.to(dtype) for n, t in floats.items()} | {"text_mask": mask, "text_word_ids": ids}


def student(dtype=torch.float32):
    draw = torch.Generator().manual_seed(6)
    shapes = {
        "image_student_tokens": (PAIRS, 16, WIDTH),
        "image_student_class": (PAIRS, WIDTH),
        "text_student_tokens": (PAIRS, LENGTH, WIDTH),
        "text_student_class": (PAIRS, WIDTH),
    }
    return {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}


def test_the_papers_weights_and_terms():
    named, features = student(), teacher_features()
    terms, report = loss_of("gram+rel")(Embeddings(named), features, NOW, detailed=True)
    assert set(terms) == {"gram_image", "relational_image", "gram_text", "relational_text"}
    pooled = named["image_student_tokens"].unflatten(1, (4, 4))
    tent = torch.tensor([[3, 3, 1, 0], [0, 1, 3, 3]]) / 7  # bilinear, antialiased: 4 cells → 2
    tokens = torch.einsum("yj,xi,bjic->byxc", tent, tent, pooled).flatten(1, 2)
    gram = gram_loss(tokens, features["image_tokens"])
    torch.testing.assert_close(terms["gram_image"], 0.5 * gram)
    torch.testing.assert_close(
        terms["relational_image"], 0.5 * rkd_loss(named["image_student_class"], features["image_summary"])
    )
    torch.testing.assert_close(
        terms["relational_text"], 0.25 * rkd_loss(named["text_student_class"], features["text_summary"])
    )
    each = []
    for b in range(PAIRS):
        ids = features["text_word_ids"][b]
        words = torch.stack([named["text_student_tokens"][b, ids == w].mean(0) for w in range(WORDS)])
        n = int(features["text_mask"][b].sum())
        ours, theirs = cosine_gram(words[None, :n]), cosine_gram(features["text_tokens"][b, None, :n])
        each.append((ours - theirs).square().mean() if n > 1 else torch.tensor(0.0))
    torch.testing.assert_close(terms["gram_text"], 0.25 * torch.stack(each).mean())
    assert 0 < report["gram_distance_image"] < 2


def test_the_gram_of_cached_tokens_stands_in_for_a_cached_gram():
    named, features = student(), teacher_features()
    loss = loss_of("gram+rel")
    with_gram, _ = loss(Embeddings(named), features, NOW)
    without, _ = loss(Embeddings(named), {n: t for n, t in features.items() if not n.endswith("gram")}, NOW)
    for name, value in with_gram.items():
        torch.testing.assert_close(without[name], value)


def test_what_a_criterion_needs():
    assert needed("gram+rel", "gram") == {"gram", "summary"} == needed("gram+rel", "both")
    assert needed("gram+rel", "tokens") == {"tokens", "summary"}
    assert needed("rkd", "gram") == {"summary"} and needed("mse", "both") == {"tokens"}
    with pytest.raises(UserError, match="needs cached tokens"):
        needed("cosine", "gram")
    with pytest.raises(UserError, match="no teacher features"):
        loss_of("rkd")(Embeddings(student()), {}, NOW)
    with pytest.raises(ValueError, match="give a DistillationLoss"):
        Objective(3, "distil")


def test_a_cache_that_is_made_for_a_criterion_serves_it_and_keeps_tokens_only_for_those_that_help_names():
    assert set(NEEDS) == set(CRITERIA)
    assert {criterion: keeping_for(criterion) for criterion in CRITERIA} == {
        "gram+rel": "gram", "rkd": "gram", "crd": "gram", "mse": "both", "cosine": "both",
    }  # fmt: skip
    assert all(needed(criterion, keeping_for(criterion)) for criterion in CRITERIA)
    on_tokens = [criterion for criterion in CRITERIA if keeping_for(criterion) == "both"]
    assert f"{' and '.join(on_tokens)} need cached tokens" in inspect.getsource(DistilSettings)
    assert f"tokens (PCA; for {' and '.join(on_tokens)};" in teacher_cache.__doc__


def test_projectors_belong_to_the_objective():
    for criterion in CRITERIA:
        names = [n for n, _ in loss_of(criterion).named_parameters()]
        assert bool(names) == (criterion in ("mse", "cosine", "crd"))
    assert all(n.startswith("projectors.") for n in names)


def run(rows):
    """Loss, own rows' gradients and parameters' gradients of every criterion, averaged over processes."""
    results = {}
    for criterion in CRITERIA:
        own = {n: x[rows].clone().requires_grad_() for n, x in student(torch.float64).items()}
        features = {n: x[rows] for n, x in teacher_features(torch.float64).items()}
        objective = Objective(3, "distil", distillation=loss_of(criterion)).double()
        out = objective(Embeddings(own), torch.tensor(1.0), NOW, teacher_features=features)
        out.total.backward()
        size = distributed.world().size
        distributed.mean_gradients(objective.parameters())
        result = {"loss": torch.tensor(distributed.mean_over_processes({"loss": out.total.item()})["loss"])}
        result |= {f"row {n}": x.grad / size for n, x in own.items() if x.grad is not None}
        results[criterion] = result | {f"parameter {n}": p.grad for n, p in objective.named_parameters()}
    return results


def process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    half = PAIRS // 2
    torch.save(run(slice(rank * half, (rank + 1) * half)), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path):
    mp.spawn(process, (str(tmp_path),), nprocs=2)
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for criterion, one in run(slice(0, PAIRS)).items():
        first, second = both[0][criterion], both[1][criterion]
        assert one.keys() == first.keys() == second.keys()
        for name, value in one.items():
            if name.startswith("row "):
                assert (torch.cat([first[name], second[name]]) - value).abs().max() < 1e-10, (criterion, name)
            else:
                close = 1e-6 if name == "loss" else 1e-10
                assert (first[name] - value).abs().max() < close, (criterion, name)
                assert (second[name] - value).abs().max() < close, (criterion, name)


def test_relational_items_are_drawn_by_seed_and_step():
    assert torch.equal(rkd_items(500, 1, 7), rkd_items(500, 1, 7)) and len(rkd_items(500, 1, 7)) == 128
    assert not torch.equal(rkd_items(500, 1, 7), rkd_items(500, 1, 8))


def test_the_relational_term_looks_at_no_more_pairs_than_it_is_told():
    named, features, few = student(), teacher_features(), loss_of("rkd", relational_items=4, weight=1.0)
    values = []
    for step in (3, 3, 4):
        value = few(Embeddings(named), features, Progress(step, 10, 1))[0]["relational_image"]
        picked = rkd_items(PAIRS, few.seed, step, 4)
        assert len(picked) == 4
        torch.testing.assert_close(
            value, rkd_loss(named["image_student_class"][picked], features["image_summary"][picked])
        )
        values.append(value.item())
    assert values[0] == values[1] != values[2]


@pytest.fixture(scope="module")
def whole_step():
    """A small model with both students, and a batch with teacher_features."""
    # Imported here: the processes above import this module, and need no open_clip.
    from dinorankclip.models.joint import JointModel, Students
    from dinorankclip.models.trunk import trunk_config

    model = JointModel(trunk_config("drc-tiny"), 0, Students("vit-micro", "vit-micro"))
    draw = torch.Generator().manual_seed(7)
    texts = torch.randint(1, 40_000, (PAIRS, LENGTH), generator=draw)
    texts[:, 0], texts[:, -1] = 49406, 49407
    batch = Batch(
        images=torch.randint(0, 256, (PAIRS, 3, 48, 48), dtype=torch.uint8, generator=draw),
        texts=texts,
        keys=[str(i) for i in range(PAIRS)],
        views=[View()] * PAIRS,
        captions=[""] * PAIRS,
        teacher_features=teacher_features(),
    )
    return model, batch


def gradients(model, batch, method, criterion, chunk):
    from dinorankclip.device import choose
    from dinorankclip.train.step import backward

    image = dataclasses.replace(IMAGE, student=model.image_student.width)
    text = dataclasses.replace(TEXT, student=model.text_student.width)
    loss = DistillationLoss(settings(criterion), image, model.image_student.grid, GRID, text)
    objective = Objective(model.dim, method, distillation=loss)
    model.zero_grad(set_to_none=True)
    model.students_only = method == "distil"
    terms = backward(model, objective, batch, NOW, choose("cpu"), chunk)
    parameters = {**dict(model.named_parameters()), **dict(objective.named_parameters())}
    return terms, {n: p.grad.clone() for n, p in parameters.items() if p.grad is not None}


@pytest.mark.parametrize("criterion", ["gram+rel", "mse", "crd"])
def test_chunks_equal_one_shot(whole_step, criterion):
    terms, whole = gradients(*whole_step, "clip", criterion, None)
    again, chunked = gradients(*whole_step, "clip", criterion, 3)
    assert terms.terms.keys() == again.terms.keys() and whole.keys() == chunked.keys()
    assert terms.total.item() == pytest.approx(again.total.item(), abs=1e-5)
    scale = max(g.abs().max() for g in whole.values())
    assert max((whole[n] - chunked[n]).abs().max() for n in whole) < 1e-5 * scale


def test_distillation_alone_leaves_the_trunk_alone(whole_step):
    model, batch = whole_step
    _, alone = gradients(model, batch, "distil", "gram+rel", None)
    assert alone and all(name.startswith(("image_student", "text_student")) for name in alone)
    assert model.trunk.towers.token_embedding.weight.grad is None
    _, beside = gradients(model, batch, "clip", "gram+rel", None)
    students = {n: g for n, g in beside.items() if "student" in n}
    assert all(torch.equal(alone[n], g) for n, g in students.items())  # and the trunk sends none into the students
