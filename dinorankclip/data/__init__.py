"""Pairs → batches, exactly repeatable. Nothing here knows of models; teachers' features ride along as companions.

What a user types, and how it is read:
opening.py          `open_pairs`: --data → a source          parts.py            train and validation parts
shards.py, tars.py  tar shards, read by position             pipes.py            shards that commands stream
tables.py           CSV, TSV, Parquet                        folders.py          images with .txt files
images_only.py      images or captions alone                 scenes/             the built-in data
benchmark_sets.py   evaluation sets by name                  labelled.py         classification sets
captions.py         caption files                            damage.py           samples that cannot be used

On the way into a batch:
loader.py           the whole way, with an exact position    samples.py          one sample
workers.py          worker processes                         draws.py            chance by place, not by history
images.py           bytes → pixels                           views.py            crop, flip, resize
tokens.py           captions → ids, as open_clip             bpe.py              the same without torch
evaluation.py       each pair once, in order

Beside it:
packing.py          pairs → another layout                   packing_classes.py  class folders → a set
contact_sheet.py    pairs to look at                         checkup.py          what `doctor` finds
contents.py         a fingerprint of all bytes               kept.py             small tables kept on disk

A new layout: docs/extending.md.
"""
