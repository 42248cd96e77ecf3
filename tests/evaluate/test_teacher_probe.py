"""The linear probe of a teacher itself."""

import pytest
from torch import nn

from dinorankclip.data.benchmark_sets import find_sets, open_set
from dinorankclip.evaluate.teacher_probe import probe_teacher
from dinorankclip.teachers.frozen_teacher import Preprocessing, Teacher, TeacherCard
from dinorankclip.types import UserError
from tests.set_making import write_captions, write_classes


class Colours(nn.Module):
    """Its summary is the mean colour: enough to tell classes apart that are colours. Without colours it is blind."""

    def __init__(self, blind: bool) -> None:
        super().__init__()
        self.blind = blind

    def forward(self, images):
        summary = images.mean((2, 3)) * (0.0 if self.blind else 1.0) + 1.0
        return summary[:, None], summary


def teacher(blind: bool) -> Teacher:
    card = TeacherCard("colours", "none")
    return Teacher(card, Colours(blind), "x", Preprocessing(size=8, mean=(0.0,) * 3, std=(1.0,) * 3), (1, 1))


@pytest.fixture
def classes(tmp_path):
    write_classes(write_classes(tmp_path / "set"), split="train", labels=(0, 1, 2, 3) * 6)
    return open_set(find_sets(str(tmp_path / "set"))[0])


def test_a_teacher_that_sees_and_one_that_does_not(classes):
    seeing, blind = (probe_teacher(teacher(blind), classes) for blind in (False, True))
    assert (seeing.accuracy, seeing.low, seeing.high) == (1.0, 1.0, 1.0)
    assert blind.accuracy == 0.25 and blind.low < 0.25 < blind.high
    assert (seeing.teacher, seeing.size, seeing.set, seeing.images, seeing.classes) == ("colours", 8, "set", 12, 4)


def test_captions_cannot_be_probed(tmp_path):
    write_captions(tmp_path / "pairs")
    with pytest.raises(UserError, match="needs classes and a training part"):
        probe_teacher(teacher(False), open_set(find_sets(str(tmp_path / "pairs"))[0]))
