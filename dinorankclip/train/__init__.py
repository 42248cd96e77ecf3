"""Trains a model: from settings to a run folder, through kills and resumes.

Call it to train: `dinorankclip.train(preset="scenes", method="clip")`; the arguments are in
`help(dinorankclip.api.training.train)`.

assemble.py       from settings to the objects of a run: data, model, objective, optimiser; `resume`
distil_setup.py   students, teacher cache and loss of a run with distillation
frozen_rows.py    training with a frozen image side, whose rows are computed once
aligned_setup.py  model, batch and epochs of `--recipe aligned`
tower_rows.py     rows of frozen towers, computed once: every image, every different caption
head_first.py     the projections before everything else, on features that are computed once
loop.py           the training loop: fetch, gradients, step, log, score, save
step.py           a batch's gradients, whole or in chunks; weight-decay rules, learning-rate schedule, the update; on a
                  GPU, what was not finite
muon.py           Muon: orthogonal steps of the matrices inside transformer blocks
compiled.py       towers compiled for training (`--budget.compile`)
clock.py          pairs a second, and core-seconds of the steps
whole_checkpoints.py  finds damaged checkpoints before a run resumes, and sets them aside
checkpoints.py    the training state, its checkpoint folders; why a run ended early, and the command that goes on
run_folder.py     the run folder: its settings, log, machine and list of damaged samples
callbacks.py      functions of a user that are called at each log line, score and end, and may stop the run
trackers.py       TensorBoard, wandb, mlflow and trackio behind one protocol
timed_budget.py   a budget in minutes or core-seconds → a number of steps
cost.py           the estimated and the actual cost of a run, and its training data
"""

from dinorankclip.callable_room import make_callable

make_callable(__name__)
