"""Forms of the ranking loss through `--recipe aligned`: towers give the order, and chunks change nothing."""

from contextlib import closing

import pytest
import torch

from dinorankclip.commands.train import run
from dinorankclip.run_files import read_metrics
from dinorankclip.train.assemble import assemble
from dinorankclip.train.distil_setup import make_missing_cache, with_cache
from dinorankclip.train.step import backward
from dinorankclip.types import Progress, UserError
from tests.train.running import settings_from, small_pairs
from tests.train.test_aligned import FLAGS

RANK = (*FLAGS, "--method", "rank", "--loss.list-length", "8", "--loss.head-dim", "4", "--aligned.dropout", "0")
FORMS = {
    "reference of the teacher": ("--loss.reference", "teacher", "--loss.order", "1"),
    "reference of the model": ("--loss.reference", "model", "--loss.order", "1"),
    "centred heads": ("--loss.centred", "--loss.order", "3"),
    "transitions of the teacher": ("--loss.transitions", "teacher", "--loss.order", "2"),
    "transitions of the model": ("--loss.transitions", "model", "--loss.order", "2"),
    "all": ("--loss.reference", "teacher", "--loss.transitions", "teacher", "--loss.centred", "--loss.order", "2"),
}


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    """Rows are stored under the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs", train=48, val=12)


@pytest.mark.parametrize("form", FORMS)
def test_a_step_with_and_without_chunks(pairs, form):
    gradients = []
    for chunk in (None, 5):
        parts = assemble(settings_from(*RANK, "--data", pairs, *FORMS[form]))
        model, objective = parts.state.model, parts.state.objective
        assert model.gives_summaries == ("teacher" in FORMS[form])
        with closing(iter(parts.loader)) as batches:
            terms = backward(
                model, objective, next(batches), Progress(5, 6, 2), parts.placement, chunk, compare_terms=True
            )
        assert terms.terms["rank_cross"] > 0 and terms.report["gradient_norm/rank_cross"] > 0
        named = (*model.named_parameters(), *objective.named_parameters())
        gradients.append({n: p.grad for n, p in named if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-6, rtol=1e-4)


def test_the_teachers_summaries_come_first_in_the_rows_and_from_pixels_alike(pairs):
    parts = assemble(settings_from(*RANK, "--data", pairs, *FORMS["reference of the teacher"]))
    model = parts.state.model.eval()
    images, ids = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8), model.tokenizer()(["a cat", "boats", "a dog"])
    named = model(images, ids).named
    own = model.image_tower.network(model.normalised(images))[1]
    torch.testing.assert_close(named["image_summary"], own)
    torch.testing.assert_close(
        named["text_summary"], model.text_tower.network(ids, model.text_tower.tokenizer.mask(ids))[1]
    )
    assert not named["image_summary"].requires_grad and not named["text_summary"].requires_grad


def test_a_whole_run_logs_the_spread_of_fixed_transitions(pairs, tmp_path):
    flags = (*RANK, *FORMS["all"], "--record.log-every", "1")
    assert run(settings_from(*flags, "--data", pairs, "--run", tmp_path / "run"), restart=False, dry=False)
    last = [line for line in read_metrics(tmp_path / "run") if "spread2_image" in line][-1]
    assert last["spread2_image"] > 0 and 0 < last["gate2_text"] < 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--recipe", "aligned", "--method", "rank", "--loss.transitions", "teacher"), "order 2 alone"),
        (("--method", "rank", "--loss.reference", "teacher"), "--loss.reference teacher needs frozen features"),
        (
            ("--method", "rank", "--loss.order", "2", "--loss.transitions", "teacher"),
            "transitions teacher needs frozen",
        ),
        (("--method", "rankclip", "--loss.centred"), "no transitions below order 2"),
        (("--method", "clip", "--loss.reference", "model"), "clip ranks nothing"),
        (("--method", "rank", "--loss.transition-scale", "2"), "learnt heads find their own scale"),
    ],
)
def test_forms_that_do_not_fit_are_refused(pairs, flags, message):
    with pytest.raises(UserError, match=message):
        settings_from(*flags, "--data", pairs)


@pytest.mark.parametrize("criterion", ["gram+rel", "mse"])
def test_a_cache_of_images_and_captions_serves_as_well(pairs, criterion):
    """A criterion on tokens alone reads no summaries; the lists ask for them."""
    settings = settings_from(
        *("--method", "rank", "--data", pairs, "--distil.cache", "auto", "--distil.branches", "image+text"),
        *("--distil.teacher", "random-vit:1", "--distil.teacher-size", "32", "--distil.text-teacher", "random-text:1"),
        *("--distil.criterion", criterion, "--budget.batch", "8", "--budget.threads", "1"),
        *FORMS["all"],
    )
    make_missing_cache(settings, torch.device("cpu"))
    parts = assemble(with_cache(settings))
    with closing(iter(parts.loader)) as batches:
        batch = next(batches)
        terms = backward(parts.state.model, parts.state.objective, batch, Progress(7, 8, 2), parts.placement)
    assert {"image_summary", "text_summary"} <= batch.teacher_features.keys()
    assert terms.terms["rank_in"] > 0 and terms.terms["rank_cross"] > 0
