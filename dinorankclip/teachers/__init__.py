"""Frozen teachers: images → dense features, captions → token features. A teacher is never trained and never saved.

registry.py            lists all kinds of teachers, opens a spec; says how to add a teacher
frozen_teacher.py      defines an image or text teacher and reads the images it receives
dino_vits.py           DINO and other ViTs through timm or transformers; random controls
efficientnet_lite0.py  EfficientNet-Lite0, installed with pip
minilm.py              the sentence encoder MiniLM
dinotxt.py             the text tower of dino.txt
weights_files.py       finds, downloads, reads and hashes weights
caption_words.py       splits captions into words and assigns tokens to them
feature_codecs.py      converts features to bytes and back
cache_format.py        names the files of a cache; plan and manifest
cache_build.py         computes the features of a data set
cache_request.py       makes the cache that settings ask for; names automatic folders
cache_read.py          reads features at training time
"""
