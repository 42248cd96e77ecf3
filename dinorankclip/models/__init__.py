"""Defines the models (trunk, students, fusion; heads on frozen towers), their folder on disk, `load_model` and exports.

trunk.py               the contrastive trunk: an open_clip model, its captions cut to their length
trunk_gate.py          the gate: which configurations of a model are built at all
open_clip_blocks.py    open_clip's transformer blocks, run on sequences of several lengths
open_clip_weights.py   `open_clip:…` as a model, and the checks that its captions and images are read our way
own_tokens.py          the trunk's own dense tokens in the place of a student's
students.py            image students (ViT, convolutional), text students, and their features
fusion.py              the equations of fusion, and the gate
fusion_variants.py     pyramid, attention, refiner, and the six variants that are built from them
joint.py               trunk, students and fusion wired to one model
towers.py              frozen teachers as towers, and the rows of their features
class_name_bridge.py   images in caption space without pairs: the closed form behind `starter`
aligned.py             heads and fusions over two frozen towers: the model of `--recipe aligned`
starter.py             `starter` as a model: the installed towers as they are
weights_file.py        safetensors files, hashes of weights, models without initial draws
folder.py              the model folder: save, find, load; the vocabulary beside an export
loaded.py              `load_model`: pictures and captions in, embeddings out
card.py                provenance of a model, and the README of an export
export_model.py        `write_export`: a model folder, an open_clip folder or ONNX graphs, put in their place
"""

from dinorankclip.device import declare_missing

declare_missing()  # before any file of this room imports open_clip or timm
