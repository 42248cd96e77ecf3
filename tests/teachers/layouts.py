"""Random weights in the key layouts in which the real checkpoints are published, with few and narrow layers."""

import torch


class Random:
    """Tensors from a seed; scales that let every layer matter."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape, std=None):
        std = (shape[-1] ** -0.5 if len(shape) > 1 else 0.3) if std is None else std
        return torch.randn(*shape, generator=self.generator) * std

    def near_one(self, *shape):
        return 1 + self(*shape, std=0.2)


def linear(draw, name, out, into):
    return {f"{name}.weight": draw(out, into), f"{name}.bias": draw(out)}


def norm(draw, name, width):
    return {f"{name}.weight": draw.near_one(width), f"{name}.bias": draw(width)}


def vit_block(draw, prefix, width, layer_scale):
    tensors = norm(draw, "norm1", width) | linear(draw, "attn.qkv", 3 * width, width)
    tensors |= linear(draw, "attn.proj", width, width) | norm(draw, "norm2", width)
    tensors |= linear(draw, "mlp.fc1", 4 * width, width) | linear(draw, "mlp.fc2", width, 4 * width)
    if layer_scale:
        tensors |= {"ls1.gamma": draw.near_one(width), "ls2.gamma": draw.near_one(width)}
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def vit(width, depth, patch, *, layer_scale, positions=None, seed=0):
    """Common part of Meta's DINO checkpoints; DINOv1's is complete with `positions`."""
    draw = Random(seed)
    tensors = {
        "cls_token": draw(1, 1, width, std=1),
        "patch_embed.proj.weight": draw(width, 3, patch, patch, std=(3 * patch * patch) ** -0.5),
        "patch_embed.proj.bias": draw(width),
        **norm(draw, "norm", width),
    }
    if positions:
        tensors["pos_embed"] = draw(1, positions, width, std=1)
    for number in range(depth):
        tensors |= vit_block(draw, f"blocks.{number}", width, layer_scale)
    return tensors


def dinov1(width=384, depth=2, patch=16):
    return vit(width, depth, patch, layer_scale=False, positions=1 + (224 // patch) ** 2)


def dinov2(width=384, depth=2, registers=0):
    tensors = vit(width, depth, 14, layer_scale=True, positions=1 + 37**2)
    tensors["mask_token"] = torch.zeros(1, width)
    if registers:
        tensors["register_tokens"] = Random(7)(1, registers, width, std=1)
    return tensors


def dinov3(width=128, depth=2, heads=2, *, biases=True):
    tensors = vit(width, depth, 16, layer_scale=True)
    tensors["storage_tokens"] = Random(7)(1, 4, width, std=1)
    tensors["mask_token"] = torch.zeros(1, width)
    tensors["rope_embed.periods"] = 100.0 ** (2 * torch.arange(width // heads // 4) / (width // heads // 2))
    for number in range(depth):
        bias = tensors[f"blocks.{number}.attn.qkv.bias"]
        bias[width : 2 * width] = 0  # keys have none
        if not biases:
            bias.zero_()
        tensors[f"blocks.{number}.attn.qkv.bias_mask"] = torch.ones(3 * width)
    return tensors


def dinov3_for_transformers(meta):
    """The same weights under the names of the transformers checkpoints on the hub."""
    renamed = {
        "embeddings.cls_token": meta["cls_token"],
        "embeddings.mask_token": meta["mask_token"][None],
        "embeddings.register_tokens": meta["storage_tokens"],
        "embeddings.patch_embeddings.weight": meta["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.bias": meta["patch_embed.proj.bias"],
        "norm.weight": meta["norm.weight"],
        "norm.bias": meta["norm.bias"],
    }
    names = {
        "attn.proj": "attention.o_proj",
        "mlp.fc1": "mlp.up_proj",
        "mlp.fc2": "mlp.down_proj",
        "ls1.gamma": "layer_scale1.lambda1",
        "ls2.gamma": "layer_scale2.lambda1",
    }
    for name, tensor in meta.items():
        if not name.startswith("blocks.") or "bias_mask" in name:
            continue
        _, number, rest = name.split(".", 2)
        if rest.startswith("attn.qkv"):
            for part, each in zip("qkv", tensor.chunk(3)):
                if not (part == "k" and rest.endswith("bias")):
                    renamed[f"layer.{number}.attention.{part}_proj.{rest.split('.')[-1]}"] = each.contiguous()
            continue
        for old, new in names.items():
            rest = rest.replace(old, new)
        renamed[f"layer.{number}.{rest}"] = tensor
    return renamed


def dinotxt(width=128, layers=2, out=96, vocabulary=49408, context=77):
    draw = Random(3)
    text = {
        "backbone.token_embedding.weight": draw(vocabulary, width, std=1),
        "backbone.positional_embedding": draw(context, width, std=0.5),
        **norm(draw, "backbone.ln_final", width),
        "head.linear_projection.weight": draw(out, width),
    }
    for number in range(layers):
        block = norm(draw, "attention_norm", width) | {"attention.qkv.weight": draw(3 * width, width)}
        block |= linear(draw, "attention.proj", width, width) | norm(draw, "ffn_norm", width)
        block |= linear(draw, "feed_forward.fc1", 4 * width, width)
        block |= linear(draw, "feed_forward.fc2", width, 4 * width)
        text |= {f"backbone.blocks.{number}.{name}": tensor for name, tensor in block.items()}
    checkpoint = {f"text_model.{name}": tensor for name, tensor in text.items()}
    return checkpoint | {"logit_scale": torch.ones(1), "visual_model.head.ln_final.weight": torch.ones(8)}


# expansion, kernel, channels out, repeats of EfficientNet-Lite0's stages
LITE0_STAGES = (
    (1, 3, 16, 1),
    (6, 3, 24, 2),
    (6, 5, 40, 2),
    (6, 3, 80, 3),
    (6, 5, 112, 3),
    (6, 5, 192, 4),
    (6, 3, 320, 1),
)

LITE2_STAGES = (
    (1, 3, 16, 1),
    (6, 3, 24, 3),
    (6, 5, 48, 3),
    (6, 3, 88, 4),
    (6, 5, 120, 4),
    (6, 5, 208, 5),
    (6, 3, 352, 1),
)


def lite0(stages=LITE0_STAGES):
    draw, tensors = Random(5), {}

    def convolution(name, norm, out, into, kernel):
        tensors[f"{name}.weight"] = draw(out, into, kernel, kernel, std=(2 / (into * kernel * kernel)) ** 0.5)
        tensors[f"{norm}.weight"], tensors[f"{norm}.bias"] = draw.near_one(out), draw(out)
        tensors[f"{norm}.running_mean"], tensors[f"{norm}.running_var"] = draw(out), draw.near_one(out).square()
        tensors[f"{norm}.num_batches_tracked"] = torch.tensor(1)

    convolution("_conv_stem", "_bn0", 32, 3, 3)
    channels, number = 32, 0
    for expansion, kernel, out, repeats in stages:
        for _ in range(repeats):
            block, wide = f"_blocks.{number}", channels * expansion
            if expansion > 1:
                convolution(f"{block}._expand_conv", f"{block}._bn0", wide, channels, 1)
            convolution(f"{block}._depthwise_conv", f"{block}._bn1", wide, 1, kernel)
            convolution(f"{block}._project_conv", f"{block}._bn2", out, wide, 1)
            channels, number = out, number + 1
    convolution("_conv_head", "_bn1", 1280, channels, 1)
    tensors["_fc.weight"], tensors["_fc.bias"] = torch.zeros(1000, 1280), torch.zeros(1000)
    return tensors
