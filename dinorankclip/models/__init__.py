"""Defines the models (trunk, students, fusion; heads on frozen towers), their folder on disk, `load_model` and exports.

trunk.py               the contrastive trunk: an open_clip model, its captions cut to their length
trunk_gate.py          the gate: which configurations of a model are built at all
open_clip_blocks.py    open_clip's transformer blocks, run on sequences of several lengths
open_clip_weights.py   `open_clip:…` as a model, and the checks that its captions and images are read our way
map_tower.py           SigLIP's image tower in any size, pooled by attention
transformers_layout.py names and configurations of transformers' CLIP and SigLIP, to our trunk and back
transformers_weights.py  `transformers:…` as a model: folders of that library, without its code
hub_model.py           `hub:…` as a model: checked copies of a repository
foreign.py             which names are models of other libraries or of a hub, and opening them
lora.py                low-rank corrections in place of matrices, and the merged state
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
export_files.py        card, preprocessing, vocabulary and towers of every export; comparing an export with its model
export_model.py        `write_export`: the formats, the open_clip folder, and putting an export in its place
export_onnx.py         both encoders as ONNX graphs
onnx_weights.py        smaller graphs: weights in 16 or 8 bits
export_transformers.py  folders for transformers and sentence-transformers
hub_code.py            the adapter for AutoModel, copied into such folders
sentence_code.py       the adapter for SentenceTransformer, copied into such folders
export_web.py          the graphs with a page that searches in a browser
push_model.py          an export uploaded to a hub
"""

from dinorankclip.device import declare_missing

declare_missing()  # before any file of this room imports open_clip or timm
