"""Reads image–caption pairs and makes batches of them, exactly repeatable. No file here knows of models.

benchmark_sets.py   finds and opens evaluation sets, captioned or classified; digests of all their bytes
damage.py           names and counts samples that cannot be used; describes how a damaged image is handled
decode.py           bytes → upright RGB pixels; caption files → captions
duplicates.py       finds photos that are in two parts of a data set
families.py         families of classes: by words of their names, a table, or label files
folders_and_tables.py   pairs of image files: a folder with .txt files beside them, or a .csv, .tsv or .parquet table
inspect.py          contact sheets of pairs, and the examination of data
loader.py           pairs → batches, with an exact position; worker processes. Begin here: it lists a sample's steps
replay.py           pairs of a second source in every batch, for fine-tuning
open_data.py        opens the pairs that a user names after --data, and images or captions alone
own_vocabulary.py   captions → ids by a vocabulary that a model brings
pack.py             writes pairs and classification sets
paths.py            refuses paths that cannot be right, before anything heavy is imported
python_pairs.py     pairs of a Python program: torch data sets, lists and iterables of (image, captions)
readers.py          readers of data named NAME:ARGUMENT, plugged in or given in Python
remote.py           shards on other machines, by URLs and ranges of bytes
row_pieces.py          blocks of such rows as pieces of work
row_store.py        rows that a model gives for items, computed in blocks and stored; used by train, score, search
samples.py          one sample: random draws, view, pixels, caption; whole images in order for evaluation
scenes/             the built-in data
second_captions.py  second captions of images, by key: a file, a column, or KEY.second.txt beside each image
splits.py           validation parts and choices of training images
streams.py          pairs that come out of commands (pipe:)
tar_headers.py      walks the headers of a tar that may be damaged or hostile
tar_shards.py       pairs of tar shards, in any order
tokens.py           captions → token ids
"""
