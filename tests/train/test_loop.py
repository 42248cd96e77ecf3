from dinorankclip.config import RecordSettings
from dinorankclip.train.loop import due


def test_the_first_and_the_last_step_are_logged_besides_every_nth():
    def logged(total, **record):
        return [step + 1 for step in range(total) if due(step, RecordSettings(**record), total)[0]]

    assert logged(6) == [1, 6]
    assert logged(25) == [1, 10, 20, 25]
    assert logged(20) == [1, 10, 20]
    assert logged(1) == [1]
    assert logged(8, gradient_report_every=3) == [1, 3, 6, 8]
