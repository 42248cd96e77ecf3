"""What the ViT sources share: input size and grid, splitting tokens, and the check that the final norm was applied."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.device import declare_missing
from dinorankclip.seeds import drawing_from
from dinorankclip.teachers import weights_files
from dinorankclip.teachers.dinotxt import HEAD_WIDTH, TextTower, clip_reader
from dinorankclip.teachers.frozen_teacher import TeacherCard, Interpolation, Preprocessing, Teacher, TextTeacher
from dinorankclip.teachers.registry import FeatureShape
from dinorankclip.types import UserError, first_line

USUAL_SIZE = 224  # 14×14 tokens for patches of 16 pixels, as in the paper
_LEAST_WEIGHT = 1e-6


def grid_of(size: int, patch: int, source: str) -> tuple[int, int]:
    if size % patch or size < patch:
        nearest = max(1, round(size / patch)) * patch
        raise UserError(f"{source} cuts images into patches of {patch} pixels; {size} is no multiple, {nearest} is")
    return size // patch, size // patch


def split(tokens: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """[B, prefix + L, C], class token first, then registers → (patch tokens, class token)."""
    return tokens[:, prefix:], tokens[:, 0]


def demand_final_norm(teacher: Teacher, norm: nn.LayerNorm) -> None:
    """Look at one image: every token must be what the network's final LayerNorm puts out.

    Libraries differ in whether the features they hand out are taken before or after it, and before it a few channels
    are many times larger than the rest: the Gram would be theirs alone.
    """
    size = teacher.input_size
    noise = torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen = teacher.dense(noise)
    tokens = torch.cat([seen.summary[:, None], seen.tokens], 1)[0]
    if bool((norm.weight.abs() < _LEAST_WEIGHT).any()):
        return  # a channel that the norm sets to a constant cannot be undone
    tokens = (tokens - norm.bias) / norm.weight
    mean, spread = tokens.mean(-1), tokens.std(-1, unbiased=False)
    if mean.abs().max() > 0.05 or (spread - 1).abs().max() > 0.05:
        raise UserError(
            f"{teacher.name}: its tokens are not those after the final norm (mean {mean.abs().max():.2g}, spread "
            f"{spread.min():.2g} to {spread.max():.2g} instead of 0 and 1)"
        )


# -------- timm_source
# timm's ViTs as teachers: DINOv1, DINOv2 and DINOv3, with or without registers, and any other with a class token.
#
# Weights come from timm's repositories on the hub, or from a local file in timm's layout or in the original authors'
# (timm converts it). Tokens are taken after the final norm: timm's `forward_features` applies it, its
# `get_intermediate_layers` would not.

# Words in the file names of published weights that fix their preprocessing; timm calls them by the same tags.
_CORPORA = ("lvd1689m", "sat493m", "lvd142m")


class PatchTokens(nn.Module):
    vit: Any  # one of timm's, which share these attributes but no class

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return split(self.vit.forward_features(images), self.vit.num_prefix_tokens)


def timm_teacher(name: str, file: str | Path | None = None, input_size: int | None = None, **shape: Any) -> Teacher:
    """`name` is timm's, with or without tag; `shape` overrides its architecture (for tests with few layers)."""
    declare_missing()
    import timm

    source = f"timm:{name}"
    config = _config(name)
    if file is not None:
        path = weights_files.local_file(file, source)
        _demand_same_corpus(path, config, source)
    elif config.hf_hub_id:
        gated = config.license == "dinov3-license"
        path = weights_files.hub_file(config.hf_hub_id, "model.safetensors", source, f"{source}:FILE", gated)
    else:
        raise UserError(f"timm publishes no weights of {name}; give a file: {source}:FILE. {weights_files.INSTEAD}")
    tensors = weights_files.read_tensors(path)
    size = input_size or USUAL_SIZE
    complaints = io.StringIO()
    try:
        # timm prints what it drops; `_demand_same_biases` judges it instead.
        with contextlib.redirect_stdout(complaints):
            vit: Any = timm.create_model(
                name,
                pretrained=True,
                pretrained_cfg_overlay={"file": str(path)},
                num_classes=0,
                img_size=size,
                **shape,
            )
    except (RuntimeError, KeyError, ValueError, AssertionError) as error:
        raise UserError(f"{path} does not hold the weights of {name}: {weights_files.complaint(error)}") from error
    except TypeError as error:
        raise UserError(f"{source} is no ViT (it takes no image size), so it has no patch tokens") from error
    _demand_tokens(vit, source)
    _demand_same_biases(vit, tensors, name, path)
    teacher = Teacher(
        TeacherCard(source, config.license or "see timm"),
        PatchTokens(vit),
        weights_files.hash_of(tensors),
        Preprocessing(size, tuple(config.mean), tuple(config.std), _interpolation(config.interpolation)),
        grid_of(size, vit.patch_embed.patch_size[0], source),
    )
    demand_final_norm(teacher, vit.norm)
    return teacher


def timm_shape(name: str) -> FeatureShape:
    """What the ViT gives, from its architecture alone."""
    declare_missing()
    import timm

    source = f"timm:{name}"
    _config(name)
    with torch.device("meta"):  # weights take no memory there
        vit: Any = timm.create_model(name, num_classes=0)
    _demand_tokens(vit, source)
    return FeatureShape(source, width=vit.embed_dim, summary=vit.embed_dim, patch=vit.patch_embed.patch_size[0])


def _config(name: str) -> Any:
    import difflib

    import timm

    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # an unknown tag
        raise UserError(f"timm:{name}: {error}") from error
    if config is None:
        known = timm.list_models("*dino*", pretrained=True)
        close = difflib.get_close_matches(name, known, 3, cutoff=0.4)
        raise UserError(f"timm knows no model '{name}'; did you mean {' or '.join(close or known[:3])}?")
    return config


def _demand_same_corpus(path: Path, config: Any, source: str) -> None:
    """Satellite weights with web images' mean and std (or the other way round) load without complaint."""
    tag = config.tag or ""
    for corpus in _CORPORA:
        if corpus in path.name and any(other in tag for other in _CORPORA if other != corpus):
            raise UserError(
                f"{path.name} was trained on {corpus}, but {source} normalises images for {tag}; use "
                f"timm:{config.architecture}.{corpus} if timm has it"
            )


def _demand_tokens(vit: nn.Module, source: str) -> None:
    if getattr(vit, "cls_token", None) is None or not getattr(vit, "num_prefix_tokens", 0):
        raise UserError(f"{source} has no class token")
    if not isinstance(getattr(vit, "norm", None), nn.LayerNorm):
        raise UserError(f"{source} normalises after pooling, not its tokens; it cannot be a dense teacher")


def _demand_same_biases(vit: Any, tensors: dict[str, Tensor], name: str, path: Path) -> None:
    """timm's DINOv3 without `_qkvb` has no query and value biases and drops those of the file: fine if they are 0."""
    attention = vit.blocks[0].attn
    if any(getattr(*place, None) is not None for place in ((attention, "q_bias"), (attention.qkv, "bias"))):
        return
    for key, bias in tensors.items():
        if key.endswith("attn.qkv.bias"):
            query, _, value = bias.chunk(3)
            if bool(torch.cat([query, value]).any()):
                architecture, dot, tag = name.partition(".")
                raise UserError(f"{path} holds query and value biases: use timm:{architecture}_qkvb{dot}{tag}:{path}")


def _interpolation(name: str) -> Interpolation:
    return "bilinear" if name == "bilinear" else "bicubic"


# -------- random_source
# Teachers that know nothing: random weights from a seed. For tests, and as the control row of a study.
#
# What a student gains from one of these it owes to the architecture's prior and to regularisation, not to knowledge.

NOTE = "random weights: a control"
PATCH, WIDTH, DEPTH = 16, 192, 12  # ViT-Tiny
TEXT_WIDTH, TEXT_DEPTH, CONTEXT = 3 * HEAD_WIDTH, 4, 77
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def random_teacher(seed: int = 0, input_size: int | None = None) -> Teacher:
    """ViT-Tiny with patches of 16 pixels and timm's initial weights."""
    declare_missing()
    from timm.models.vision_transformer import VisionTransformer

    source = f"random-vit:{seed}"
    size = input_size or USUAL_SIZE
    grid = grid_of(size, PATCH, source)
    with drawing_from(seed, "random-vit"):
        vit = VisionTransformer(
            img_size=size, patch_size=PATCH, embed_dim=WIDTH, depth=DEPTH, num_heads=WIDTH // 64, num_classes=0
        )
    preprocessing = Preprocessing(size, _MEAN, _STD)
    return Teacher(
        TeacherCard(source, "none", NOTE), PatchTokens(vit), weights_files.hash_of(vit.state_dict()), preprocessing, grid
    )


def random_text_teacher(seed: int = 0) -> TextTeacher:
    """A small causal transformer over CLIP's byte pairs."""
    with drawing_from(seed, "random-text"):
        tower = TextTower(Tokenizer().vocabulary, CONTEXT, TEXT_WIDTH, TEXT_DEPTH, 4 * TEXT_WIDTH, TEXT_WIDTH)
    card = TeacherCard(f"random-text:{seed}", "none", NOTE)
    return TextTeacher(card, tower, weights_files.hash_of(tower.state_dict()), clip_reader(CONTEXT))


# -------- transformers_source
# transformers' DINOv3 as a teacher: `hf:FOLDER` (config.json, preprocessor_config.json, *.safetensors) or `hf:NAME`.
#
# Tokens are `last_hidden_state`, which is after the final norm; `hidden_states[-1]` would be before it.

_BILINEAR, _BICUBIC = 2, 3  # Pillow's numbers, which transformers stores


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without transformers' progress bar and load report: what they could complain about is checked by us."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class _Tokens(nn.Module):
    def __init__(self, vit: Any) -> None:
        super().__init__()
        self.vit = vit
        self.prefix = 1 + vit.config.num_register_tokens

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return split(self.vit(pixel_values=images).last_hidden_state, self.prefix)


def transformers_teacher(where: str, input_size: int | None = None) -> Teacher:
    """`where` is a folder, or a name on the hub such as facebook/dinov3-vits16-pretrain-lvd1689m."""
    source = f"hf:{where}"
    folder = Path(where).expanduser()
    if not folder.is_dir():
        if where.count("/") != 1 or where.startswith((".", "/", "~")):
            raise UserError(f"{source}: there is no such folder. {weights_files.INSTEAD}")
        folder = weights_files.hub_folder(where, source, "hf:FOLDER", gated=where.startswith("facebook/dinov3"))
    config = _read(folder / "config.json", source)
    if config.get("model_type") != "dinov3_vit":
        raise UserError(f"{source} is a '{config.get('model_type')}', not a 'dinov3_vit'; for other ViTs use timm:")
    size = input_size or USUAL_SIZE
    patch = config.get("patch_size", 16)
    grid = grid_of(size, patch if isinstance(patch, int) else patch[0], source)
    preprocessing = _preprocessing(_read(folder / "preprocessor_config.json", source), size, source)
    vit = _load(folder, source)
    licence = "DINOv3 licence (gated weights)"
    name = f"hf:{folder.name}" if Path(where).is_dir() else source
    teacher = Teacher(TeacherCard(name, licence), _Tokens(vit), weights_files.hash_of(vit.state_dict()), preprocessing, grid)
    demand_final_norm(teacher, vit.norm)
    return teacher


def _load(folder: Path, source: str) -> Any:
    declare_missing()
    try:
        from transformers import DINOv3ViTModel
    except ImportError as error:
        raise UserError(f"{source} needs transformers 4.56 or newer: pip install 'dinorankclip[teachers]'") from error
    try:
        with quietly():
            # Asked for its loading info it gives a pair, which its annotations do not say.
            loaded: Any = DINOv3ViTModel.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{source} cannot be loaded: {first_line(error)}") from error
    vit, info = loaded
    problems = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    if problems:
        raise UserError(f"{source}: the weights do not fit config.json, see {problems[0]} and {len(problems) - 1} more")
    return vit


def _read(path: Path, source: str) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{source}: {path} is missing; it belongs to the files of the model on the hub")
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{source}: {path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{source}: {path} is damaged: it holds no JSON object")
    return found


def _preprocessing(stored: dict[str, Any], size: int, source: str) -> Preprocessing:
    """The folder's own mean, std and interpolation; anything but (p/255 - mean)/std is refused."""
    rescale = stored.get("rescale_factor", 1 / 255) if stored.get("do_rescale", True) else 1.0
    mean, std = stored.get("image_mean"), stored.get("image_std")
    if not stored.get("do_normalize", True) or abs(rescale * 255 - 1) > 1e-3 or not mean or not std:
        raise UserError(f"{source}: preprocessor_config.json asks for something else than (pixel/255 - mean)/std")
    interpolation: Interpolation = "bicubic" if stored.get("resample", _BILINEAR) == _BICUBIC else "bilinear"
    return Preprocessing(size, tuple(mean), tuple(std), interpolation)
