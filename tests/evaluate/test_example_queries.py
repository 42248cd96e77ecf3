"""What a few validation queries find is stored at the first and at the last validation, on the same items."""

import json

import pytest
import torch

from dinorankclip.evaluate.example_queries import BY_IMAGE, BY_TEXT, SHOWN, note_examples, read_examples
from dinorankclip.types import UserError


class Pairs:
    """Three captions for each of n images; `fingerprint` as a source has it."""

    def __init__(self, count, fingerprint="data"):
        self.fingerprint = fingerprint
        self.captions = [[f"thing {n} seen {k}" for k in range(3)] for n in range(count)]


def note(run, step, pairs, image, text):
    indices = [10 + n for n in range(len(pairs.captions))]  # positions in the source, not in the table
    note_examples(run, step, "val", pairs, indices, pairs.captions, image, text)


def rows(count, perfect):
    """Rows of a model that finds everything, or finds the right item last."""
    image = torch.eye(count)
    return (image if perfect else -image), image.repeat_interleave(3, 0)


def test_first_and_last_have_the_same_queries(tmp_path):
    pairs = Pairs(40)
    for step, perfect in ((5, False), (10, False), (15, True)):
        note(tmp_path, step, pairs, *rows(40, perfect))
    stored = read_examples(tmp_path)
    first, last = stored["first"], stored["last"]
    assert (first["step"], last["step"], stored["images"], stored["captions"]) == (5, 15, 40, 120)
    assert len(last["by_text"]) == BY_TEXT and len(last["by_image"]) == BY_IMAGE
    for kind in ("by_text", "by_image"):
        asked = [[(query["caption"], query["image"]) for query in moment[kind]] for moment in (first, last)]
        assert asked[0] == asked[1]
    assert {query["place"] for query in first["by_text"]} == {39}
    assert {query["place"] for query in last["by_text"]} == {0}
    for query in last["by_text"]:
        thing = int(query["caption"].split()[1])
        assert query["image"] == 10 + thing and len(query["found"]) == SHOWN
        assert query["found"][0] == [10 + thing, True] and not any(right for _, right in query["found"][1:])
    for query in last["by_image"]:
        assert sum(right for _, right in query["found"]) == 3  # all captions of the image come first
        assert query["found"][0][0].startswith(f"thing {query['image'] - 10} ")


def test_a_repeated_validation_replaces_its_result(tmp_path):
    pairs = Pairs(8)
    note(tmp_path, 5, pairs, *rows(8, True))
    once = (tmp_path / "examples.json").read_bytes()
    note(tmp_path, 5, pairs, *rows(8, True))  # after a kill
    assert (tmp_path / "examples.json").read_bytes() == once
    assert read_examples(tmp_path)["first"] == read_examples(tmp_path)["last"]


def test_other_data_begins_anew(tmp_path):
    note(tmp_path, 5, Pairs(8), *rows(8, True))
    note(tmp_path, 9, Pairs(8, "changed"), *rows(8, True))
    assert read_examples(tmp_path)["first"]["step"] == 9


@pytest.mark.parametrize("change", ["{", "[]", '{"part": "val"}', None])
def test_a_damaged_file_is_refused_and_written_anew(tmp_path, change):
    note(tmp_path, 5, Pairs(8), *rows(8, True))
    path = tmp_path / "examples.json"
    if change is None:  # a digit that the hash notices
        stored = json.loads(path.read_text())
        stored["first"]["by_text"][0]["place"] = 3
        change = json.dumps(stored)
    path.write_text(change)
    with pytest.raises(UserError, match="damaged"):
        read_examples(tmp_path)
    note(tmp_path, 6, Pairs(8), *rows(8, True))
    assert read_examples(tmp_path)["first"]["step"] == 6


def test_without_a_file_there_are_none(tmp_path):
    assert read_examples(tmp_path) == {}
