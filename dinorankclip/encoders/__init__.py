"""Towers and students: pixels or token ids → embeddings and tokens.

trunk.py                 any open_clip model, and the small built-in ones     blocks.py        its blocks, run lean
trunk_tokens.py          the trunk's own dense tokens                         published.py     what a model expects
students.py              image students: shapes and the transformer ones      students_text.py the text student
students_conv.py         ResNet-50, MobileNetV3                               students_conv_small.py  small ones
weights_file.py          tensors ↔ safetensors
"""
