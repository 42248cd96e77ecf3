import pytest

from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.json_shape import (
    COUNT,
    FLAG,
    NONE,
    NUMBER,
    TEXT,
    WHOLE,
    both,
    either,
    entries,
    fault,
    listed,
    named,
    number,
    whole,
    word,
)
from dinorankclip.stored_settings import settings_shape

RUN = entries({"step": COUNT, "scores": named(NUMBER), "names": listed(TEXT, 1, 2)}, required=("step",))


@pytest.mark.parametrize(
    ("value", "shape", "words"),
    [
        ({"step": 3, "scores": {"a": 1.5}, "names": ["x"], "more": []}, RUN, ""),
        ({}, RUN, "it lacks step"),
        ([], RUN, "it is a list, and an object was expected"),
        ({"step": True}, RUN, "step is True, and a whole number from 0 on was expected"),
        ({"step": 2**70}, RUN, "step is 1180591620717411303424, and a whole number from 0 on was expected"),
        ({"step": 1, "scores": {"a": {"b": 1}}}, RUN, "scores.a is a dict, and a number was expected"),
        ({"step": 1, "names": []}, RUN, "names is a list, and a list of text was expected"),
        ({"step": 1, "names": ["x", 3]}, RUN, "names[1] is 3, and text was expected"),
        ({"a": 1, "b": 2}, entries({"a": WHOLE}, closed=True), "it has entries that are not known here: b"),
        (None, either(TEXT, NONE), ""),
        (3, either(TEXT, NONE), "it is 3, and text or null was expected"),
        ({"a": "x"}, either(entries({"a": WHOLE}), NONE), "a is 'x', and a whole number was expected"),
        (float("nan"), number(0, 1), "it is nan, and a number from 0 to 1 was expected"),
        (7, whole(1, 6), "it is 7, and a whole number from 1 to 6 was expected"),
        ("c", word("a", "b"), "it is 'c', and one of a, b was expected"),
        (1, FLAG, "it is 1, and true or false was expected"),
        ({"a": 1}, both(entries({}, required=("a",)), entries({"a": TEXT})), "a is 1, and text was expected"),
    ],
)
def test_faults_are_named(value, shape, words):
    assert fault(value, shape) == words


def test_settings_have_their_types():
    stored = as_dict(TrainSettings())
    assert fault(stored, settings_shape()) == ""
    for group, name, wrong in (("budget", "batch", "128"), ("optim", "lr", None), ("reading", "crop_scale", 0.9)):
        changed = stored | {group: stored[group] | {name: wrong}}
        assert fault(changed, settings_shape()).startswith(f"{group}.{name} is ")
    assert fault(stored | {"later": object()}, settings_shape()) == ""  # of another version
