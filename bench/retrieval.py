"""Time and memory of retrieval at the size of COCO 5K: 5,000 images, 25,000 captions, 512 dimensions.

    python bench/retrieval.py --threads 1

Memory is the peak of the process above what it held with the embeddings loaded. Wanted: under 500 MB, in seconds.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

import tyro


@dataclass(frozen=True)
class Arguments:
    images: int = 5000
    each: int = 5
    """Captions an image."""
    width: int = 512
    threads: int = 1


def main(arguments: Arguments) -> None:
    import torch
    import torch.nn.functional as F

    from dinorankclip.scoring.retrieval import recalls

    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    image = F.normalize(torch.randn(arguments.images, arguments.width, generator=generator), dim=1)
    owner = torch.arange(arguments.images).repeat_interleave(arguments.each)
    noise = torch.randn(len(owner), arguments.width, generator=generator) * 6 / arguments.width**0.5
    text = F.normalize(image[owner] + noise, dim=1)
    right = torch.stack([owner, torch.arange(len(owner))], 1)
    recalls(image[:64], text[:320], right[:320])  # libraries load their kernels now
    before = peak()
    start, busy = time.perf_counter(), time.process_time()
    found = recalls(image, text, right)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    print(f"{len(image)} images × {len(text)} captions × {arguments.width}, {arguments.threads} thread(s)")
    print(f"{seconds:.2f} s ({busy:.2f} s of CPU time), {peak() - before:.0f} MB above the embeddings")
    print({name: round(value, 4) for name, value in found.items()})


def peak() -> float:
    """Largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
