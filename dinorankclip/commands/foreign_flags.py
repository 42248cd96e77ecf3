"""Flags of open_clip's trainer, met at `train`: what they are called here. docs/from-open-clip.md says more of each."""

from __future__ import annotations

from dinorankclip.types import UserError

TABLE = "docs/from-open-clip.md"
SCORED = "train scores validation pairs at each epoch's end; for other sets: dinorankclip score RUN --sets …"
FROZEN = "--optim.freeze PATTERN …"
# Of each flag: what to write instead, or why there is nothing to write.
FOREIGN = {
    "--train-data": "--data",
    "--val-data": "a validation part in --data, or one that is carved from it (--reading.val-fraction)",
    "--train-num-samples": "leave it out: pairs are counted; of pipe: shards --reading.epoch-samples",
    "--dataset-type": "leave it out: --data is recognised by what it is",
    "--csv-img-key": "--reading.image-column",
    "--csv-caption-key": "--reading.caption-column",
    "--csv-separator": "leave it out: commas, semicolons and tabs are recognised",
    "--name": "--run runs/NAME",
    "--logs": "--run FOLDER/NAME",
    "--workers": "--reading.workers",
    "--batch-size": "--budget.batch, which counts the pairs of a step over all processes, not of one",
    "--accum-freq": "--budget.chunk, the pairs that a process encodes at once; --budget.batch stays the whole batch",
    "--epochs": "--budget.epochs",
    "--lr": "--optim.lr",
    "--wd": "--optim.weight-decay",
    "--beta1": "--optim.betas BETA1 BETA2",
    "--beta2": "--optim.betas BETA1 BETA2",
    "--eps": "--optim.eps",
    "--warmup": "--optim.warmup-steps",
    "--grad-clip-norm": "--optim.clip-norm",
    "--lr-scheduler": "leave it out: the rate is warm-up and half a cosine",
    "--precision": "--budget.precision auto, fp32 or bf16 (there is no fp16)",
    "--device": "--budget.device",
    "--model": "--model.trunk",
    "--pretrained": "--init open_clip:NAME:FILE (nothing is downloaded)",
    "--resume": "leave it out: the same command resumes its --run",
    "--lock-image": "--model.frozen-image-tower, or to keep crops --optim.freeze 'trunk.towers.visual.*'",
    "--lock-text": FROZEN,
    "--grad-checkpointing": "--budget.chunk, which bounds the memory of activations, too",
    "--save-frequency": "--record.save-every, in steps; one more checkpoint comes at each epoch's end",
    "--log-every-n-steps": "--record.log-every",
    "--imagenet-val": SCORED,
    "--imagenet-v2": SCORED,
    "--zeroshot-frequency": SCORED,
    "--val-frequency": SCORED,
    "--report-to": "leave it out: TensorBoard's files are in RUN/tensorboard; wandb is not here",
    "--local-loss": "leave it out: it is always so",
    "--gather-with-grad": "leave it out: it is always so",
    "--torchcompile": "not here",
    "--torchscript": "not here; for use elsewhere: dinorankclip export RUN --to onnx",
    "--dataset-resampled": "not here: every epoch is a permutation, which makes a resume exact",
    "--train-data-upsampling-factors": "not here: every epoch is a permutation, which makes a resume exact",
    "--force-image-size": "--model.image-size",
    "--opt": "leave it out: the optimiser is AdamW",
    "--aug-cfg": "--reading.crop-scale LOW HIGH, --reading.flip",
    "--siglip": "not here; see --method",
    "--fsdp": "not here; weights are whole on every process",
    "--distill-model": "--distil.teacher, of dense features (dinorankclip teacher --help)",
    "--force-custom-text": "not here",
    "--coca-caption-loss-weight": "not here",
    "--coca-contrastive-loss-weight": "not here",
}


def refuse_foreign(argv: list[str]) -> None:
    """Name all flags of open_clip at once, each with ours; flags that nobody knows are tyro's to refuse."""
    flags = dict.fromkeys(word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--"))
    met = [flag for flag in flags if flag in FOREIGN]
    if met:
        lines = "\n  ".join(f"{flag} → {FOREIGN[flag]}" for flag in met)
        raise UserError(f"flags of open_clip, which have other names here ({TABLE}):\n  {lines}")
