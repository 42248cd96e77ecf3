"""Defines every setting of a training run as frozen dataclasses.

The docstring below a field is its help text on the command line. Nothing here imports torch, so `--help` is fast.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dinorankclip.methods import Method
from dinorankclip.recipes import RecipeName
from dinorankclip.types import UserError


@dataclass(frozen=True)
class FindingSettings:
    """Sets how pairs are found and divided. Every command that opens data has these settings."""

    image_column: str = "image"
    """CSV/Parquet: the column with image paths, relative to the table."""
    caption_column: str = "caption"
    """CSV/Parquet: the column with captions; rows with the same image are several captions of it."""
    group_column: str | None = None
    """CSV/Parquet: keep rows of the same group (a product, a patient) on the same side of the validation cut, and from
    being each other's negatives."""
    val_fraction: float = 0.1
    """Share of images set aside for validation when the data has no validation part of its own."""
    val_most: int = 2000
    """At most this many images are set aside."""
    train_items: int | None = None
    """Train on this many images only. A smaller choice is part of a larger one, whatever the seed. An epoch keeps the
    length that the whole training part gives it, so that runs on more and on less data take the same steps."""
    short_epochs: bool = False
    """train_items: an epoch counts the chosen images alone, so that a run on less data takes fewer steps."""
    max_pixels: int = 50_000_000
    """Images larger than this are refused before they are decoded."""
    epoch_samples: int | None = None
    """`pipe:` shards only: the samples of an epoch, since they cannot be counted beforehand."""


@dataclass(frozen=True)
class CheckingSettings(FindingSettings):
    """Sets how pairs are found, and how many damaged samples are too many."""

    max_damaged: float = 0.05
    """Stop when more than this share of samples (of at least 200) had to be replaced."""


@dataclass(frozen=True)
class ReadingSettings(CheckingSettings):
    """Sets how pairs are found, checked and augmented."""

    crop_scale: tuple[float, float] = (0.9, 1.0)
    """Area of the random crop, as a share of the image. (1, 1) switches cropping off."""
    flip: bool = False
    """Mirror half of the images. Leave off when captions say left and right."""
    second_captions: str | None = None
    """alip, and loss.two_captions: second captions of the training images, in place of another caption of the data.
    FILE.jsonl, .csv, .tsv or .parquet with key and caption; or beside: KEY.second.txt beside each image
    (docs/data.md)."""
    second_caption_column: str | None = None
    """The same from a table (CSV, Parquet): the column with second captions."""
    workers: int = 1
    """Processes that decode and augment, for each training process."""
    patience: float = 300.0
    """Seconds to wait for a batch before reading is reported to hang."""


@dataclass(frozen=True)
class ModelSettings:
    """Chooses the image tower and the text tower."""

    trunk: str = "drc-small"
    """A built-in small trunk (drc-tiny, drc-tiny-large, drc-small, drc-photo) or an open_clip model name."""
    weights: str | None = None
    """Start the trunk from this local weights file (open_clip format)."""
    image_size: int | None = None
    """Image side in pixels; by default the trunk's own."""
    frozen_image_tower: bool = False
    """Keep the image tower as it is: its embeddings are computed once, and only the text tower learns."""


@dataclass(frozen=True)
class LossSettings:
    """Sets the objective: its ranking part (`order` 0 is CLIP, 1 is RankCLIP), and which pairs are negatives."""

    order: int = 3
    """Plackett–Luce order R, 0 to 5."""
    head_dim: int = 32
    """Width h of the transition heads."""
    list_length: int | None = None
    """Rank only the first k positions of each list (candidates stay all remaining items)."""
    include_self: bool = True
    """Keep item i in its own list, as RankCLIP does."""
    utility: Literal["scaled", "cosine"] = "scaled"
    """θ = s·cos (RankCLIP in practice) or the paper's literal cosine."""
    ramp: Literal["rankclip", "paper"] = "rankclip"
    """Schedule of the ranking weights: clip(3i/(n-1), 0, 2), or the paper's printed clip((3i-1)/(n-1), 0, 2)."""
    staged: bool = True
    """Bring order r in at epoch 3(r-1), scaled down for short runs. Off: all orders act once lists have weight."""
    backend: Literal["auto", "reference", "blocked"] = "auto"
    """How the list likelihood is computed; the value is the same."""
    size: Literal["rankclip", "equation"] = "rankclip"
    """rankclip: a list of K positions counts 1/(16·K), RankCLIP's constant per position. equation: equation 8's literal
    sum over positions, 16·K times larger."""
    in_weight: float = 1.0
    """Factor of the in-modal term on the ramp: μ₁ = in_weight · ramp."""
    cross_weight: float = 1.0
    """Factor of the cross-modal term on the ramp: μ₂ = cross_weight · ramp."""
    direction_weights: tuple[float, float] = (1.0, 1.0)
    """Factors of the two halves of equation 8: lists of an image (of texts, of images), then lists of a text."""
    detached_scale: bool = False
    """θ = s·cos without gradient to s: lists do not move the temperature."""
    gate_start: tuple[float, ...] | None = None
    """s_r at the start for orders 2, 3, …, a gate being σ(s_r). Default: the paper's -3, -5, then 2 less an order."""
    gate_l1: tuple[float, ...] | None = None
    """η_r for orders 2, 3, …, the L1 weights of the gates. Default: the paper's 1e-4, 1e-3, then 10 times an order."""
    gate_l1_size: Literal["lists", "plain"] = "lists"
    """lists: L1 has the size that --loss.size gives the lists, so gates and lists are in the paper's proportion. plain:
    η_r·λ_r as it is; beside rankclip's size, opening order 4 or 5 then costs 0.08 or 0.8 nats a position."""
    rankclip_eps: float = 0.0
    """The ε inside the logarithm of RankCLIP's public code, 1e-10 there; order 1 and whole lists only. 0: exact."""
    reference: Literal["paired", "model", "teacher"] = "paired"
    """Where the order of a list comes from. paired: the other modality's similarity (the paper). model: the similarity
    that is ranked, so lists only sharpen it (a control). teacher: frozen features, --recipe aligned or a cache; without
    text features (--distil.branches image) those of the images order the lists of both sides."""
    centred: bool = False
    """Take the mean over the batch's histories from each order's corrections, so that they cannot hold a popularity of
    candidates, which is the same after every history."""
    transitions: Literal["learnt", "teacher", "model"] = "learnt"
    """learnt: heads. teacher, model (order 2 alone): the cosine of the item just listed and the candidate, of frozen
    features or of the model's embeddings without gradient; only the gate learns."""
    transition_scale: float = 1.0
    """c of --loss.transitions teacher and model, λ₂·c·cosine: at 1 a candidate gains at most one nat."""
    several_positives: bool = True
    """Pairs with the same image, caption or group (--reading.group-column) are never each other's negatives, in
    contrast and lists. Off: the plain loss, in which equal captions push each other away."""
    two_captions: bool = False
    """Match each image with two of its captions a step, each with half of the weight; all other terms see the first. An
    image with one caption shows it twice. Not for methods without a contrastive term (siglip, distil), nor for alip,
    which has two already."""
    decorrelation: float = 0.0
    """Weight of a term that spreads the embeddings of each modality over all directions (variance and covariance of
    the batch). It needs no teacher: a control of terms that do. 0: none."""


@dataclass(frozen=True)
class DistilSettings:
    """Sets the distillation of a cached teacher into students. Without a cache there is no distillation."""

    cache: str | None = None
    """A folder that `dinorankclip teacher cache` made of this data; switches distillation on, with any method.
    auto: made with the teachers below before training, under built/teacher. none: no distillation."""
    teacher: str = "efficientnet-lite0"
    """cache auto: the image teacher, e.g. timm:NAME:FILE (dinorankclip teacher --help lists all)."""
    text_teacher: str = "minilm"
    """cache auto, branches image+text: the caption teacher, e.g. dinotxt:FILE (from the same list)."""
    teacher_size: int | None = None
    """cache auto: side at which the teacher sees images; by default its own."""
    criterion: Literal["gram+rel", "mse", "cosine", "rkd", "crd"] = "gram+rel"
    """The loss between student and teacher. mse and cosine need cached tokens (teacher cache --keep)."""
    into: Literal["student", "trunk"] = "student"
    """trunk: no students; the trunk's own tokens and class token learn from the teacher."""
    tokens: Literal["last", "penultimate"] = "last"
    """into trunk: which tokens learn. last: those of the last block, which must then run on all tokens. penultimate:
    those that enter the last block, which are computed anyway, through a layer norm that is not part of the model."""
    shuffled: bool = False
    """Learn from the features of other images, by a fixed permutation of the seed: a control of what the teacher knows
    about each image. branches image only."""
    weight: float = 0.5
    """μ_d, the weight of all distillation terms. into trunk: at 0 there are none, the cache serves other terms."""
    text_ratio: float = 0.5
    """ρ, the weight of the text branch relative to the image branch."""
    branches: Literal["image", "image+text"] = "image"
    """image+text needs a cache with text features (teacher cache --text-teacher)."""
    image_student: str = "vit-tiny"
    """vit-tiny, vit-mini, vit-micro, resnet50, resnet-micro, mobilenetv3-large or mobilenet-micro."""
    text_student: str = "vit-tiny"
    """vit-tiny, vit-mini or vit-micro."""
    keep: Literal["gram", "tokens", "both"] | None = None
    """cache auto: what is stored of tokens, as --keep of teacher cache; by default what the criterion needs, in least
    space. tokens: gram+rel then takes the Gram of tokens reduced by PCA, as the paper does."""
    compare_grid: int | None = None
    """Side of the grid on which token Grams are compared; by default half of the cached one."""
    relational_items: int = 128
    """Items of the global batch among which the relational term takes all pairs and triples."""
    gram_reduction: Literal["mean", "sum"] = "mean"
    """Mean over the entries of a Gram, or the paper's sum (2401 times larger on 7×7 tokens)."""


FusionVariant = Literal["none", "concat", "additive", "single-scale", "spp", "spp-cbam", "full"]
UNGATED = ("concat", "additive")  # variants that have no gate


@dataclass(frozen=True)
class FusionSettings:
    """Sets how the students' features enter the embeddings. Fusion adds students, with or without a teacher."""

    variant: FusionVariant = "none"
    """full (the paper's), spp-cbam (no refiner), spp (no attention), single-scale, additive, concat, or none."""
    gate: bool = True
    """The conflict-aware gate α; off: α = 1. concat and additive have none."""
    start: Literal["closed", "zero"] = "closed"
    """closed: gate bias -4, random projection, u rescaled to the trunk's length. zero: gate bias 0, projection zero, u
    not rescaled: the embedding starts as the trunk's. concat and additive always start there."""
    gate_bias: float | None = None
    """Bias of the gate at the start; by default -4 for closed, 0 for zero."""
    source: Literal["student", "trunk"] = "student"
    """What the fusion reads. trunk: no students; the tokens that enter the trunk's own last block, and its class token
    (of captions: its end-of-text token)."""
    branches: Literal["image", "text", "image+text"] = "image+text"
    """source trunk: the branches that are fused. (Students: each branch that has one.)"""


@dataclass(frozen=True)
class AnchorSettings:
    """Sets the teacher as a third tower: a = P·f, f the cached summary of the image. P is not part of the model."""

    weight: float = 0.0
    """Weight of both terms. 0: no anchor."""
    text_weight: float = 0.5
    """Weight of InfoNCE(a, t) within the anchor: captions and P learn to match."""
    image_weight: float = 0.5
    """Weight of InfoNCE(v, a) within the anchor: images follow the anchors, which this term does not move."""
    falls: bool = True
    """Let image_weight fall linearly to 0 over the run."""


@dataclass(frozen=True)
class AlignedSettings:
    """Sets the frozen towers of `--recipe aligned` and the heads that learn. Other recipes ignore these settings."""

    image_tower: str = "efficientnet-lite0"
    """The frozen image tower: an image teacher, e.g. timm:NAME:FILE (dinorankclip teacher --help lists all)."""
    image_size: int | None = None
    """Side at which the tower sees images; by default its own."""
    text_tower: str = "minilm"
    """The frozen text tower: a caption teacher, e.g. minilm:FOLDER for another BERT sentence encoder."""
    start: Literal["auto", "names", "random"] = "auto"
    """names: heads beside what the towers can do without pairs (`starter`), which needs an image tower with a
    classifier. random: heads alone. auto: names for few pairs, if the tower has a classifier."""
    dim: int = 256
    """Width of the heads' embedding; with --aligned.start names the starter's stands beside it."""
    head_weight: float | None = None
    """Length of the heads' half beside the starter's of 1; by default by the number of pairs, at most 1."""
    hidden: int = 2048
    """Width of the hidden layer of each head."""
    dropout: float = 0.3
    """Share of the hidden layer that is left out at each step."""
    fused: Literal["image", "text", "image+text"] = "image"
    """Branches whose fusion (--fusion.variant) reads the tower's own dense tokens."""
    token_width: int = 256
    """Width to which tokens are reduced before they are stored."""
    text_places: int = 32
    """Tokens of a caption that the fusion reads."""


@dataclass(frozen=True)
class OptimSettings:
    """Sets the optimiser and its schedule."""

    name: Literal["muon", "adamw"] = "muon"
    """muon: the matrices inside the transformer blocks take orthogonal steps, all else AdamW's. adamw: AdamW alone."""
    muon_rate: float = 10.0
    """Factor on the learning rate of the matrices that Muon moves. At 1 a step changes their numbers about as much as
    AdamW's does."""
    muon_momentum: float = 0.8
    """Muon: share of the earlier gradients that stays in the momentum."""
    muon_iterations: Literal[3, 4, 5] = 4
    """Muon: iterations that make a step orthogonal. More reach weaker directions of the gradient and cost more."""
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-6
    weight_decay: float = 0.2
    warmup_steps: int | None = None
    """Default: min(10,000, 5 % of all steps)."""
    clip_norm: float | None = 1.0
    """Gradient norm limit; None switches it off."""
    clip_apart: bool = False
    """Limit the norm of each part by itself: trunk, students, fusion, transition heads, projectors. Off: one norm for
    all, so that a large gradient of distillation shortens CLIP's step, too. The log has the norm of all."""
    heads_rate: float = 1.0
    """Factor on the learning rate of the transition heads and their gates. Adam moves a number by at most about its
    rate per step: with factor 1, a gate that starts nearly closed stays nearly closed for a few hundred steps."""
    heads_eps: float | None = None
    """Adam's epsilon for the transition heads and their gates; by default eps. Behind a nearly closed gate gradients
    are as small as 1e-6, so that eps takes most of a step: the log's undamped3_image says what is left."""
    fusion_rate: float = 1.0
    """Factor on the learning rate of the fusion, its gates included."""
    gates_rate: float = 1.0
    """Factor on the learning rate of all gates: of the fusion (times fusion_rate) and of the orders (times
    heads_rate)."""
    temperature_rate: float = 1.0
    """Factor on the learning rate of logit_scale."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained, as glob patterns on their names, e.g. 'trunk.towers.visual.*'."""
    layer_decay: float = 1.0
    """Factor on the learning rate of a parameter of the trunk for each block of its tower that lies above it. The last
    block and what follows it have the whole rate. 1: one rate for all."""


@dataclass(frozen=True)
class TuneSettings:
    """Sets fine-tuning of trained weights (--init, --model.weights): what learns, and what must not be forgotten."""

    general: str | None = None
    """The general set, on which nothing should be lost: an evaluation set or pairs, as `score --sets` takes them. By
    default the data that the run of --init was trained on. none: no general set."""
    blend: bool = False
    """At the end mix the starting weights with the trained weights (WiSE-FT): the mixture that is best on validation
    among those that lose at most --tune.floor on the general set."""
    floor: float = 0.01
    """Share that the blend may lose on the general set: of the mean recall of pairs, of the accuracy of classes. The
    95 % interval of the loss must end there, so a small general set allows less."""
    lora_rank: int | None = None
    """Train low-rank corrections of this rank in place of the matrices (LoRA). They are part of the matrices in every
    checkpoint and export."""
    lora_alpha: float | None = None
    """Factor of the corrections, times 1/rank; by default twice the rank."""
    lora_targets: tuple[str, ...] = ("*.resblocks.*weight", "*.blocks.*weight")
    """LoRA: matrices that get a correction, as glob patterns on their names. Every other parameter stays as it is."""
    head_epochs: int = 0
    """First train the two projections alone for so many epochs, on features that are computed once."""
    head_rate: float = 1e-3
    """Learning rate of these epochs (AdamW)."""
    patience: int | None = None
    """Stop after so many validations without a better one, and take the best checkpoint."""
    replay: str | None = None
    """Other pairs (as --data) of which each batch holds a share, so that the model keeps what it knew. start: the data
    that the run of --init was trained on. none: no replay."""
    replay_share: float = 0.25
    """Share of a batch that comes from --tune.replay."""


@dataclass(frozen=True)
class BudgetSettings:
    """Sets how much is computed, and in which pieces."""

    batch: int = 256
    """Pairs a step, over all processes."""
    epochs: int = 10
    steps: int | None = None
    """Steps of the whole run, in place of epochs. The schedule ends with the last step."""
    minutes: float | None = None
    """Minutes that the steps may take, in place of epochs: a few steps are timed first, which fixes budget.steps.
    Preparation and scoring come on top."""
    core_seconds: float | None = None
    """As minutes, in seconds of all cores that training and its reading processes use."""
    chunk: int | None = None
    """Pairs a process encodes at once. Smaller than its share: two-pass feature caching (same gradients)."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 where the GPU computes it natively, else fp32."""
    device: str = "auto"
    """auto (the GPU if there is one), cpu, cuda or cuda:N."""
    threads: int | None = None
    """CPU threads of each process; by default torch's choice, or one for a budget in time where the cores are busy."""
    compile: bool = False
    """Compile the towers with torch.compile, for training alone: CLIP's plain towers. Values agree up to rounding."""


@dataclass(frozen=True)
class RecordSettings:
    """Sets how often logs and checkpoints are written."""

    log_every: int = 10
    save_every: int = 200
    """Steps between checkpoints (one more at each epoch's end)."""
    score_every: int = 1
    """Epochs between two scorings of the validation part (and one after the last epoch)."""
    keep: int = 2
    """Checkpoints kept besides the best one."""
    gradient_report_every: int = 0
    """Every n steps: norm of each term's gradient at the embeddings and the cosines between terms. 0: never."""
    tensorboard: bool = True
    """Write the log for TensorBoard, too, if --record.trackers does not say which trackers get it."""
    trackers: tuple[str, ...] | None = None
    """Which trackers get the numbers of metrics.jsonl, besides that file: some of tensorboard, wandb, mlflow, trackio.
    Each needs its package (docs/trackers.md)."""
    project: str = "dinorankclip"
    """Project (wandb, trackio) or experiment (mlflow) under which a tracker files the run."""


@dataclass(frozen=True)
class TrainSettings:
    """Holds all settings of a run."""

    preset: str = "scenes"
    """scenes, flickr8k, finetune or cc3m: the defaults of all other settings (`--preset NAME --help` shows them)."""
    method: Method = "clip"
    """The objective: clip (order 0), rankclip (order 1), rank (any order), dinorankclip (order 3, teacher and fusion),
    siglip (sigmoid loss), cyclip and alip (other baselines), distil (students alone)."""
    recipe: RecipeName | None = None
    """Defaults on top of those of preset and method. paper: every line of the paper's table of hyper-parameters
    (docs/paper-departures.md shows them); with it the method is dinorankclip unless --method names another. aligned:
    small heads on frozen towers. taught: a teacher's cached features shape the trunk itself; no students."""
    data: str = "scenes"
    """`scenes` (built in), a clip-benchmark folder, WebDataset shards (braces, `pipe:`), a CSV/Parquet table, or a
    folder of images with .txt files."""
    run: str | None = None
    """The run folder; default runs/PRESET-METHOD. The same command again resumes it."""
    init: str | None = None
    """Start from the weights of this run, checkpoint, model folder, open_clip:NAME:FILE, open_clip:NAME:TAG (published
    weights in the local hub cache; fetched after --online), transformers:FOLDER (CLIP, SigLIP) or hub:OWNER/NAME (a
    repository of one of these kinds, in the local hub cache; fetched after --online): fine-tuning."""
    seed: int = 0
    """Seed of weights, data order and augmentation. Runs with the same seed begin alike and see the same pairs."""
    reading: ReadingSettings = field(default_factory=ReadingSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    distil: DistilSettings = field(default_factory=DistilSettings)
    fusion: FusionSettings = field(default_factory=FusionSettings)
    anchor: AnchorSettings = field(default_factory=AnchorSettings)
    aligned: AlignedSettings = field(default_factory=AlignedSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    record: RecordSettings = field(default_factory=RecordSettings)


def changed_at(settings: Any, name: str, value: Any) -> Any:
    """Return a copy of the settings with the value at a dotted name replaced."""
    first, _, rest = name.partition(".")
    if first not in {field.name for field in dataclasses.fields(settings)}:
        raise UserError(f"there is no setting '{name}' in {type(settings).__name__}")
    inside = changed_at(getattr(settings, first), rest, value) if rest else value
    return dataclasses.replace(settings, **{first: inside})


def with_changes(settings: TrainSettings, changes: Mapping[str, Any]) -> TrainSettings:
    """Return a copy of the settings with the values at dotted names replaced: {"loss.order": 2}."""
    for name, value in changes.items():
        settings = changed_at(settings, name, value)
    return settings


as_dict = dataclasses.asdict
