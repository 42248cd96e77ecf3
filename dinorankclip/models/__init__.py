"""The model: trunk, students and fusion, wired; how it lies on disk; what `load_model` returns.

card.py                    How a model came about, gathered from what its run left behind: for the card of an exported
export_formats.py          An export that `load_model` reads: model folder, preprocessing, vocabulary, origin and card
export_model.py            Where an export goes: a new folder, or in place of an older export, never over anything els
folder.py                  The text side of an exported folder: the vocabulary itself, and how captions become ids.
fusion.py                  Fusion: how a student's features bend a trunk's embedding (equation `fuse`), and how far (p
fusion_variants.py         A student's dense tokens, alone or with the pooled scales of the pyramid.
joint.py                   The model: trunk, students and fusion, wired. Methods are settings of these and of the obje
loaded.py                  What a user hands to a loaded model, checked before it gives a wrong answer quietly.
open_clip_blocks.py        open_clip's transformer blocks, run without what nobody reads. The parameters are open_clip
open_clip_weights.py       What an open_clip model expects of those who use it: how captions become numbers, how image
students.py                The students that learn from the teachers: small networks with one class token and dense to
students_conv.py           Convolutional image students for the ablation: ResNet-50 and MobileNetV3-Large, from timm,
trunk.py                   The contrastive trunk: any open_clip model, and the small built-in ones, which are open_cli
weights_file.py            Tensors in a safetensors file, with the rights that the user's other files have, and errors
"""
