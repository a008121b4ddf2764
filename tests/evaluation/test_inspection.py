"""What is shown of a model is what it returns: attention, predictions, neighbours; the page holds any text."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BartConfig, BartForConditionalGeneration, GPT2Config, GPT2LMHeadModel

from lacuna.common.errors import InputError, NumericsError
from lacuna.evaluation import LanguageModel, load_language_model, score_sentences
from lacuna.evaluation.inspection import (
    align,
    compare,
    describe_predictions,
    draw_attention,
    draw_neighbours,
    draw_predictions,
    draw_tokens,
    inspect_text,
    nearest_tokens,
    render_page,
    shown_token,
)

TEXT = "The cats sit on the mat."
ABOUT = {"model": "runs/model", "head": "Some", "kind": "masked", "facts": ["1 weight"], "made_with": "a command"}


@pytest.fixture
def open_model(tokenizer, make_model, tmp_path):
    """A model of 32 hidden units as the recipe opens it."""

    def make(kind: str) -> LanguageModel:
        if kind == "encoder-decoder":
            torch.manual_seed(7)
            sizes = {"encoder_layers": 2, "decoder_layers": 1, "d_model": 32, "max_position_embeddings": 64}
            sizes |= {f"{side}_{name}": 2 * size for side in ("encoder", "decoder") for name, size in SIZES.items()}
            special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
            config = BartConfig(vocab_size=len(tokenizer), init_std=0.3, forced_eos_token_id=3, **sizes, **special)
            model = BartForConditionalGeneration(config)
        else:
            model = make_model(kind)
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        return load_language_model(model=str(tmp_path), inspected=True)

    return make


SIZES = {"attention_heads": 1, "ffn_dim": 16}


def ids_of(tokenizer: Any) -> list[int]:
    return tokenizer(TEXT, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_attention_is_what_the_model_returns(kind: str, open_model) -> None:
    opened = open_model(kind)
    found = inspect_text(language_model=opened, text=TEXT)
    ids = [*opened.prefix, *ids_of(opened.tokenizer), *opened.suffix]
    with torch.no_grad():
        own = opened.model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    (attention,) = found.attention
    assert attention.weights.shape == (2, 2, len(ids), len(ids)) and attention.layers == [1, 2]
    np.testing.assert_array_equal(attention.weights, torch.cat(own).numpy())
    np.testing.assert_allclose(attention.weights.sum(-1), 1, atol=1e-5)
    assert (np.triu(attention.weights, 1) == 0).all() == (kind == "causal")
    (side,) = found.sides
    assert side.ids == ids and side.special == [True] + [False] * len(ids_of(opened.tokenizer)) + [True] * len(
        opened.suffix
    )
    assert "".join(token for token, special in zip(side.tokens, side.special, strict=True) if not special) == TEXT


def test_an_encoder_decoder_has_three_kinds_of_attention(open_model) -> None:
    opened = open_model("encoder-decoder")
    found = inspect_text(language_model=opened, text=TEXT)
    ids = ids_of(opened.tokenizer)
    read, written = [2, *ids, 3], [2, *ids]
    with torch.no_grad():
        own = opened.model(
            input_ids=torch.tensor([read]), labels=torch.tensor([[*ids, 3]]), output_attentions=True
        )  # the model shifts labels itself
    by_kind = {each.kind: each for each in found.attention}
    assert list(by_kind) == ["encoder", "cross", "decoder"]
    for kind, weights in by_kind.items():
        np.testing.assert_allclose(weights.weights, torch.cat(own[f"{kind}_attentions"]).numpy(), atol=1e-6)
        np.testing.assert_allclose(weights.weights.sum(-1), 1, atol=1e-5)
    assert by_kind["cross"].weights.shape == (1, 2, len(written), len(read))
    assert [(side.name, side.ids) for side in found.sides] == [("encoder", read), ("decoder", written)]
    assert found.sides[1].special == [True] + [False] * len(ids)
    bits = [each.bits for each in found.predictions]
    assert sum(bits) / len(bits) == pytest.approx(own.loss.item() / math.log(2), rel=1e-5)
    assert [each.token for each in found.predictions] == [shown_token(opened.tokenizer, token) for token in [*ids, 3]]


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_predictions_are_those_of_the_model_asked_directly(kind: str, open_model) -> None:
    opened = open_model(kind)
    ids = ids_of(opened.tokenizer)
    found = inspect_text(language_model=opened, text=TEXT).predictions
    (score,), _ = score_sentences(language_model=opened, sentences=[TEXT])
    assert sum(each.bits or 0 for each in found) == pytest.approx(-score / math.log(2), rel=1e-5)
    place = 3  # of the text
    row = torch.tensor([[*opened.prefix, *ids, *opened.suffix]])
    at = place + len(opened.prefix)
    if kind == "masked":
        row[0, at] = opened.tokenizer.mask_token_id
    with torch.no_grad():
        chances = opened.model(input_ids=row).logits[0, at if kind == "masked" else at - 1].softmax(-1)
    assert found[place].bits == pytest.approx(-math.log2(chances[ids[place]]), rel=1e-5)
    assert found[place].rank == int((chances > chances[ids[place]]).sum()) + 1
    best = chances.topk(6)
    assert [token for token, _ in found[place].likeliest] == [
        shown_token(opened.tokenizer, i) for i in best.indices.tolist()
    ]
    assert [chance for _, chance in found[place].likeliest] == pytest.approx(best.values.tolist(), rel=1e-5)
    assert len(found) == len(ids) + (kind == "causal")
    assert [each.token for each in found[len(ids) :]] == [None] * (kind == "causal")


def test_predictions_by_hand(tokenizer) -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]]).log()
    first, second = describe_predictions(logits=logits, truths=[2, None], tokenizer=tokenizer)
    assert (first.bits, first.rank) == (pytest.approx(3), 3) and first.token == tokenizer.decode([2])
    assert [chance for _, chance in first.likeliest] == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert (second.token, second.bits, second.rank) == (None, None, None)


def test_neighbours_by_hand(tokenizer) -> None:
    embeddings = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [-1.0, 0.0]])
    states = [torch.tensor([[[5.0, 0.0], [0.0, 0.1]]]), torch.tensor([[[1.0, 1.0], [-4.0, 0.0]]])]
    found = nearest_tokens(states=states, embeddings=embeddings, tokenizer=tokenizer)
    order = [
        [[0, 2], [1, 2]],
        [[2], [3, 1]],
    ]  # the cosine of 45 degrees comes second; below, two are tied behind the first
    for layer, expected in zip(found, order, strict=True):
        for near, ids in zip(layer, expected, strict=True):
            assert [token for token, _ in near[: len(ids)]] == [shown_token(tokenizer, token) for token in ids]
    assert found[0][0][0][1] == pytest.approx(1) and found[0][0][1][1] == pytest.approx(math.sqrt(0.5))
    assert nearest_tokens(states=[torch.ones(1, 2, 3)], embeddings=embeddings, tokenizer=tokenizer) == []


def test_a_token_enters_as_its_own_vector(open_model) -> None:
    """GPT-2 adds a position to each token's vector; without it, layer 0 is the token alone."""
    opened = open_model("causal")
    opened.model.transformer.wpe.weight.data.zero_()
    (side,) = inspect_text(language_model=opened, text=TEXT).sides
    assert len(side.neighbours) == 3  # layers and what enters the first
    assert [near[0][0] for near in side.neighbours[0]] == side.tokens
    assert all(near[0][1] == pytest.approx(1) for near in side.neighbours[0])


@pytest.mark.parametrize(
    "first, second, pairs",
    [
        ([1, 2, 3], [1, 2, 3], [(0, 0), (1, 1), (2, 2)]),
        ([1, 2, 3], [1, 9, 3], [(0, 0), (1, 1), (2, 2)]),  # replaced by one
        ([1, 2, 3], [1, 8, 9, 3], [(0, 0), (2, 3)]),  # replaced by two
        ([1, 2], [1, 7, 2], [(0, 0), (1, 2)]),
        ([1], [2, 3], []),
    ],
)
def test_texts_are_aligned(first: list[int], second: list[int], pairs: list[tuple[int, int]]) -> None:
    assert align(first, second) == pairs


def test_tokens_are_shown_as_text(tokenizer, open_model) -> None:
    ids = tokenizer("é", add_special_tokens=False)["input_ids"]
    assert [shown_token(tokenizer, token) for token in ids] == ["\\xc3", "\\xa9"]  # two bytes of one letter
    assert shown_token(tokenizer, len(tokenizer) + 5) == f"<{len(tokenizer) + 5}>"
    pieces = SimpleNamespace(convert_ids_to_tokens=lambda token: "▁cats")
    assert shown_token(pieces, 0) == " cats"
    (side,) = inspect_text(language_model=open_model("masked"), text="catsup é, mat").sides
    joined = [token for token, goes_on in zip(side.tokens, side.continues, strict=True) if goes_on]
    assert joined == ["s", "u", "p", "\\xa9"] and "".join(side.tokens[1:5]) == "catsup"
    assert not any(goes_on and special for goes_on, special in zip(side.continues, side.special, strict=True))


def test_what_cannot_be_shown_is_refused(open_model) -> None:
    opened = open_model("causal")
    for text in ("", " \n"):
        with pytest.raises(InputError, match="--text 1 is empty"):
            inspect_text(language_model=opened, text=text, where="--text 1")
    with pytest.raises(InputError, match=r"--text 2 has 71 tokens, and the model takes at most 64"):
        inspect_text(language_model=opened, text=" the" * 70, where="--text 2")
    config = GPT2Config(
        vocab_size=len(opened.tokenizer), n_embd=8, n_layer=1, n_head=1, n_positions=512, bos_token_id=2
    )
    torch.manual_seed(0)
    unlimited = opened.tokenizer.__class__(tokenizer_object=opened.tokenizer._tokenizer, bos_token="[CLS]")
    wide = LanguageModel.of(model=GPT2LMHeadModel(config), tokenizer=unlimited)
    with pytest.raises(InputError, match="a picture can show at most 128"):
        inspect_text(language_model=wide, text=" the" * 200)
    with pytest.raises(InputError, match="no attention weights"):  # made with a fused kernel, which keeps none
        wide.model.set_attn_implementation("sdpa")
        inspect_text(language_model=wide, text=TEXT)
    opened.model.lm_head.weight.data[0] = math.nan
    with pytest.raises(NumericsError, match="not finite"):
        inspect_text(language_model=opened, text=TEXT)


class Page(HTMLParser):
    """What a browser makes of a page: its scripts, and everything that names another address."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.scripts += [""] if tag == "script" else []
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"]:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")


HOSTILE = "a</script><script>alert(1)</script><!-- <b>&amp; ${x} __DATA__ \u2028 \\u003c"


def test_the_page_holds_any_text(open_model) -> None:
    found = inspect_text(language_model=open_model("masked"), text=HOSTILE[:40])
    inspections = [found, found.__class__(HOSTILE, found.sides, found.attention, found.predictions)]
    text = render_page(inspections=inspections, about={**ABOUT, "model": "<b>__DATA__</script>"})
    page = Page(text)
    data, script = page.scripts
    read = json.loads(data)
    assert [each["text"] for each in read["texts"]] == [HOSTILE[:40], HOSTILE] and "alert" not in script
    assert page.tags.count("script") == page.tags.count("/script") == 2
    assert "<title>Inside &lt;b&gt;__DATA__&lt;/script&gt;</title>" in text and "<!--" not in text
    assert read["model"] == "<b>__DATA__</script>"
    weights = np.array(read["texts"][0]["attention"][0]["weights"]) / 10_000
    np.testing.assert_allclose(weights, found.attention[0].weights, atol=0.00005001)
    assert read["texts"][1]["aligned"][0] == [[place, place] for place in range(len(found.sides[0].ids))]


def test_the_page_needs_nothing_else_and_is_small(open_model) -> None:
    opened = open_model("encoder-decoder")
    text = (" the mat" * 15).strip()  # with the ends above thirty tokens
    found = [inspect_text(language_model=opened, text=text + end) for end in (".", "?")]
    page = render_page(inspections=found, about={**ABOUT, "kind": "encoder-decoder"})
    assert (
        len(found[0].sides[0].ids) >= 30 and len(page.encode()) < 3_000_000 / 8
    )  # one layer each here, eight in others
    assert Page(page).addresses == ["data:,"]
    assert not re.findall(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|import\(|innerHTML|eval\(", page)
    assert set(re.findall(r"https?://[\w./]*", page)) == {"http://www.w3.org/"}  # names of SVG and HTML, not addresses
    assert "default-src 'none'" in page


def test_pictures(open_model, tmp_path: Path) -> None:
    opened = open_model("masked")
    one, other = (inspect_text(language_model=opened, text=text) for text in (TEXT, "The cats sit on $the dog. 日"))
    draw_attention(inspection=other, number=0, path=tmp_path / "a.png")
    draw_predictions(inspection=other, path=tmp_path / "b.png")
    draw_attention(inspection=other, number=0, path=tmp_path / "c.png", against=one)
    draw_neighbours(side=other.sides[0], path=tmp_path / "d.png", text=other.text)
    draw_tokens(sides=[one.sides[0], other.sides[0]], path=tmp_path / "e.png")
    for name in "abcde":
        image = np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB"))
        colors = {tuple(color) for color in np.unique(image.reshape(-1, 3), axis=0).tolist()}
        assert image.shape[0] > (100 if name == "e" else 200) and image.shape[1] > 300 and len(colors) > 20
        assert name != "c" or {(103, 0, 31), (5, 48, 97)} & colors  # the largest difference, either way
        assert name != "e" or {(0xDD,) * 3, (0xB9, 0xD8, 0xEE), (0xF8, 0xD7, 0xBD)} <= colors  # added, words in turn
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [f"{name}.png" for name in "abcde"]


def test_a_difference_is_of_the_tokens_that_belong_together(open_model) -> None:
    one, other = (
        inspect_text(language_model=open_model("masked"), text=text) for text in ("The cats sit", "The old cats run")
    )
    weights, rows, columns = compare(other, 0, one)
    pairs = align(one.sides[0].ids, other.sides[0].ids)
    assert rows == columns and len(rows) == len(pairs) >= 4
    before, after = one.attention[0].weights, other.attention[0].weights
    for row, (i, j) in enumerate(pairs):
        tokens = one.sides[0].tokens[i], other.sides[0].tokens[j]
        assert rows[row] == "|".join(dict.fromkeys(token.strip() for token in tokens))
        for column, (k, m) in enumerate(pairs):
            expected = after[:, :, j, m] - before[:, :, i, k]
            np.testing.assert_array_equal(weights[:, :, row, column], expected)
