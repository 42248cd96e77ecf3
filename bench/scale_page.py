# ruff: noqa: E501 — sentences of the page stand in one line
"""Writes docs/scale.md: what 10⁷, 10⁸ and 10⁹ pairs would take. python -m bench.scale_page

All numbers of the page come from `constants()`, the plans below and the records of docs/bench; nothing is typed into the
page. Change a constant here and run the script again (and `bench.cluster_simulation` for its record).
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.cluster_simulation import Cluster, expected_share, young
from bench.harness import newest

RECORDS, PAGE = Path("docs/bench"), Path("docs/scale.md")
MEASURED, PUBLISHED, ASSUMED = "measured here", "published", "assumed"


@dataclass(frozen=True)
class Constant:
    value: float
    unit: str
    kind: str
    source: str


@dataclass(frozen=True)
class Plan:
    pairs: float
    trunk: str
    gpus: int
    batch: int
    epochs: int
    orders: tuple[int, ...] = (1, 3)


PLANS = (
    Plan(1e7, "ViT-B-32", 8, 8192, 32),
    Plan(1e8, "ViT-B-16", 64, 32768, 13),
    Plan(1e9, "ViT-L-14", 512, 65536, 13),
)
LIST_LENGTH, HEAD_DIM, GPUS_OF_NODE = 32, 32, 8


def constants() -> dict[str, Constant]:
    scaling, embedding = newest(RECORDS, "scaling"), newest(RECORDS, "embedding")
    hashes, rate = newest(RECORDS, "checksum-cost"), newest(RECORDS, "teacher-rate")
    photos = next(
        c for c in embedding["comparisons"] if "training view" in c["title"] and "512×384 to 224" in c["title"]
    )
    list_bytes = scaling["cells"]["loss 1/512"]["bytes"] / 512**2
    saving = statistics.median(one["saving"] for one in hashes["rounds"]["without"])
    return {
        "decoding": Constant(
            photos["items"] / statistics.median(photos["seconds"]["ours"]), "pairs/s a core", MEASURED,
            "[embedding](bench/embedding-2026-11-17.md): JPEG of 512×384 to 224 px, training view",
        ),
        "teacher": Constant(
            rate["results"]["224"]["whole extraction"], "images/s on 2 cores", MEASURED,
            "teacher-rate-2026-11-15: EfficientNet-Lite0 at 224 px",
        ),
        "lists": Constant(list_bytes, "bytes for each own row × item", MEASURED,
                          "[scaling](bench/scaling-2026-11-16.md): the loss of order 1 alone, 512 pairs"),
        "saving": Constant(62e6 / saving / 1e9, "GB a core-second", MEASURED,
                           "[checksum-cost](bench/checksum-cost-2026-11-19.md): a checkpoint of 62 MB, without hashes"),
        "failures": Constant(54 * 24 * (16384 / GPUS_OF_NODE) / 419, "hours between failures of a node of 8", PUBLISHED,
                             "Llama 3 (2024): 419 unexpected interruptions in 54 days on 16,384 H100"),
        "peak": Constant(989e12, "FLOP/s of a GPU, bf16 dense", PUBLISHED, "data sheet of the H100 SXM"),
        "link": Constant(50e9, "bytes/s a GPU between nodes", PUBLISHED, "one 400 Gb/s port a GPU, as in DGX H100"),
        "memory": Constant(80e9, "bytes of a GPU", PUBLISHED, "data sheet of the H100 SXM"),
        "utilisation": Constant(0.35, "share of the peak that training reaches", ASSUMED, "`bench/gpu.sh` would tell"),
        "price": Constant(2.5, "dollars a GPU hour", ASSUMED, "multiply by your own price"),
        "bytes of a pair": Constant(40e3, "bytes", ASSUMED, "JPEG of about 350 px with its caption; yours differ"),
        "disk": Constant(1e9, "bytes/s that one process writes", ASSUMED, "a shared file system"),
        "restart": Constant(10 / 60, "hours from a failure to the next step", ASSUMED, "detection, start, loading"),
        "summary": Constant(1280 + 2 * 2 * 1280 / 64, "bytes an image", MEASURED,
                            "the class token alone (`--recipe taught`), 8 bits, an offset and a step for each 64 channels"),
    }  # fmt: skip


def forward_cost(trunk: str) -> tuple[float, int, int]:
    """FLOPs of a pair (both towers, forward, 77 tokens), parameters, and width of the embeddings; nothing is computed."""
    from dinorankclip import device

    device.declare_missing()
    import open_clip

    from dinorankclip.models.trunk import trunk_config

    config = trunk_config(trunk)
    with torch.device("meta"), torch.no_grad():
        towers = open_clip.CLIP(**config)
        size = config["vision_cfg"]["image_size"]
        with FlopCounterMode(display=False) as counter:
            towers.encode_image(torch.zeros(1, 3, size, size))
            towers.encode_text(torch.zeros(1, 77, dtype=torch.int64))
    return float(counter.get_total_flops()), sum(p.numel() for p in towers.parameters()), config["embed_dim"]


def ranking_flops(own: int, items: int, length: int, dim: int, order: int) -> float:
    """Forward and backward of the orders above 1 of four lists: scores, and the histories of order 3."""
    heads = HEAD_DIM * max(0, order - 1)
    scores = 4 * own * length * items * heads * 2
    histories = 4 * own * length * 3 * dim * HEAD_DIM * 2 if order >= 3 else 0
    return 3.0 * (scores + histories)


def ranking_bytes(own: int, items: int, length: int, order: int, per_entry: float) -> float:
    """Measured bytes of order 1 for each own row × item; queries and their gradients of the orders above."""
    return per_entry * own * items + 2 * 4 * 4 * own * length * HEAD_DIM * max(0, order - 1)


def planned(plan: Plan, known: dict[str, float]) -> dict[str, Any]:
    flops, parameters, dim = forward_cost(plan.trunk)
    own = plan.batch // plan.gpus
    steps = plan.pairs * plan.epochs / plan.batch
    speed = known["peak"] * known["utilisation"]
    step = own * 3 * flops / speed  # backward costs twice the forward pass
    state = 4 * parameters * 3  # weights and two moments (AdamW; Muon keeps one for most matrices)
    gradients = 2 * (plan.gpus - 1) / plan.gpus * 4 * parameters
    nodes = max(1, plan.gpus // GPUS_OF_NODE)
    cluster = Cluster(nodes, known["failures"], state / known["disk"] / 3600, known["restart"])
    share = expected_share(cluster, young(cluster))
    hours = steps * step / 3600 / share
    ranked = {
        order: {
            "time": ranking_flops(own, plan.batch, LIST_LENGTH, dim, order) / (own * 3 * flops),
            "bytes": ranking_bytes(own, plan.batch, LIST_LENGTH, order, known["lists"]),
            "whole": ranking_flops(own, plan.batch, plan.batch, dim, order) / (own * 3 * flops),
            "whole bytes": ranking_bytes(own, plan.batch, plan.batch, order, known["lists"]),
        }
        for order in plan.orders
    }
    rate = plan.batch / step
    return {
        "plan": plan, "gflops": flops / 1e9, "parameters": parameters, "steps": steps, "own": own, "step": step,
        "hours": hours, "gpu hours": hours * plan.gpus, "dollars": hours * plan.gpus * known["price"],
        "disk": plan.pairs * known["bytes of a pair"], "summaries": plan.pairs * known["summary"],
        "checkpoint": state, "saving": state / known["disk"], "gradients": gradients,
        "exchange": gradients / known["link"], "gathered": 2 * plan.batch * dim * 4 * 3,
        "rate": rate, "reading": rate * known["bytes of a pair"], "cores": rate / plan.gpus / known["decoding"],
        "nodes": nodes, "mtbf": cluster.mtbf, "young": young(cluster), "share": share,
        "failures": hours / cluster.mtbf, "ranked": ranked, "two passes": 4 / 3,
        "caching": plan.pairs / known["teacher"] * 2 / 3600,
    }  # fmt: skip


def bytes_text(count: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def power(number: float) -> str:
    return "10" + str(round(len(str(int(number))) - 1)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def page(found: list[dict[str, Any]], known: dict[str, Constant], simulated: dict[str, Any]) -> str:
    def rows(*cells: tuple[str, Any]) -> list[list[str]]:
        return [[name, *(text(one) for one in found)] for name, text in cells]

    head = ["", *(f"{power(one['plan'].pairs)} pairs" for one in found)]
    cost = rows(
        ("trunk", lambda f: f["plan"].trunk),
        ("parameters", lambda f: f"{f['parameters'] / 1e6:.0f} M"),
        ("GFLOPs of a pair, forward", lambda f: f"{f['gflops']:.1f}"),
        ("epochs", lambda f: str(f["plan"].epochs)),
        ("pairs seen", lambda f: f"{f['plan'].pairs * f['plan'].epochs:.2g}"),
        ("GPUs", lambda f: str(f["plan"].gpus)),
        ("global batch, of a GPU", lambda f: f"{f['plan'].batch:,}, {f['own']}"),
        ("steps", lambda f: f"{f['steps']:,.0f}"),
        ("a step", lambda f: f"{f['step']:.2f} s"),
        ("share of the time that trains", lambda f: f"{f['share']:.1%}"),
        ("**hours**", lambda f: f"**{f['hours']:,.1f}**"),
        ("GPU hours", lambda f: f"{f['gpu hours']:,.0f}"),
        (f"**dollars** at {known['price'].value:g} a GPU hour", lambda f: f"**{f['dollars']:,.0f}**"),
        ("with `--budget.chunk` (a second forward pass)", lambda f: f"×{f['two passes']:.2f}"),
    )
    disk = rows(
        ("pairs on disk", lambda f: bytes_text(f["disk"])),
        ("teacher's summaries (`taught`)", lambda f: bytes_text(f["summaries"])),
        ("core-hours to cache them on CPUs (lite0)", lambda f: f"{f['caching']:,.0f}"),
        ("a checkpoint", lambda f: bytes_text(f["checkpoint"])),
        ("reading, all GPUs", lambda f: f"{bytes_text(f['reading'])}/s"),
        ("pairs/s, all GPUs", lambda f: f"{f['rate']:,.0f}"),
        ("**cores that decode, for each GPU**", lambda f: f"**{f['cores']:.1f}**"),
        ("gradients, a GPU sends in a step", lambda f: bytes_text(f["gradients"])),
        (
            "which takes, not overlapped",
            lambda f: f"{f['exchange']:.3f} s, {f['exchange'] / f['step']:.1%} of the step",
        ),
        ("embeddings gathered and sent back, a GPU", lambda f: bytes_text(f["gathered"])),
    )
    lists = [
        [f"order {order}, {what}", *(text(f["ranked"][order]) for f in found)]
        for order in PLANS[0].orders
        for what, text in (
            (f"lists of {LIST_LENGTH}: memory", lambda r: bytes_text(r["bytes"])),
            (f"lists of {LIST_LENGTH}: FLOPs of the towers", lambda r: f"{r['time']:.2%}"),
            ("whole lists: memory", lambda r: bytes_text(r["whole bytes"])),
            ("whole lists: FLOPs of the towers", lambda r: f"{r['whole']:.0%}"),
        )
        if order > 1 or ("lists of" in what and "memory" in what)  # order 1 sorts, and multiplies nothing
    ]
    checked = formula_checked(known["lists"].value)
    failing = rows(
        ("nodes", lambda f: str(f["nodes"])),
        ("hours between failures", lambda f: f"{f['mtbf']:,.0f}"),
        ("failures of the run", lambda f: f"{f['failures']:.2f}"),
        ("steps wait for a checkpoint", lambda f: f"{f['saving']:.1f} s"),
        ("Young's interval", lambda f: f"{60 * f['young']:.0f} min"),
        ("`--record.save-every`", lambda f: f"{3600 * f['young'] / f['step']:,.0f}"),
    )
    cluster = simulated["cluster"]
    simulation = [
        [f"{row['nodes']}", f"{row['hours between failures']:.1f}", f"{row['young minutes']:.0f}", f"{row['share']:.1%}",
         f"{row['share without spares']:.1%}", f"{row['share of a slow restart']:.1%}"]
        for row in simulated["sizes"]
    ]  # fmt: skip
    gap = max(abs(row["simulated"] - row["expected"]) for row in simulated["sweep"])
    shares = {row["factor"]: row["simulated"] for row in simulated["sweep"]}
    best = max(simulated["sweep"], key=lambda row: row["simulated"])
    least, most = min(shares), max(shares)
    near = [100 * (shares[1.0] - shares[factor]) for factor in (0.5, 2.0)]
    index = newest(RECORDS, "memory")["index"]["indexed"]
    kinds = [[name, f"{c.value:,.4g}", c.unit, c.kind, c.source] for name, c in known.items()]
    last = found[-1]
    return "\n\n".join([
        "# Scale: what 10⁷, 10⁸ and 10⁹ pairs would take",
        "Computed on paper by `python -m bench.scale_page`: this project has trained on two CPU cores and on no GPU. Each constant "
        "is [listed below](#constants) as measured here, published or assumed. The largest doubt is the share of a GPU's "
        "peak that training reaches: hours and dollars are inversely proportional to it, and small trunks reach less than "
        "large ones. `bash bench/gpu.sh` measures it.",
        "## Hours and dollars",
        "hours = pairs × epochs × 3 × FLOPs of a pair / (GPUs × peak × utilisation × share that trains); "
        "dollars = hours × GPUs × price.",
        table(head, cost),
        "## Disk and network",
        table(head, disk),
        "A GPU needs more cores than many machines have for it where the trunk is small: decode smaller images "
        "(`dinorankclip data pack` stores them at the trained size), or train a larger trunk on the same node.",
        "## The ranking loss",
        f"Memory of one GPU and FLOPs relative to those of the towers, heads of width {HEAD_DIM}. The memory of orders above 1 is "
        f"a formula (queries and their gradients); on CPUs the measured memory was {checked}.",
        table(head, lists),
        f"Whole lists are out of reach at such batches: `--loss.list-length {LIST_LENGTH}` is the way. FLOPs flatter sorting, which "
        "is bound by memory; a GPU has to be asked.",
        "## Failures",
        table(head, failing),
        f"Simulated ([record](bench/cluster-simulation-{simulated['date']}.md), `python -m bench.cluster_simulation`): "
        f"{cluster['nodes']} nodes, {cluster['node_mtbf']:,.0f} hours between failures of a node, checkpoints of "
        f"{3600 * cluster['checkpoint']:.0f} s, restarts of {60 * cluster['restart']:.0f} min, 1 % spare nodes, "
        f"{cluster['lost']:.0%} of failures take a node away for {cluster['repair']:.0f} h. Share of the time that trains:",
        table(["nodes", "hours between failures", "Young, min", "share", "no spares", "restarts of 1 h"], simulation),
        f"- Daly's formula agrees with the simulation to {100 * gap:.2f} points over intervals from {least:g} to {most:g} times Young's.\n"
        f"- The best of the tried intervals is {best['factor']:g} times Young's. Half of it costs {near[0]:.1f} points, twice {near[1]:.1f}.\n"
        "- Spare nodes matter more than the interval: a group has a fixed size, and waits for a node where no spare is left.\n"
        f"- Restarts decide at a thousand nodes: one hour instead of ten minutes costs "
        f"{100 * (simulation_share(simulated, 1000, 'share') - simulation_share(simulated, 1000, 'share of a slow restart')):.0f} points.",
        "![Time lost by interval](bench/cluster-interval.svg)\n![Time lost by nodes](bench/cluster-nodes.svg)",
        "## Checkpoints by one process",
        f"One process writes the whole state: {bytes_text(last['checkpoint'])} for {last['plan'].trunk}, "
        f"{last['saving']:.1f} s at {known['disk'].value / 1e9:g} GB/s, every {60 * last['young']:.0f} minutes: "
        f"{last['saving'] / (3600 * last['young']):.2%} of the time on {last['nodes']} nodes. Checkpoints that all processes write "
        "(torch.distributed.checkpoint) could save that share and no more: [decision](decisions.md).",
        "## What does not reach these sizes today",
        "- Every process holds the whole model, its gradients and moments: "
        f"{bytes_text(last['checkpoint'] + 4 * last['parameters'])} of {bytes_text(known['memory'].value)} for {last['plan'].trunk}.\n"
        "- The number of processes is fixed while a group runs. After a failure `torchrun --max-restarts` starts as many again.\n"
        f"- A process indexes {index['samples']:,.0f} samples in {bytes_text(index['helper'])} "
        "([memory](bench/memory-2026-11-18.md)); a thousand times as many need `pipe:` shards.\n"
        "- Hosts agree once a step over gloo, which connects every process with every other.",
        "## Constants",
        table(["constant", "value", "unit", "kind", "source"], kinds),
    ]) + "\n"  # fmt: skip


def formula_checked(per_entry: float) -> str:
    """Measured bytes of the orders above 1 over those of `ranking_bytes`, least and most."""
    cells = newest(RECORDS, "scaling")["cells"]
    shares = [
        cells[f"loss {order}/512"]["bytes"] / ranking_bytes(512, 512, 512, order, per_entry) for order in (2, 3, 4, 5)
    ]
    return f"{min(shares):.1f} to {max(shares):.1f} times that"


def simulation_share(simulated: dict[str, Any], nodes: int, name: str) -> float:
    return next(row[name] for row in simulated["sizes"] if row["nodes"] == nodes)


def main(argv: list[str] | None = None) -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(argv)
    known = constants()
    simulated = newest(RECORDS, "cluster-simulation")
    simulated["date"] = max(RECORDS.glob("cluster-simulation-2*.json")).stem.removeprefix("cluster-simulation-")
    values = {name: constant.value for name, constant in known.items()}
    found = [planned(plan, values) for plan in PLANS]
    PAGE.write_text(page(found, known, simulated))
    record = [{k: v for k, v in one.items() if k != "plan"} | {"plan": vars(one["plan"])} for one in found]
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
