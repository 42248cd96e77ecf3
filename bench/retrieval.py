"""Time and memory of retrieval scores at the size of COCO 5K: 5,000 images, 25,000 captions, 512 dimensions.

    python -m bench.retrieval --threads 1

Memory is the peak of the process above what it held with the embeddings loaded. Wanted: under 500 MB, in seconds.
What was found is printed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import tyro

from bench.harness import forget_peak, resident


@dataclass(frozen=True)
class Arguments:
    images: int = 5000
    each: int = 5
    """Captions an image."""
    width: int = 512
    threads: int = 1


def main(argv: list[str] | None = None) -> None:
    arguments = tyro.cli(Arguments, description=__doc__, args=argv)

    import torch
    import torch.nn.functional as F

    from dinorankclip.evaluate.retrieval import retrieval_scores

    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    image = F.normalize(torch.randn(arguments.images, arguments.width, generator=generator), dim=1)
    owner = torch.arange(arguments.images).repeat_interleave(arguments.each)
    noise = torch.randn(len(owner), arguments.width, generator=generator) * 6 / arguments.width**0.5
    text = F.normalize(image[owner] + noise, dim=1)
    captions = [[f"caption {number} of image {n}" for number in range(arguments.each)] for n in range(arguments.images)]
    list(retrieval_scores(image[:64], text[: 64 * arguments.each], captions[:64]))  # libraries load their kernels now
    before = resident("VmRSS")
    forget_peak()  # that of making the embeddings
    start, busy = time.perf_counter(), time.process_time()
    found = list(retrieval_scores(image, text, captions))
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    grown = (resident("VmHWM") - before) / 1e6
    print(f"{len(image)} images × {len(text)} captions × {arguments.width}, {arguments.threads} thread(s)")
    print(f"{seconds:.2f} s ({busy:.2f} s of CPU time), {grown:.0f} MB above the embeddings")
    print({score.name: round(score.value, 4) for score in found})


if __name__ == "__main__":
    main()
