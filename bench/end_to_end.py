"""Training from WebDataset shards against open_clip: python -m bench.end_to_end [--pairs DIR] [--workers 1]

Both sides read the same tars (one caption an image), decode, crop to 90–100 % of the area, resize, tokenise and take
steps, from the start of an epoch to its last update. open_clip runs its own data pipeline, whose workers stay alive
between epochs; ours starts its workers anew each time. A ViT reads photos enlarged to 512×384, a small trunk an epoch
of those as they are stored, and part of it enlarged.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path

from bench.harness import Comparison, alternate, arguments, machine_now, write_record
from bench.open_clip_side import OpenClipTrainer
from bench.photos import LARGE, caption_lengths, enlarged, read_pairs, stored, whole_batches
from bench.sides import Built, OurTrainer, running, starting_model, training_loader
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.tokens import Tokenizer

THEIRS, OURS = "open_clip", "ours"
WANTED = 1.4


def our_epoch(name: str, folder: Path, batch: int, workers: int) -> Built:
    ours = OurTrainer(name)
    source = open_pairs(folder, split="all")
    ours.steps(islice(training_loader(ours.model, source, batch), 1))  # only warms up
    loader = training_loader(ours.model, source, batch, workers)

    def run() -> None:
        with closing(iter(loader)) as batches:
            ours.steps(islice(batches, loader.steps_per_epoch))

    return run, {}


def their_epoch(name: str, folder: Path, batch: int, workers: int, pairs: int) -> Built:
    model = starting_model(name)
    theirs = OpenClipTrainer(name, model, batch, workers)
    for first in islice(training_loader(model, open_pairs(folder, split="all"), batch), 1):
        theirs.steps([(model.normalised(first.images), theirs.tokenizer(first.captions))])  # only warms up
    data = theirs.shards(folder, pairs)
    return lambda: theirs.train(data), {}


def compare(
    name: str, folder: Path, shown: str, pairs: int, batch: int, workers: int, rounds: int, threads: int, note: str
) -> Comparison:
    builders = {
        THEIRS: partial(their_epoch, name, folder, batch, workers, pairs),
        OURS: partial(our_epoch, name, folder, batch, workers),
    }
    with running(builders, threads) as sides:
        times = alternate(sides, rounds, warmups=0, title=name)
    workers_said = f"{workers} worker{'s' * (workers != 1)}"
    title = f"End to end, {name}, {pairs} pairs in batches of {batch}, photos {shown}, {workers_said}"
    return Comparison(title, times, THEIRS, pairs, wanted={OURS: WANTED}, note=note)


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=1, help="reading processes of each side")
    usual = ["ViT-B-32:32:256:enlarged", "drc-small:128:5888:stored", "drc-small:128:1920:enlarged"]
    parser.add_argument("--plans", nargs="+", default=usual, help="TRUNK:BATCH:PAIRS:enlarged|stored …")
    options = parser.parse_args(argv)
    if options.quick:
        options.plans = ["drc-tiny:16:64:enlarged"]
    about = machine_now(options.threads)
    comparisons = []
    for name, batch, pairs, size in (plan.split(":") for plan in options.plans):
        batch, enlarge = int(batch), size == "enlarged"
        samples = read_pairs(options.pairs, whole_batches(options.pairs, int(pairs), batch * max(1, options.workers)))
        shown = "as stored"
        if enlarge:
            samples, shown = enlarged(samples), f"enlarged to {LARGE[0]}×{LARGE[1]}"
        mean, longest = caption_lengths([sample.captions[0] for sample in samples], Tokenizer())
        note = f"Captions of {mean:.1f} tokens on average, at most {longest}."
        with stored(samples, "shards", shards=max(4, options.workers)) as folder:
            sizes = (len(samples), batch, options.workers, options.rounds or 2, options.threads)
            comparisons.append(compare(name, folder, shown, *sizes, note))
    write_record("end-to-end", comparisons, options, about)


if __name__ == "__main__":
    main()
