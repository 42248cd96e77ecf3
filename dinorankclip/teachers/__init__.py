"""Frozen teachers: images → dense features, captions → token features. A teacher is never trained and never saved.

registry.py            lists all kinds of teachers, opens a spec; says how to add a teacher
frozen_teacher.py      defines an image or text teacher and reads the images it receives
dino_vits.py           DINO and other ViTs through timm or transformers; a random control
efficientnet_lite0.py  EfficientNet-Lite0 and -Lite2, installed with pip, and their classifiers
minilm.py              MiniLM and other BERT sentence encoders
text_teachers.py       the text tower of dino.txt, a random control; the words of a caption and their tokens
portable.py            copies a teacher's weights into a model folder
weights_files.py       finds, downloads, reads and hashes weights
cache_format.py        names the files of a cache, plan and manifest; converts features to bytes and back
cache_build.py         computes the features of a data set
cache_request.py       makes the cache that settings ask for; names automatic folders
cache_read.py          reads features at training time
"""
