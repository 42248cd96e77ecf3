import json

from dinorankclip.run_files import (
    gate_name,
    inert_orders,
    inert_words,
    is_inert,
    last_spreads,
    logged_orders,
    spread_name,
)

LINES = [
    {"step": 10, "loss": 5.0, "spread2_image": 0.2, "spread2_text": 0.1},
    {"step": 20, "loss": 4.0, "spread2_image": 0.1, "spread2_text": 0.3, "spread3_image": 5e-4, "spread3_text": 2e-3},
    {"step": 30, "loss": 3.0, "spread3_image": 9e-4, "spread3_text": 8e-4},
    {"step": 30, "val/mean R@1": 0.1},
]


def test_the_last_spread_decides(tmp_path):
    half_written = '{"step": 40, "spread3_image": 5'
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES) + half_written)
    assert last_spreads(tmp_path) == {2: 0.3, 3: 9e-4}
    assert inert_orders(tmp_path) == [3]
    assert inert_words([3]) == "order 3 inert" and inert_words([4, 5]) == "orders 4 and 5 inert"


def test_without_a_log_nothing_is_said(tmp_path):
    assert inert_orders(tmp_path) == [] and inert_words([]) == ""


def test_names_are_made_and_read_in_one_place():
    names = [spread_name(2, "image"), spread_name(12, "text"), gate_name(3, "image"), "spread", "spreads_image", "loss"]
    assert logged_orders(names) == [2, 12]
    assert is_inert(9e-4) and not is_inert(1e-3)
