"""Judges what the model of a finished run can do, and what to do if it can do little.

The judgement is of text → image retrieval on the run's held-out part (test, else val): a caption is a query, and its
own photo is the right answer among N photos. A model that knows nothing has the right photo first with probability 1/N
and among the first ten with probability 10/N. The advice depends on how the run was made.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dinorankclip.evaluate.gains import GENERAL, OWN
from dinorankclip.evaluate.intervals import interval
from dinorankclip.evaluate.scores_file import Items, read_items
from dinorankclip.models.card import FEW_SCORED
from dinorankclip.run_files import read_metrics, stored_scores
from dinorankclip.types import Finding, UserError

HowMade = Literal["aligned", "fine-tuned", "scratch"]
TEN = 10
HARDLY = 3.0  # R@1 below this multiple of chance is hardly better than guessing
SEARCHES, BROWSES = 0.7, 0.3  # R@10 from which a model serves to search, and to browse
FEW_SCORED_TUNED = 500  # held-out photos below which gains of a few points are not shown
LOST = 0.01  # a smaller loss on the general set is no reason to act
PAIRS_FROM_SCRATCH = 100_000  # fewer real photos teach random weights little


@dataclass(frozen=True)
class HeldOut:
    """Holds text → image retrieval of a held-out part: shares with 95 % intervals, and the number of photos."""

    part: str
    photos: int
    first: float
    first_interval: tuple[float, float]
    in_ten: float
    in_ten_interval: tuple[float, float]

    @property
    def chance(self) -> float:
        return 1 / self.photos

    @property
    def chance_in_ten(self) -> float:
        return min(1.0, TEN / self.photos)

    @property
    def at_chance(self) -> bool:
        """Return whether neither R@1 nor R@10 can be told from guessing."""
        return self.first_interval[0] <= self.chance and self.in_ten_interval[0] <= self.chance_in_ten

    def words(self) -> str:
        low, high = self.first_interval
        return (
            f"{self.part}: a caption finds its photo first among {self.photos} in {100 * self.first:.1f} % of cases "
            f"(95 % interval {100 * low:.1f} to {100 * high:.1f}, chance {100 * self.chance:.2g} %), and among the "
            f"first ten for {TEN * self.in_ten:.1f} of 10 captions (chance {TEN * self.chance_in_ten:.2g})"
        )


def held_out_retrieval(folder: Path) -> HeldOut | None:
    """Return the retrieval that `train` measured at the end of a run; None if it has not measured any."""
    scores = stored_scores(folder).get("scores", {})
    part = next((part for part in ("test", "val") if f"{part}/t2i R@1" in scores), None)
    if part is None:
        return None
    first, in_ten = scores[f"{part}/t2i R@1"], scores.get(f"{part}/t2i R@10", 0.0)
    photos = max(1, round(scores.get(f"{part}/images") or 1 / scores[f"{part}/chance R@1"]))
    items = read_items(folder)
    first_items, ten_items = (items.get(f"{part}/t2i R@{k}") for k in (1, TEN))
    return HeldOut(part, photos, first, _interval(first, first_items), in_ten, _interval(in_ten, ten_items))


def _interval(value: float, items: Items | None) -> tuple[float, float]:
    """Return the clustered 95 % interval; without single items the value alone, which then counts as exact."""
    return (value, value) if items is None else interval(items.values, items.clusters, weights=items.weights)


def how_made(settings: dict[str, Any]) -> HowMade:
    """Return how the model of a run came to its weights. `settings` is as in config.json."""
    if settings.get("recipe") == "aligned":
        return "aligned"
    trained = settings.get("init") or settings.get("model", {}).get("weights")
    return "fine-tuned" if trained else "scratch"


def judge(folder: Path, settings: dict[str, Any]) -> Iterator[Finding]:
    """Yield the judgement of a finished run; nothing if its end was not scored."""
    try:
        found, before = held_out_retrieval(folder), stored_scores(folder).get("before") or {}
    except UserError as error:
        yield Finding("note", f"the scores of the run cannot be read: {error}")
        return
    if found is None:
        return
    few = found.photos < FEW_SCORED
    if found.at_chance and few:
        what = f"{found.words()}: this cannot be told from chance, and {found.photos} photos are too few to tell"
        yield Finding("note", what, "hold out more pairs (--reading.val-fraction), or score the model on others")
    elif found.at_chance:
        yield Finding("problem", f"the model is at chance: {found.words()}", advice_at_chance(folder, settings))
    elif found.first < HARDLY * found.chance and not few:
        what = f"the model is hardly better than chance: {found.words()}"
        yield Finding("problem", what, advice_at_chance(folder, settings))
    else:
        yield _use(folder, settings, found)
    if gained := stored_scores(folder).get("gains"):
        yield what_it_gave(gained, settings, (stored_scores(folder).get("chosen") or {}).get("alpha", 1.0))
        return
    earlier = before.get(f"{found.part}/t2i R@1")
    if earlier is not None and found.first_interval[1] < earlier:
        what = f"training made the model worse: R@1 was {100 * earlier:.1f} % before and is {100 * found.first:.1f} %"
        yield Finding("problem", what, "lower --optim.lr by 3 to 10, or train fewer epochs")


def _use(folder: Path, settings: dict[str, Any], found: HeldOut) -> Finding:
    try_it = f'try it: dinorankclip search {shlex.quote(str(folder))} --images DIR "what to look for"'
    if found.in_ten >= SEARCHES:
        return Finding("fine", f"{found.words()}: it can search such photos", try_it)
    if found.in_ten >= BROWSES:
        return Finding("fine", f"{found.words()}: it can browse such photos, so look beyond the first row", try_it)
    what = f"{found.words()}: it knows something, but finds too little to rely on"
    return Finding("note", what, advice_when_weak(folder, settings))


def what_it_gave(rows: list[dict[str, Any]], settings: dict[str, Any], alpha: float = 1.0) -> Finding:
    """Return a sentence on what training changed on the own data and on the general set, and what to try if it did not
    help. `rows` are those of evaluate/gains.py, `alpha` is how far a blend went."""
    own, general = ([row for row in rows if row["of"] == kind] for kind in (OWN, GENERAL))
    part = "test" if any(row["part"] == "test" for row in own) else "val"
    own = [row for row in own if row["part"] == part]
    words = f"on your {part} part {_change(own)}"
    words += f"; on the general set {_change(general)}" if general else ""
    tune = settings.get("tune") or {}
    lost = [row for row in general if row["verdict"] == "lower" and row["before"] - row["after"] > LOST]
    if any(row["verdict"] == "lower" for row in own) and not any(row["verdict"] == "higher" for row in own):
        return Finding("problem", f"training made the model worse: {words}", "lower --optim.lr by 3 to 10")
    if lost:
        ways = [] if tune.get("replay") else ["--tune.replay DATA"]
        ways += ["a smaller --tune.floor"] if tune.get("blend") else ["--tune.blend"]
        learnt = any(row["verdict"] == "higher" for row in own)
        what = "it learned your data" if learnt else "it shows no gain on your data"
        return Finding("note", f"{what} and lost some of what it knew: {words}", f"try {' or '.join(ways)}")
    if not any(row["verdict"] == "higher" for row in own):
        few = own and own[0]["n"] < FEW_SCORED_TUNED
        advice = f"hold out more photos, --reading.val-fraction: {own[0]['n']} show large gains alone; " if few else ""
        advice += "train for more epochs, on more pairs, or at up to 1.5 times the rate"
        advice += "; a larger --tune.floor lets the blend keep more" if tune.get("blend") and alpha < 1 else ""
        if any(row["low"] > 0 for row in own):
            words += " (where an interval leaves out 0, the sign test finds that chance could do as much)"
        return Finding("note", f"fine-tuning shows no gain: {words}", advice)
    unknown = "" if general else "name a general set (--tune.general DATA) to see what the model forgot"
    return Finding("fine", f"fine-tuning helped: {words}", unknown)


def _change(rows: list[dict[str, Any]]) -> str:
    """Return the changes of two scores in words: `R@1 12.0 → 15.5 % (+3.5 [2.1, 4.8])`. Changes that are shown to be
    more than chance come first."""
    written = []
    for row in sorted(rows, key=lambda row: row["verdict"] not in ("higher", "lower"))[:2]:
        gain = 100 * (row["after"] - row["before"])
        span = f"[{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"
        written.append(f"{row['score']} {100 * row['before']:.1f} → {100 * row['after']:.1f} % ({gain:+.1f} {span})")
    return ", ".join(written) or "nothing was compared"


def advice_at_chance(folder: Path, settings: dict[str, Any]) -> str:
    """Return what to do with a run that learned nothing, by how it was made."""
    way, data = how_made(settings), shlex.quote(str(settings["data"]))
    look = f"look at the pairs (dinorankclip data show {data}, dinorankclip data check {data} --mismatched)"
    if way == "aligned":
        return f"{look}: captions must tell what is in their own photo; then give more pairs, a few hundred at least"
    if way == "fine-tuned":
        return (
            f"{look}; lower --optim.lr by 3 to 10; start from a model that knows such photos, or let frozen towers "
            f"learn: {aligned_command(folder, settings)}"
        )
    return f"{advice_when_weak(folder, settings)}; else {look}, or lower --optim.lr by 3 to 10"


def advice_when_weak(folder: Path, settings: dict[str, Any]) -> str:
    """Return how to get a better model than this run's, by how the run was made."""
    way = how_made(settings)
    if way == "aligned":
        data = shlex.quote(str(settings["data"]))
        return f"give more pairs, and take out wrong ones: dinorankclip data check {data} --mismatched"
    pairs = pairs_of_epoch(folder, settings)
    real = settings["data"] != "scenes"
    if way == "scratch" and real and (pairs is None or pairs < PAIRS_FROM_SCRATCH):
        count = "so few" if pairs is None else f"about {pairs:,}"
        return f"{count} photos teach random weights little; use frozen towers: {aligned_command(folder, settings)}"
    if way == "fine-tuned" and real:
        return f"train longer or on more pairs; or on frozen towers: {aligned_command(folder, settings)}"
    return "train longer: more epochs in a new run"


def pairs_of_epoch(folder: Path, settings: dict[str, Any]) -> int | None:
    """Return about how many images the run was trained on, from its log; None if the log is too short."""
    if chosen := settings.get("reading", {}).get("train_items"):
        return int(chosen)
    for line in reversed(read_metrics(folder)):
        if line.get("epoch", 0) > 0 and line["step"] > 1:
            return round((line["step"] - 1) / line["epoch"]) * int(settings["budget"]["batch"])
    return None


def aligned_command(folder: Path, settings: dict[str, Any]) -> str:
    """Return the command that trains frozen towers on the data of a run."""
    words = ["dinorankclip", "train", "--recipe", "aligned", "--data", str(settings["data"])]
    for name, usual in (("image_column", "image"), ("caption_column", "caption"), ("group_column", None)):
        if (value := settings.get("reading", {}).get(name, usual)) != usual:
            words += [f"--reading.{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, "--run", f"{folder}-aligned"])
