"""Both sides of each bench on tiny data: they train alike, read the same pairs, see the same pictures."""

import numpy as np
import pytest
import torch

from bench import embedding, end_to_end, orders, scaling, step
from bench.harness import Comparison
from bench.open_clip_side import OpenClipTrainer
from bench.photos import caption_lengths, enlarged, read_pairs, stored
from bench.sides import OurTrainer, starting_model, training_loader
from dinorankclip.config import with_changes
from dinorankclip.data.decode import read_header
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.losses import RankingLoss
from dinorankclip.presets import for_method, preset
from tests.data.pair_making import write_set

TRUNK, BATCH = "drc-tiny", 8


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_set(folder, count=40, shards=2)
    return str(write_set(folder, count=8, shards=1, part="val", first=100))


def test_both_sides_follow_the_same_curve(pairs):
    """Same weights, batches, losses, optimiser and schedule: the losses of ten steps agree."""
    ours = OurTrainer(TRUNK)
    theirs = OpenClipTrainer(TRUNK, ours.model, BATCH)
    batches = step.batches_of(ours.model, pairs, BATCH, 5, long=False) * 2
    theirs.steps([(ours.model.normalised(b.images), theirs.tokenizer(b.captions)) for b in batches])
    ours.steps(batches)
    torch.testing.assert_close(torch.stack(ours.losses), torch.stack(theirs.losses), atol=1e-4, rtol=0)
    assert abs(float(ours.losses[0] - theirs.losses[0])) < 1e-5
    assert ours.losses[-1] < ours.losses[0] - 0.01  # it did learn
    assert torch.optim.AdamW is type(theirs.optimizer) and not theirs.optimizer.defaults["fused"]


def test_long_captions_fill_the_context_and_cost_both_sides_the_same(pairs):
    facts = step.our_steps(TRUNK, pairs, BATCH, 1, long=True)[1]
    assert facts["mean"] == facts["longest"] == 77
    losses = step.their_steps(TRUNK, pairs, BATCH, 1)[1]["losses"]
    assert losses[True] == pytest.approx(facts["losses"], abs=step.SAME_LOSS)
    assert losses[False] == pytest.approx(step.our_steps(TRUNK, pairs, BATCH, 1, long=False)[1]["losses"], abs=1e-5)


def test_open_clips_pipeline_reads_the_shards_that_ours_reads(pairs):
    samples = read_pairs(pairs, 16)
    assert [len(sample.captions) for sample in samples] == [1] * 16
    model = starting_model(TRUNK)
    theirs = OpenClipTrainer(TRUNK, model, BATCH)
    with stored(samples, "shards", shards=2) as folder:
        data = theirs.shards(folder, 16)
        read = list(data.dataloader)
        our_batches = training_loader(model, open_pairs(folder, split="all"), BATCH)
        assert our_batches.steps_per_epoch == 2
        end_to_end.our_epoch(TRUNK, folder, BATCH, workers=0)[0]()
        theirs.train(data)
    assert [tuple(images.shape) for images, _ in read] == [(BATCH, 3, 48, 48)] * 2
    shown = {tuple(ids.tolist()) for _, texts in read for ids in texts}
    wanted = {tuple(row.tolist()) for row in theirs.tokenizer([sample.captions[0] for sample in samples])}
    assert shown == wanted
    assert len(theirs.losses) == 2
    mean, longest = caption_lengths([sample.captions[0] for sample in samples], Tokenizer())
    assert 3 <= mean <= longest <= 77


def test_both_sides_embed_and_preprocess_the_same_photos(pairs):
    samples = enlarged(read_pairs(pairs, 4), (96, 72))
    header = read_header(samples[0].image)
    assert (header.height, header.width) == (72, 96)
    with stored(samples, "folder") as folder:
        ours = embedding.our_embedding(TRUNK, folder, 1)[1]["embeddings"]
        theirs = embedding.their_embedding(TRUNK, folder, 0)[1]["embeddings"]
    assert ours.shape == (4, 128)
    assert (ours * theirs).sum(1).min() > embedding.SAME_EMBEDDING
    levels = [
        side(TRUNK, False, samples)[1]["levels"]
        for side in (embedding.our_preprocessing, embedding.their_preprocessing)
    ]
    assert np.abs(levels[0] - levels[1]).mean() < 1.0
    assert embedding.our_preprocessing(TRUNK, True, samples)[1]["levels"].shape == (4, 3, 48, 48)


def test_steps_of_an_order_and_of_scaling_run(pairs):
    changes = {"data": pairs, "budget.batch": 8, "reading.workers": 0}
    base = with_changes(preset("scenes"), changes)
    losses = orders.training_steps(with_changes(for_method(base, "rank"), {"loss.order": 2}), 2)[0]()
    clip = orders.training_steps(for_method(base, "clip"), 2)[0]()
    assert len(losses) == 2 and losses[0] > clip[0] > 0  # the ranking terms come on top of InfoNCE
    step = scaling.step_of(TRUNK, 3, 16)[0]
    assert step() > step()  # the same pairs again: the first step was really taken


def test_measured_orders_stand_beside_the_papers_projections():
    seconds = {"order 0": [1.0, 2.0], "order 3": [1.5, 3.0], "full method, order 3": [2.0, 4.0]}
    lines = orders.beside_paper(Comparison("a trunk", seconds, orders.BASE, 1, cost=True)).splitlines()
    assert lines[4] == "| order | measured, times order 0 | paper (projected), times order 0 | paper (projected) ms |"
    assert lines[6:] == ["| 0 | 1 | 1.00 | 301 |", "| 3 | 1.50 (1.50–1.50) | 1.26 | 379 |"]


def test_the_loss_alone_is_the_whole_loss():
    """Of the embeddings it draws, by the other backend."""
    value = scaling.loss_of(TRUNK, 3, 64)[0]()
    loss = RankingLoss(128, order=3, backend="reference")
    loss.set_progress(scaling.LATE.step, scaling.LATE.total_steps, scaling.LATE.epochs)
    draws = torch.Generator().manual_seed(0)
    for count in (scaling.SMALL, 64):
        image, text = (torch.randn(count, 128, generator=draws) for _ in range(2))
    assert value == pytest.approx(loss(image, text, torch.tensor(20.0)).total.item(), rel=1e-5)


def test_memory_growth_is_an_exponent_of_the_batch():
    batches = [256, 512]
    cells = {f"{order}/{b}": {"seconds": 1.0, "bytes": 1e7} for b in batches for order in (0, 1, 3)}
    cells |= {f"loss 1/{b}": {"seconds": 1.0, "bytes": 1e6} for b in batches}
    cells |= {f"loss 3/{b}": {"seconds": 2.0, "bytes": 1e4 * b**1.5} for b in batches}
    assert scaling.growth(cells, 3, batches) == pytest.approx(1.5)
    assert scaling.growth(cells, 1, batches) is None
    lines = scaling.as_markdown(cells, [0, 1, 3], batches, batches, "scaling.svg").splitlines()
    assert lines[-1] == "| order 3 | 41 | 116 | B^1.50 |" and lines[-2].endswith("| 1 | 1 | too little to see |")
