"""Peak memory of something that is built and run in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import torch

from bench.resident import forget_peak, resident

Build = Callable[..., Callable[[], None]]
SMALL = 16


def peak_memory(build: Build, *arguments) -> float:
    """Bytes a fresh process grows by while it runs, inputs not counted. The first argument of `build` is a size."""
    fresh = multiprocessing.get_context("spawn")
    receive, send = fresh.Pipe(False)
    process = fresh.Process(target=_grown, args=(send, build, arguments, torch.get_num_threads()))
    process.start()
    grown = receive.recv()
    process.join()
    return grown


def _grown(channel, build: Build, arguments: tuple, threads: int) -> None:
    torch.set_num_threads(threads)
    run = build(*arguments)
    small = build(SMALL, *arguments[1:])  # loads what is loaded once
    small()
    before = resident("VmRSS")
    forget_peak()  # that of building the inputs
    run()
    channel.send(resident("VmHWM") - before)
