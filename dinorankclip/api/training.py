"""Trains a model: `dinorankclip.train` in Python, which is also the path of the command and of studies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinorankclip import run_files as files
from dinorankclip.config import TrainSettings, as_dict, with_changes
from dinorankclip.finetuning import reasons
from dinorankclip.given_settings import settings_from
from dinorankclip.methods import REGISTRY
from dinorankclip.pieces.contract import HERE, Where
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.models.loaded import LoadedModel
    from dinorankclip.train.assemble import RunParts
    from dinorankclip.train.callbacks import Callback, Callbacks
    from dinorankclip.train.loop import StopRequest


@dataclass(frozen=True)
class TrainedRun:
    """Holds what training leaves: the run folder, if the run reached its last step, and the scores at its end.

    `scores` are those of the held-out parts, shares from 0 to 1: `scores["val/mean R@1"]`. They are empty for a run
    that was stopped; the same call again resumes it.
    """

    folder: Path
    finished: bool
    scores: Mapping[str, float] = field(default_factory=dict)

    def model(self, device: str = "auto") -> LoadedModel:
        """Load the last checkpoint: `encode_image`, `encode_text`, `preprocess`, `tokenizer`."""
        from dinorankclip.models.loaded import load_model

        return load_model(self.folder, device)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the log, a mapping a line: `step`, `loss`, `learning rate`, …, and the scores under `val/`."""
        return files.read_metrics(self.folder)

    def settings(self) -> TrainSettings:
        """Return the settings of the run, with everything that was chosen or measured when it began."""
        return settings_from(self.folder / files.CONFIG)

    @property
    def report(self) -> Path:
        """Return the path of report.html."""
        return self.folder / files.REPORT


def train(
    settings: TrainSettings | Mapping[str, Any] | str | Path | None = None,
    *,
    data: Any = None,
    validation: Any = None,
    callbacks: Sequence[Callback] = (),
    restart: bool = False,
    stop: StopRequest | None = None,
    where: Where = HERE,
    **changes: Any,
) -> TrainedRun:
    """Train a model, or resume a run, and return the run.

        run = dinorankclip.train(preset="scenes", method="clip", budget={"core_seconds": 30}, run="runs/x")
        run = dinorankclip.train(recipe="aligned", data=my_dataset, run="runs/mine")
        run = dinorankclip.train("runs/x/config.json", run="runs/y")        # repeats a run, bit for bit
        run.scores["val/mean R@1"], run.model().encode_text(["a red mug"])

    Args:
        settings: A `TrainSettings`, a mapping, or a JSON or TOML file of settings; by default those of the preset.
        data: A name or path as `--data` takes it, a torch data set or list of (image, captions), or an iterable of
            them, which is first written to shards (data/python_pairs.py says what an image may be).
        validation: Pairs of the same kind for validation; by default a part of `data` is set aside.
        callbacks: Functions of an `Event`, called at each log line, score and end (train/callbacks.py).
        restart: Move an existing run folder aside and start again.
        stop: A request that another part of the program can make (`stop.ask()`).
        where: Who computes teacher features and rows of frozen towers before training (`--on` of the command).
        changes: Settings by name: groups as mappings, budget={"epochs": 3}, or dotted names, **{"loss.order": 2}.

    The same call again resumes the run. Training draws from seeds of its own: torch's random state and number of
    threads are as before when it returns.
    """
    from dinorankclip.train.callbacks import Callbacks
    from dinorankclip.train.loop import StopRequest

    if data is not None or validation is not None:
        changes["data"] = _data_name(data, validation)  # defaults of fine-tuning depend on it
    chosen = settings_from(settings, **changes)
    if chosen.run is None:
        chosen = with_changes(chosen, {"run": default_run(chosen)})
    called = Callbacks(callbacks)
    finished = run_training(chosen, restart, stop=stop or StopRequest(), callbacks=called, where=where)
    folder = folder_of(chosen)
    if called.error is not None:
        raise called.error
    if not finished:
        return TrainedRun(folder, False)
    _write_report(folder)
    return TrainedRun(folder, True, files.stored_scores(folder).get("scores", {}))


def default_run(settings: TrainSettings) -> str:
    return f"runs/{settings.preset}-{settings.method}"


def folder_of(settings: TrainSettings) -> Path:
    assert settings.run is not None, "`train`, the command and studies name every run"
    return Path(settings.run)


def _data_name(data: Any, validation: Any) -> str:
    if isinstance(data, str | Path):
        if validation is not None:
            raise UserError(
                f"validation beside data {str(data)!r}: stored data is divided by its own folders (train/, val/), or a "
                "part is set aside; validation= is for data given in Python"
            )
        return str(data)
    if data is None:
        raise UserError("validation needs data: give both")
    from dinorankclip.data.python_pairs import open_python_data

    return open_python_data(data, validation)


def _write_report(folder: Path) -> None:
    from dinorankclip import distributed
    from dinorankclip.report.run_report import run_page
    from dinorankclip.train.run_folder import say

    if distributed.world().leads:
        run_page(folder).write(folder / files.REPORT)
    say(f"report: {folder / files.REPORT}")


def refuse_missing_plugin(settings: TrainSettings, config: Path | None = None) -> None:
    """Refuse a method that is unknown here because its plug-in is missing, if the run or the `config` names the
    plug-in. Other unknown methods are refused with the settings."""
    if settings.method in REGISTRY.names():
        return
    for folder in (Path(settings.run) if settings.run else None, config.parent if config else None):
        if folder is not None and (folder / files.ENVIRONMENT).is_file():
            plugin = files.read_environment(folder).get("plugins", {}).get(f"method {settings.method}")
            if plugin is not None:
                raise UserError(
                    f"{folder} was trained with --method {settings.method} of the plug-in {plugin}, which is not "
                    "installed here: install it to resume or repeat the run (scoring and searching do not need it)"
                )


def run_training(
    settings: TrainSettings,
    restart: bool = False,
    dry: bool = False,
    stop: StopRequest | None = None,
    callbacks: Callbacks | None = None,
    where: Where = HERE,
) -> bool:
    """Train and score the held-out parts. Return False if the run was stopped on request, with everything saved."""
    from dinorankclip import distributed
    from dinorankclip.device import choose
    from dinorankclip.train.aligned_setup import sized
    from dinorankclip.train.assemble import assemble
    from dinorankclip.train.checkpoints import refuse_longer
    from dinorankclip.train.cost import dry_run
    from dinorankclip.train.distil_setup import make_missing_cache, with_cache
    from dinorankclip.train.run_folder import alone_in, as_begun_in, claim, given_back, say
    from dinorankclip.train.timed_budget import as_measured_in, measured, steps_alone
    from dinorankclip.train.trackers import chosen_trackers
    from dinorankclip.validate import validated

    refuse_missing_plugin(settings)
    settings = validated(settings)
    chosen_trackers(settings.record)
    settings = sized(settings)
    world = distributed.join(settings.budget.device)
    requested, settings = settings, with_cache(settings, dry)
    if settings.preset == "finetune" and settings.init is None and settings.model.weights is None:
        say(
            "note: no trained model was named, so training begins with random weights; to fine-tune give --init "
            "(a run, a model folder or open_clip:NAME:FILE)"
        )
    for line in reasons(settings):
        say(line)
    _announce_general_set(settings)
    settings = steps_alone(settings, None if dry or restart else folder_of(settings))
    if dry:
        settings = measured(settings, run=None)
        parts = assemble(settings, dry)
        dry_run(parts.state, parts.loader, parts.length, settings, parts.placement)
        return True
    folder = folder_of(settings)
    with alone_in(folder), given_back(folder), _undisturbed():
        if not restart:
            settings = as_measured_in(folder, as_begun_in(folder, settings))
            refuse_longer(folder, as_dict(settings))
        claim(folder, as_dict(settings), restart)
        device = choose(settings.budget.device, "fp32", world.local_rank).device
        make_missing_cache(requested, device, Path(settings.distil.cache or ""), where)
        return _train(assemble(measured(settings, folder), where=where), folder, stop, callbacks)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave torch's random state and number of threads to the caller as they were."""
    import torch

    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_num_threads(threads)


def _announce_general_set(settings: TrainSettings) -> None:
    """Report a wrong --tune.general before anything is computed, and a missing one."""
    from dinorankclip.evaluate.gains import WHICH, general_set
    from dinorankclip.train.run_folder import say

    if (settings.init or settings.model.weights) and general_set(settings) is None and settings.tune.blend:
        say(f"note: {WHICH}. Without it the trained weights are not blended with the start")


def _train(parts: RunParts, folder: Path, stop: StopRequest | None, callbacks: Callbacks | None) -> bool:
    from dinorankclip.evaluate.blend import choose_end
    from dinorankclip.evaluate.during_training import evaluators, final_scores, starting_inspection, starting_scores
    from dinorankclip.train.assemble import resume
    from dinorankclip.train.callbacks import Callbacks
    from dinorankclip.train.checkpoints import STOPPED, Ending, ending_noted, note_ending
    from dinorankclip.train.head_first import train_heads
    from dinorankclip.train.loop import pretrain, stops_early
    from dinorankclip.train.run_folder import damage_line, say

    settings, callbacks = parts.settings, callbacks or Callbacks()
    resume(parts, folder)
    starts_with_names = settings.recipe == "aligned" and settings.aligned.start == "names"
    before = starting_scores(parts, folder) if settings.init or settings.model.weights or starts_with_names else {}
    starting_inspection(parts, folder)
    if settings.tune.head_epochs and parts.state.step == 0:
        train_heads(parts)
    to_go = parts.length.steps - parts.state.step
    say(f"{folder}: {to_go} of {parts.length.steps} steps to go")
    watching = evaluators(parts, "val")
    with ending_noted(folder, parts.state):
        ended = to_go == 0 or stops_early(parts.state, parts.length, settings)
        finished = ended or pretrain(
            parts.state, parts.loader, parts.length, watching, settings, parts.placement, folder, stop, callbacks
        )
        if finished:
            final_scores(parts, before, folder, choose_end(parts, folder))
    if message := damage_line(folder, parts.train):
        say(message)
    if not finished:
        note_ending(folder, Ending(parts.state.step, STOPPED))
        say(f"stopped at step {parts.state.step}; everything is saved, the same command resumes")
    scores = files.stored_scores(folder).get("scores", {}) if finished else {}
    callbacks("end", parts.state.step, parts.length.steps, scores, folder)
    return finished
