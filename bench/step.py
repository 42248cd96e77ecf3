"""A training step against open_clip's: python -m bench.step [--pairs DIR] [--trunks ViT-B-32:32 drc-small:128]

Both sides start from the same weights and take the same photos and captions, decoded beforehand. open_clip computes 77
tokens whatever the caption; ours computes what the captions have. A third side is ours with captions so long that all
77 tokens are used, which shows how much is due to the length and how much to the rest. open_clip gets pixels that are
normalised already, ours normalises in its step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import islice

import torch

from bench.harness import Comparison, alternate, arguments, machine_now, write_record
from bench.open_clip_side import OpenClipTrainer
from bench.sides import Built, OurTrainer, running, starting_model, training_loader
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.joint import JointModel
from dinorankclip.types import Batch

SAME_LOSS = 1e-5
WANTED = {"ViT-B-32": 1.4}  # any small trunk: 1.5
THEIRS, OURS, LONG = "open_clip", "ours", "ours, captions of 77 tokens"


def batches_of(model: JointModel, pairs: str, size: int, count: int, long: bool) -> list[Batch]:
    """Real batches; `long` says every caption again and again until it fills the context."""
    batches = list(islice(training_loader(model, open_pairs(pairs), size), count))
    if not long:
        return batches
    tokenizer = Tokenizer(model.trunk.text_spec)
    said = [[" ".join([caption] * 80) for caption in batch.captions] for batch in batches]
    return [replace(b, captions=captions, texts=tokenizer(captions)) for b, captions in zip(batches, said)]


def our_steps(name: str, pairs: str, size: int, count: int, long: bool) -> Built:
    """`count` steps. Tells the loss of each batch before the first step, and how long its captions are."""
    ours = OurTrainer(name)
    batches = batches_of(ours.model, pairs, size, count, long)
    lengths = torch.cat([(batch.texts > 0).sum(1) for batch in batches]).double()
    longest = sum(batch.texts.shape[1] for batch in batches) / count
    facts = {"losses": [ours.loss_of(batch) for batch in batches], "mean": float(lengths.mean()), "longest": longest}
    return lambda: ours.steps(batches), facts


def their_steps(name: str, pairs: str, size: int, count: int) -> Built:
    """Run the same steps; report the losses of long captions too."""
    model = starting_model(name)
    theirs = OpenClipTrainer(name, model, size)

    def batches(long: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
        some = batches_of(model, pairs, size, count, long)
        return [(model.normalised(batch.images), theirs.tokenizer(batch.captions)) for batch in some]

    losses = {long: [theirs.loss_of(*batch) for batch in batches(long)] for long in (False, True)}
    shown = batches(long=False)
    return lambda: theirs.steps(shown), {"losses": losses}


def compare(name: str, size: int, pairs: str, rounds: int, count: int, threads: int) -> Comparison:
    """`count` steps a side in each round."""
    builders = {
        THEIRS: partial(their_steps, name, pairs, size, count),
        OURS: partial(our_steps, name, pairs, size, count, long=False),
        LONG: partial(our_steps, name, pairs, size, count, long=True),
    }
    with running(builders, threads) as sides:
        wanted_losses = torch.tensor([sides[THEIRS].facts["losses"][long] for long in (False, True)])
        gap = float((wanted_losses - torch.tensor([sides[side].facts["losses"] for side in (OURS, LONG)])).abs().max())
        if gap > SAME_LOSS:
            raise SystemExit(f"{name}: the losses of the sides differ by {gap:.1e} on the same batch")
        facts = sides[OURS].facts
        times = alternate(sides, rounds, title=name)
    note = (
        f"Captions of {facts['mean']:.1f} tokens on average, start and end included; the longest of a batch has "
        f"{facts['longest']:.1f}. Largest difference of the sides' losses on the same batch: {gap:.0e}. "
        f"A round is {count} step{'s' * (count > 1)} a side."
    )
    wanted = {OURS: WANTED.get(name, 1.5)}
    title = f"Training step, {name}, batch {size}"
    return Comparison(title, times, THEIRS, size * count, wanted=wanted, note=note)


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trunks", nargs="+", default=["ViT-B-32:32", "drc-small:128"], help="TRUNK:BATCH …")
    options = parser.parse_args(argv)
    if options.quick:
        options.trunks = ["drc-tiny:16"]
    about = machine_now(options.threads)
    comparisons = []
    for name, size in (trunk.rsplit(":", 1) for trunk in options.trunks):
        large = not name.startswith("drc-")
        rounds = options.rounds or (2 if options.quick else 3 if large else 6)
        comparisons.append(compare(name, int(size), options.pairs, rounds, 1 if large else 3, options.threads))
    write_record("step", comparisons, options, about)


if __name__ == "__main__":
    main()
