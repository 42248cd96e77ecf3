"""Embeddings as a Parquet file, for tables and vector stores: the columns beside each row, and `embedding`."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import numpy as np

from dinorankclip.whole_files import whole_file

_ROWS_AT_ONCE = 16384  # of a row group


def write_parquet(path: Path, rows: Path, columns: dict[str, Path]) -> bool:
    """Write the file from an .npy of rows [N, D] and text files with a line for each row. False: no pyarrow here.

    Parquet holds Unicode only: a name whose bytes are no UTF-8 gets replacement characters.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        return False
    embeddings = np.load(rows, mmap_mode="r")
    number = arrow.from_numpy_dtype(embeddings.dtype)
    vector = arrow.list_(number, embeddings.shape[1])
    schema = arrow.schema([*((name, arrow.string()) for name in columns), ("embedding", vector)])
    with contextlib.ExitStack() as stack:
        aside = stack.enter_context(whole_file(path))
        files = [
            stack.enter_context(open(file, encoding="utf-8", errors="replace", newline="\n"))
            for file in columns.values()
        ]
        writer = stack.enter_context(parquet.ParquetWriter(aside, schema))
        for start in range(0, len(embeddings), _ROWS_AT_ONCE):
            some = np.asarray(embeddings[start : start + _ROWS_AT_ONCE])
            words = [[line.removesuffix("\n") for line in itertools.islice(file, len(some))] for file in files]
            numbers = arrow.FixedSizeListArray.from_arrays(arrow.array(some.reshape(-1), number), type=vector)
            writer.write_table(arrow.table([*words, numbers], schema=schema))
    return True
