"""transformers' DINOv3 as a teacher: `hf:FOLDER` (config.json, preprocessor_config.json, *.safetensors) or `hf:NAME`.

Tokens are `last_hidden_state`, which is after the final norm; `hidden_states[-1]` would be before it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dinorankclip.torchvision_ops import declare_missing
from dinorankclip.types import UserError, first_line

from . import vits, weights
from .teacher import Card, Interpolation, Preprocessing, Teacher

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
        return vits.split(self.vit(pixel_values=images).last_hidden_state, self.prefix)


def transformers_teacher(where: str, input_size: int | None = None) -> Teacher:
    """`where` is a folder, or a name on the hub such as facebook/dinov3-vits16-pretrain-lvd1689m."""
    source = f"hf:{where}"
    folder = Path(where).expanduser()
    if not folder.is_dir():
        if where.count("/") != 1 or where.startswith((".", "/", "~")):
            raise UserError(f"{source}: there is no such folder. {weights.INSTEAD}")
        folder = weights.hub_folder(where, source, "hf:FOLDER", gated=where.startswith("facebook/dinov3"))
    config = _read(folder / "config.json", source)
    if config.get("model_type") != "dinov3_vit":
        raise UserError(f"{source} is a '{config.get('model_type')}', not a 'dinov3_vit'; for other ViTs use timm:")
    size = input_size or vits.USUAL_SIZE
    patch = config.get("patch_size", 16)
    grid = vits.grid_of(size, patch if isinstance(patch, int) else patch[0], source)
    preprocessing = _preprocessing(_read(folder / "preprocessor_config.json", source), size, source)
    vit = _load(folder, source)
    licence = "DINOv3 licence (gated weights)"
    name = f"hf:{folder.name}" if Path(where).is_dir() else source
    teacher = Teacher(Card(name, licence), _Tokens(vit), weights.hash_of(vit.state_dict()), preprocessing, grid)
    vits.demand_final_norm(teacher, vit.norm)
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
