"""Pairs → batches, exactly repeatable. Nothing here knows of models; teachers' features ride along as teacher_features.

benchmark_sets.py          Which evaluation sets a user means, and one such set: `find_sets` looks, `open_set` reads i
bpe.py                     CLIP's byte-pair encoding in plain Python, for a program that must answer before torch coul
damage.py                  Samples that cannot be used: why, which, and how many are too many.
decode.py                  Bytes → upright RGB pixels. JPEG by simplejpeg (libjpeg-turbo), everything else by Pillow.
fingerprint.py             What data holds, as a short name: a fingerprint of all bytes.
folders.py                 A folder of images with a caption file beside each: `shoes red.jpg` and `shoes red.txt`, on
inspect.py                 Pairs to look at: a picture (PNG) or a page (HTML) of images with their captions.
loader.py                  Pairs → batches, with an exact position. The whole way of a sample:
open_data.py               `open_pairs`: from what a user types after `--data` to a source of pairs.
pack.py                    Write pairs in one of the three layouts that `open_pairs` reads: shards, a table, a folder.
samples.py                 Which part of an image a sample shows (`types.View`), and showing it: crop, flip, resize to
scenes/
splits.py                  A part of a source, the cut that sets validation images aside when the data comes without a
streams.py                 Pairs that come out of commands: `pipe:aws s3 cp s3://bucket {0000..0331}.tar -`. A stream
tables.py                  A table of image paths and captions: CSV, TSV or Parquet. Paths are relative to the table.
tar_shards.py              Where every sample of a tar lies: its table of contents as arrays, made once, and reads by
tokens.py                  Captions → token ids: CLIP's byte-pair encoding, as open_clip does it.
unpaired.py                Images without captions, and captions without images: what `embed` and `search` read beside
workers.py                 Worker processes around torch's DataLoader: started, watched, and gone when they are not ne
"""
