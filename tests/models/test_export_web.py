"""The page's own tokenizers and resizing are those of this package, and its folder is complete."""

import json
import random
import shutil
import string
import subprocess

import numpy as np
import pytest

from dinorankclip.data.samples import render_whole
from dinorankclip.data.scenes.make import SampleSpec, SetSplit, sample_files
from dinorankclip.models.export_model import write_export
from dinorankclip.models.export_web import _HERE, RUNTIME, _word_pieces, vocabulary
from dinorankclip.models.loaded import load_model
from dinorankclip.types import UserError
from tests.models.model_making import photo, saved, small_model

ODD = """\
Straßencafé №5, it's 20% off!|“Curly” ‘quotes’ — and…|ﬁsh & chips|&lt;b&gt; caf&eacute; &amp;amp; x
&#233;&#x41;&notit; &copy2020|日本語のテキスト 写真|ＦＵＬＬ　ｗｉｄｔｈ|emoji 😀👩‍👩‍👧|İstanbul ΣΑΣ ὈΔΥΣΣΕΎΣ
<start_of_text> <end_of_text>|I'LL can't WE'VE|½ Ⅷ ²|don’t|naïve façade ångström|кошка и собака
مرحبا بالعالم|नमस्ते|a&b&c;|!?!?...""".replace("\n", "|").split("|")
ODD += [
    "",
    "a\tb\nc  d",
    "x" * 300,
    "a\u0301bc",
    "\u00a0nb\u2003sp",
    "\ufeffbom",
    "zero\u200bwidth",
    "a long caption " * 40,
]


def captions():
    scenes = [sample_files(SampleSpec(SetSplit("pairs", "test", 60), index, 0, 32))["txt"] for index in range(60)]
    drawn, letters = random.Random(0), string.printable + "äöüß’“éñ日本☃"
    mixed = ["".join(drawn.choice(letters) for _ in range(drawn.randrange(1, 60))) for _ in range(300)]
    return [*(line for scene in scenes for line in scene.decode().splitlines()), *ODD, *mixed]


def in_node(folder, script, *values):
    if shutil.which("node") is None:
        pytest.skip("the page's JavaScript is tested with node, which is not installed")
    (folder / "values.json").write_text(json.dumps(values))
    head = "import fs from 'fs'; const values = JSON.parse(fs.readFileSync('values.json'));"
    for name in ("tokens.js", "pixels.js"):
        shutil.copyfile(_HERE / name, folder / name.replace(".js", ".mjs"))
    (folder / "run.mjs").write_text(f"{script[0]}\n{head}\nconsole.log(JSON.stringify({script[1]}))")
    done = subprocess.run(["node", "run.mjs"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


_TOKENS = "import { tokenizer } from './tokens.mjs';", "values[1].map((text) => t.encode(text))"


def test_byte_pairs_in_the_browser_are_ours(tmp_path):
    model = load_model(saved(tmp_path / "plain", small_model()))
    texts = captions()
    script = _TOKENS[0], f"(() => {{ const t = tokenizer(values[0], 77); return {_TOKENS[1]}; }})()"
    found = in_node(tmp_path, script, vocabulary(model), texts)
    assert len(texts) > 400
    assert [text for text, ids in zip(texts, found) if ids != model.tokenizer.encode(text)] == []


def test_word_pieces_in_the_browser_are_the_sentence_encoders(tmp_path):
    from html.entities import html5

    tokenizers = pytest.importorskip("tokenizers")
    from dinorankclip.teachers.text_teachers import caption_words

    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *string.ascii_lowercase,
        *string.punctuation,
        "##e",
        "##s",
        "##ed",
        "dog",
    ]
    pieces += [f"##{letter}" for letter in string.ascii_lowercase if letter not in "es"] + ["run", "##ning", "日", "本"]
    from tokenizers import models, normalizers, pre_tokenizers, processors

    encoder = tokenizers.Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    encoder.normalizer, encoder.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    encoder.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    data = _word_pieces(json.loads(encoder.to_str()), tmp_path) | {"entities": dict(html5)}
    texts = captions()
    script = _TOKENS[0], f"(() => {{ const t = tokenizer(values[0], 64); return {_TOKENS[1]}; }})()"
    found = in_node(tmp_path, script, data, texts)
    for text, ids in zip(texts, found):
        expected = encoder.encode(caption_words(text), is_pretokenized=True).ids
        assert ids == (expected if len(expected) <= 64 else [*expected[:63], 3]), text


@pytest.mark.parametrize(("resize", "interpolation"), [("shortest", "bicubic"), ("squash", "bilinear")])
def test_photos_in_the_browser_are_resized_as_ours(tmp_path, resize, interpolation):
    pixels = np.asarray(photo(1, 151, 97))
    rgba = np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])
    spec = {"size": 48, "resize": resize, "interpolation": interpolation}
    script = "import { shown } from './pixels.mjs';", "[...shown(values[0], 151, 97, values[1])]"
    found = np.array(in_node(tmp_path, script, rgba.ravel().tolist(), spec)).reshape(3, 48, 48)
    ours = render_whole(pixels, 48, resize, interpolation).numpy().astype(int)
    assert np.abs(found - ours).max() <= 1


def test_the_folder_of_a_page(tmp_path):
    pytest.importorskip("onnxscript")
    source = saved(tmp_path / "plain", small_model(seed=2))
    (tmp_path / "photos").mkdir()
    for number in range(3):
        photo(number).save(tmp_path / "photos" / f"{number}.png")
    with pytest.raises(UserError, match="npm install onnxruntime-web"):
        write_export(str(source), tmp_path / "page", ["web"], runtime=tmp_path)
    dist = tmp_path / "node_modules" / "onnxruntime-web" / "dist"
    dist.mkdir(parents=True)
    for name in RUNTIME:
        (dist / name).write_bytes(b"x")
    options = {"licence": "mit", "runtime": tmp_path, "images": tmp_path / "photos", "precision": "int8"}
    write_export(str(source), tmp_path / "page", ["web"], **options)
    about = json.loads((tmp_path / "page" / "page.json").read_text())
    assert about["photos"] == ["0.png", "1.png", "2.png"] and about["size"] == 32
    rows = np.fromfile(tmp_path / "page" / "photos.f32", np.float32).reshape(3, about["dim"])
    model = load_model(source)
    assert np.allclose(rows[1], model.encode_image(model.preprocess(photo(1))[None])[0].numpy(), atol=1e-5)
    assert {path.name for path in (tmp_path / "page" / "runtime").iterdir()} == set(RUNTIME)
    page = "".join(
        (tmp_path / "page" / name).read_text() for name in ("index.html", "page.js", "tokens.js", "pixels.js")
    )
    assert "http://" not in page and "https://" not in page
