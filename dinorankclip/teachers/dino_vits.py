"""Opens vision transformers as image teachers: DINO through timm or transformers, and a random control.

timm:NAME[:FILE]   DINOv1, DINOv2, DINOv3 and any other ViT of timm with a class token. Weights come from timm's
                   repositories on the hub, or from a file in timm's layout or that of the authors (timm converts it).
hf:FOLDER_OR_NAME  DINOv3 of transformers: config.json, preprocessor_config.json, *.safetensors.
random-vit[:SEED]  Random weights, for tests and as the control row of a study. A student's gain from such a teacher
                   is due to the prior of the architecture and to regularisation.

Tokens are taken after the final norm. timm's `forward_features` and transformers' `last_hidden_state` apply the norm;
timm's `get_intermediate_layers` and transformers' `hidden_states[-1]` do not.
"""

from __future__ import annotations

import contextlib
import difflib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dinorankclip.checked_files import UnfitFile, read_object
from dinorankclip.device import declare_missing
from dinorankclip.extras import naming_extras
from dinorankclip.json_shape import NONE, NUMBER, either, entries, fault, listed
from dinorankclip.seeds import drawing_from
from dinorankclip.teachers import weights_files
from dinorankclip.teachers.frozen_teacher import USUAL_SIZE, Preprocessing, Teacher, TeacherCard, control_card, grid_of
from dinorankclip.teachers.registry import FeatureShape
from dinorankclip.types import UserError, first_line

# Words in the file names of published weights that fix their preprocessing. timm's tags contain the same words.
_CORPORA = ("lvd1689m", "sat493m", "lvd142m")
_BILINEAR, _BICUBIC = 2, 3  # Pillow's numbers, which transformers stores
PATCH, WIDTH, DEPTH = 16, 192, 12  # ViT-Tiny
_DINOV3_ENTRIES = frozenset((
    *("patch_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"),
    *("attention_dropout", "initializer_range", "layer_norm_eps", "rope_theta", "image_size", "num_channels"),
    *("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias", "layerscale_value", "drop_path_rate"),
    *("use_gated_mlp", "num_register_tokens", "pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"),
))  # fmt: skip
_PREPROCESSING = entries({
    "rescale_factor": NUMBER,
    "image_mean": either(listed(NUMBER, 3, 3), NONE),
    "image_std": either(listed(NUMBER, 3, 3), NONE),
})  # fmt: skip


class PatchTokens(nn.Module):
    """Splits the output of a ViT, class token first, then registers, into (patch tokens, class token)."""

    def __init__(self, vit: nn.Module, prefix: int, tokens: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.vit, self.prefix, self._tokens = vit, prefix, tokens

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self._tokens(self.vit, images)
        return tokens[:, self.prefix :], tokens[:, 0]


def _timm_tokens(vit: Any) -> PatchTokens:
    return PatchTokens(vit, vit.num_prefix_tokens, lambda vit, images: vit.forward_features(images))


def check_final_norm(teacher: Teacher, norm: nn.LayerNorm) -> None:
    """Run one image and refuse the teacher unless its tokens are outputs of the final LayerNorm.

    Before the norm a few channels are many times larger than the rest, and would dominate the Gram.
    """
    size = teacher.input_size
    noise = torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    features = teacher.dense(noise)
    tokens = torch.cat([features.summary[:, None], features.tokens], 1)[0]
    if bool((norm.weight.abs() < 1e-6).any()):
        return  # a channel that the norm sets to a constant cannot be undone
    tokens = (tokens - norm.bias) / norm.weight
    mean, spread = tokens.mean(-1), tokens.std(-1, unbiased=False)
    if mean.abs().max() > 0.05 or (spread - 1).abs().max() > 0.05:
        raise UserError(
            f"{teacher.name}: its tokens are not those after the final norm (mean {mean.abs().max():.2g}, spread "
            f"{spread.min():.2g} to {spread.max():.2g} instead of 0 and 1)"
        )


def open_timm(argument: str, input_size: int | None) -> Teacher:
    """Open the teacher of a spec's NAME[:FILE]."""
    name, _, file = argument.partition(":")
    return timm_teacher(name, file or None, input_size)


def timm_teacher(name: str, file: str | Path | None = None, input_size: int | None = None, **shape: Any) -> Teacher:
    """Open a ViT by timm's name, with or without tag; `shape` overrides its architecture (tests use few layers)."""
    declare_missing()
    import timm

    source = f"timm:{name}"
    config = _timm_config(name)
    if file is not None:
        path = weights_files.local_file(file, source)
        _check_corpus(path, config, source)
    elif config.hf_hub_id:
        licence = "the DINOv3 licence" if config.license == "dinov3-license" else ""
        path = weights_files.hub_file(config.hf_hub_id, "model.safetensors", source, f"{source}:FILE", licence)
    else:
        raise UserError(f"timm publishes no weights of {name}; give a file: {source}:FILE. {weights_files.INSTEAD}")
    tensors = weights_files.read_tensors(path)
    size = input_size or USUAL_SIZE
    options = {"pretrained_cfg_overlay": {"file": str(path)}, "num_classes": 0, "img_size": size, **shape}
    try:
        # timm prints the tensors that it drops; `_check_biases` judges them instead.
        with contextlib.redirect_stdout(io.StringIO()):
            vit: Any = timm.create_model(name, pretrained=True, **options)
    except (RuntimeError, KeyError, ValueError, AssertionError) as error:
        raise UserError(f"{path} does not hold the weights of {name}: {weights_files.complaint(error)}") from error
    except TypeError as error:
        raise UserError(f"{source} is no ViT (it takes no image size), so it has no patch tokens") from error
    check_tokens(vit, source)
    _check_biases(vit, tensors, name, path)
    bilinear = config.interpolation == "bilinear"
    preprocessing = Preprocessing(size, tuple(config.mean), tuple(config.std), "bilinear" if bilinear else "bicubic")
    grid = grid_of(size, vit.patch_embed.patch_size[0], source)
    card = TeacherCard(source, config.license or "see timm")
    teacher = Teacher(card, _timm_tokens(vit), weights_files.hash_of(tensors), preprocessing, grid, source=path)
    check_final_norm(teacher, vit.norm)
    return teacher


def timm_shape(argument: str) -> FeatureShape:
    """Return the shape of the features of NAME[:FILE], from the architecture alone."""
    declare_missing()
    import timm

    name = argument.partition(":")[0]
    _timm_config(name)
    with torch.device("meta"):  # weights take no memory there
        vit: Any = timm.create_model(name, num_classes=0)
    check_tokens(vit, f"timm:{name}")
    return FeatureShape(f"timm:{name}", width=vit.embed_dim, summary=vit.embed_dim, patch=vit.patch_embed.patch_size[0])


def check_tokens(vit: nn.Module, source: str) -> None:
    """Refuse a ViT without a class token or without a final norm of its tokens."""
    if getattr(vit, "cls_token", None) is None or not getattr(vit, "num_prefix_tokens", 0):
        raise UserError(f"{source} has no class token")
    if not isinstance(getattr(vit, "norm", None), nn.LayerNorm):
        raise UserError(f"{source} normalises after pooling, not its tokens; it cannot be a dense teacher")


def _timm_config(name: str) -> Any:
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


def _check_corpus(path: Path, config: Any, source: str) -> None:
    """Refuse satellite weights with the mean and std of web images, and the reverse: both load without complaint."""
    tag = config.tag or ""
    for corpus in _CORPORA:
        if corpus in path.name and any(other in tag for other in _CORPORA if other != corpus):
            raise UserError(
                f"{path.name} was trained on {corpus}, but {source} normalises images for {tag}; use "
                f"timm:{config.architecture}.{corpus} if timm has it"
            )


def _check_biases(vit: Any, tensors: dict[str, Tensor], name: str, path: Path) -> None:
    """Refuse query and value biases other than 0 for timm's DINOv3 without `_qkvb`, which drops them silently."""
    attention = vit.blocks[0].attn
    if getattr(attention, "q_bias", None) is not None or getattr(attention.qkv, "bias", None) is not None:
        return
    for key, bias in tensors.items():
        if key.endswith("attn.qkv.bias"):
            query, _, value = bias.chunk(3)
            if bool(torch.cat([query, value]).any()):
                architecture, dot, tag = name.partition(".")
                raise UserError(f"{path} holds query and value biases: use timm:{architecture}_qkvb{dot}{tag}:{path}")


def transformers_teacher(where: str, input_size: int | None = None) -> Teacher:
    """Open a folder, or a name on the hub such as facebook/dinov3-vits16-pretrain-lvd1689m."""
    source = f"hf:{where}"
    folder = Path(where).expanduser()
    if not folder.is_dir():
        if where.count("/") != 1 or where.startswith((".", "/", "~")):
            raise UserError(f"{source}: there is no such folder. {weights_files.INSTEAD}")
        folder = weights_files.hub_folder(where, source, "hf:FOLDER", gated=where.startswith("facebook/dinov3"))
    config = _read_json(folder / "config.json", source)
    if config.get("model_type") != "dinov3_vit":
        raise UserError(f"{source} is a '{config.get('model_type')}', not a 'dinov3_vit'; for other ViTs use timm:")
    size = input_size or USUAL_SIZE
    patch = config.get("patch_size", 16)
    patch = patch[0] if isinstance(patch, list) and patch else patch
    if not isinstance(patch, int) or not 0 < patch <= size:
        raise UserError(f"{source}: config.json has a patch_size of {patch!r}, and a number of pixels was expected")
    grid = grid_of(size, patch, source)
    preprocessing = _stored_preprocessing(_read_json(folder / "preprocessor_config.json", source), size, source)
    needs = "transformers 4.56 or newer: pip install 'dinorankclip[teachers]'"
    described = _network_config(config, source)
    vit, info = weights_files.from_pretrained("DINOv3ViTModel", folder, source, needs, config=described)
    problems = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
    if problems:
        raise UserError(f"{source}: the weights do not fit config.json, see {problems[0]} and {len(problems) - 1} more")
    card = TeacherCard(f"hf:{folder.name}" if Path(where).is_dir() else source, "DINOv3 licence (gated weights)")
    prefix = 1 + vit.config.num_register_tokens
    network = PatchTokens(vit, prefix, lambda vit, images: vit(pixel_values=images).last_hidden_state)
    teacher = Teacher(card, network, weights_files.hash_of(vit.state_dict()), preprocessing, grid)
    check_final_norm(teacher, vit.norm)
    return teacher


def _network_config(stored: dict[str, Any], source: str) -> Any:
    """Return the configuration of a DINOv3 network with known entries alone: others may name foreign code."""
    declare_missing()
    with naming_extras(source):
        from transformers import DINOv3ViTConfig
    try:
        return DINOv3ViTConfig(**{name: value for name, value in stored.items() if name in _DINOV3_ENTRIES})
    except Exception as error:  # its checks raise types of their own
        raise UserError(f"{source}: config.json describes no DINOv3: {first_line(error)}") from error


def _read_json(path: Path, source: str) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{source}: {path} is missing; it belongs to the files of the model on the hub")
    try:
        return read_object(path)
    except UnfitFile as error:
        raise UserError(f"{source}: {error}") from None


def _stored_preprocessing(stored: dict[str, Any], size: int, source: str) -> Preprocessing:
    """Read mean, std and interpolation of a folder, and refuse anything but (p/255 - mean)/std."""
    if text := fault(stored, _PREPROCESSING):
        raise UserError(f"{source}: preprocessor_config.json is damaged: {text}")
    rescale = stored.get("rescale_factor", 1 / 255) if stored.get("do_rescale", True) else 1.0
    mean, std = stored.get("image_mean"), stored.get("image_std")
    if not stored.get("do_normalize", True) or abs(rescale * 255 - 1) > 1e-3 or not mean or not std:
        raise UserError(f"{source}: preprocessor_config.json asks for something else than (pixel/255 - mean)/std")
    bicubic = stored.get("resample", _BILINEAR) == _BICUBIC
    return Preprocessing(size, tuple(mean), tuple(std), "bicubic" if bicubic else "bilinear")


def random_teacher(argument: str = "", input_size: int | None = None) -> Teacher:
    """Open a ViT-Tiny with patches of 16 pixels and timm's initial weights; `argument` is the seed."""
    declare_missing()
    from timm.models.vision_transformer import VisionTransformer

    seed, card = control_card("random-vit", argument)
    size = input_size or USUAL_SIZE
    grid = grid_of(size, PATCH, card.name)
    with drawing_from(seed, "random-vit"):
        vit = VisionTransformer(
            img_size=size, patch_size=PATCH, embed_dim=WIDTH, depth=DEPTH, num_heads=WIDTH // 64, num_classes=0
        )
    preprocessing = Preprocessing(size, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    return Teacher(card, _timm_tokens(vit), weights_files.hash_of(vit.state_dict()), preprocessing, grid)
