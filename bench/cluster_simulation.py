"""A thousand nodes with failures: what share of the time trains, by checkpoint interval.

    python -m bench.cluster_simulation

A run of `work` hours on `nodes` nodes, each of which fails after an exponential time. A failure costs the work since
the last checkpoint and a restart; some failures take the node away until it is repaired, and a spare node steps in, if
one is left. A checkpoint stops the steps for `checkpoint` seconds. The share of the time that trains is compared with
Daly's formula, and the best interval with those of Young and Daly. Seeded; takes seconds.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.harness import today, write_dated
from bench.scaling import panels


@dataclass(frozen=True)
class Cluster:
    """Times in hours."""

    nodes: int = 1000
    node_mtbf: float = 6300.0  # between failures of a node
    checkpoint: float = 20 / 3600  # for which all steps wait
    restart: float = 10 / 60  # until the first new step
    lost: float = 0.3  # share of failures that take the node away; after the others it goes on
    spares: int = 10
    repair: float = 24.0
    work: float = 24.0 * 14

    @property
    def mtbf(self) -> float:
        """Of the whole run."""
        return self.node_mtbf / self.nodes


def young(cluster: Cluster) -> float:
    """Young 1974: √(2·δ·M) hours of work between two checkpoints."""
    return math.sqrt(2 * cluster.checkpoint * cluster.mtbf)


def daly(cluster: Cluster) -> float:
    """Daly 2006, the higher order of Young's interval."""
    ratio = cluster.checkpoint / (2 * cluster.mtbf)
    return young(cluster) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cluster.checkpoint if ratio < 1 else cluster.mtbf


def expected_share(cluster: Cluster, interval: float) -> float:
    """Daly's share of the time that trains: (τ/M) / (e^(R/M)·(e^((τ+δ)/M) - 1)); spares never run out."""
    mtbf = cluster.mtbf
    return interval / mtbf / (math.exp(cluster.restart / mtbf) * math.expm1((interval + cluster.checkpoint) / mtbf))


def simulated_share(cluster: Cluster, interval: float, draws: random.Random) -> float:
    """The share of the time of one run that trains."""
    now, done, spares = 0.0, 0.0, cluster.spares
    repaired: list[float] = []  # when nodes come back
    while True:
        left = draws.expovariate(1 / cluster.mtbf)  # until the next failure; restarts may fail, too
        periods = math.ceil((cluster.work - done) / interval - 1e-9)
        needed = cluster.work - done + (periods - 1) * cluster.checkpoint  # after the last step nothing is at stake
        if left >= needed:
            return cluster.work / (now + needed)
        saved = min(int(left / (interval + cluster.checkpoint)), periods - 1)
        now, done = now + left, done + saved * interval
        while True:  # restart, perhaps several times
            while repaired and repaired[0] <= now:
                heapq.heappop(repaired)
                spares += 1
            if draws.random() < cluster.lost:
                heapq.heappush(repaired, now + draws.expovariate(1 / cluster.repair))
                if spares:
                    spares -= 1
                else:  # wait for the next node that comes back
                    now = heapq.heappop(repaired)
            again = draws.expovariate(1 / cluster.mtbf)
            if again >= cluster.restart:
                now += cluster.restart
                break
            now += again


def mean_share(cluster: Cluster, interval: float, runs: int, seed: int = 0) -> float:
    return statistics.mean(simulated_share(cluster, interval, random.Random(f"{seed}/{run}")) for run in range(runs))


def sweep(cluster: Cluster, factors: Sequence[float], runs: int) -> list[dict[str, float]]:
    """By interval, as a multiple of Young's."""
    return [
        {
            "factor": factor,
            "minutes": 60 * factor * young(cluster),
            "simulated": mean_share(cluster, factor * young(cluster), runs),
            "expected": expected_share(cluster, factor * young(cluster)),
        }
        for factor in factors
    ]


FACTORS = (0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0, 8.0)
SIZES = (8, 64, 256, 1000, 4000)


def record_of(cluster: Cluster, runs: int) -> dict[str, object]:
    sizes = []
    for nodes in SIZES:
        sized = replace(cluster, nodes=nodes, spares=max(1, nodes // 100))
        share = mean_share(sized, young(sized), runs)
        scarce = mean_share(replace(sized, spares=0), young(sized), runs)
        sizes.append(
            {
                "nodes": nodes,
                "hours between failures": sized.mtbf,
                "young minutes": 60 * young(sized),
                "daly minutes": 60 * daly(sized),
                "share": share,
                "share without spares": scarce,
                "share of a slow restart": mean_share(replace(sized, restart=1.0), young(sized), runs),
            }
        )
    return {"cluster": vars(cluster), "runs": runs, "sweep": sweep(cluster, FACTORS, runs), "sizes": sizes}


def figure(record: dict) -> tuple[str, str]:
    """Two drawings: time lost by interval, and by the number of nodes."""
    lost = {
        name: {row["minutes"]: 100 * (1 - row[name]) for row in record["sweep"]} for name in ("simulated", "expected")
    }
    by_size = {
        name: {row["nodes"]: 100 * (1 - row[key]) for row in record["sizes"]}
        for name, key in (
            ("1 % spares", "share"), ("no spares", "share without spares"), ("restart 1 h", "share of a slow restart")
        )
    }  # fmt: skip
    nodes = record["cluster"]["nodes"]
    return panels({f"% of the time lost, {nodes} nodes": ("%", lost)}, "minutes between checkpoints"), panels(
        {"% of the time lost at Young's interval": ("%", by_size)}, "nodes"
    )


def as_markdown(record: dict) -> str:
    cluster = record["cluster"]
    lines = [
        "# A cluster with failures, simulated",
        "",
        f"{cluster['nodes']} nodes that fail every {cluster['node_mtbf']:,.0f} hours each, checkpoints of "
        f"{3600 * cluster['checkpoint']:.0f} s, restarts of {60 * cluster['restart']:.0f} min, {cluster['spares']} "
        f"spare nodes, {cluster['lost']:.0%} of failures take the node away for {cluster['repair']:.0f} h; "
        f"{cluster['work']:.0f} hours of work, {record['runs']} runs each.",
        "",
        "| interval / Young's | minutes | share that trains | Daly's formula |",
        "| --: | --: | --: | --: |",
        *(
            f"| {row['factor']:g} | {row['minutes']:.1f} | {row['simulated']:.2%} | {row['expected']:.2%} |"
            for row in record["sweep"]
        ),
        "",
        "| nodes | hours between failures | Young, min | Daly, min | share | no spares | restarts of 1 h |",
        "| --: | --: | --: | --: | --: | --: | --: |",
        *(
            f"| {row['nodes']} | {row['hours between failures']:.1f} | {row['young minutes']:.1f} | "
            f"{row['daly minutes']:.1f} | {row['share']:.2%} | {row['share without spares']:.2%} | "
            f"{row['share of a slow restart']:.2%} |"
            for row in record["sizes"]
        ),
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("docs/bench"))
    options = parser.parse_args(argv)
    record = record_of(Cluster(), options.runs)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, drawn in zip(("interval", "nodes"), figure(record)):
        (options.out / f"cluster-{name}.svg").write_text(drawn)
    write_dated(options.out, "cluster-simulation", today(), record, as_markdown(record))


if __name__ == "__main__":
    main()
