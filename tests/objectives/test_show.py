"""Examples in words: what is printed is what the model gets."""

import re
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lacuna.objectives import IGNORED, OBJECTIVES, SpecialTokens
from lacuna.objectives.show import EDGES, RESTS, WIDTH, _Page, show_examples, wrap

TEXT = """The cat sat on the mat and looked at the moon. It was a cold night,
and nobody came. The dog slept in the barn. A wind rose from the north, and the old house sang all night long."""


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    core.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"
    )


@pytest.fixture(scope="module")
def make(store_of, parts, tokenizer):
    sentences = [f"{part}." for part in TEXT.replace("\n", " ").split(".") if part]
    sizes = np.random.default_rng(0).integers(1, 5, size=30)
    store = store_of(
        [
            [tokenizer(sentences[(number + place) % len(sentences)])["input_ids"] for place in range(size)]
            for number, size in enumerate(sizes)
        ]
    )
    tokens = SpecialTokens.of(tokenizer)
    edges = np.zeros((len(tokenizer), 2), dtype=np.uint8)
    for token in tokens.ordinary:
        text = tokenizer.decode([int(token)])
        edges[token] = 1 if text.startswith(" ") else 3, 3

    def make(name: str, **options: Any):
        lengths = np.ones(len(tokenizer), dtype=np.int64)
        given = parts(store, objective=name, **options)
        return OBJECTIVES[name](**{**given, "tokens": tokens, "byte_lengths": lengths, "token_edges": edges})

    with pytest.MonkeyPatch.context() as patch:  # "the" is all that recurs in a document here
        patch.setattr("lacuna.objectives.spans.COMMON", 1)
        yield make


def body(page: str) -> str:
    """The text of the examples in one line, without rules and indents."""
    lines = [re.sub(r"^(│ (reads|writes)? *|[AB]  |   )", "", line) for line in page.splitlines()]
    kept = [line for line in lines if not line.startswith(("├", "──"))]
    return re.sub(r"\s+", "", "".join(kept))


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("mlm", {}),
    ("mlm", {"masking": "whole_word"}),
    ("mlm", {"masking": "span", "packing": "none"}),
    ("mlm_nsp", {}),
    ("mlm_sop", {}),
    ("mlm_contrastive", {}),
    ("clm", {}),
    ("hybrid", {}),
    ("denoising", {}),
    ("spans", {}),
]


@pytest.mark.parametrize("name, options", VARIANTS)
def test_a_page_says_what_it_shows(make, tokenizer, name, options) -> None:
    work = make(name, sequence_length=64, **options)
    page = show_examples(work, tokenizer, 3)
    assert page.startswith(f"{name}\n") and page.count("── example ") == 3
    assert all(len(line) <= WIDTH for line in page.splitlines())
    assert all(line in page for line in work.legend)
    is_pair = name in ("mlm_nsp", "mlm_sop")
    edges = EDGES.format("passage" if name == "mlm_contrastive" else "document")
    assert (edges in page) == (not is_pair and options.get("packing") != "none")
    assert (RESTS in page) == (not is_pair and name != "mlm_contrastive")
    assert "\x1b" not in page
    if is_pair:
        assert all(re.search(f" · ({'|'.join(work.answers)}) · ", head) for head in re.findall("── example.*", page))
    if name == "hybrid":
        assert " · causal · " in page and " · masked · " in page
    if name == "denoising":
        assert page.count("│ reads   ") == page.count("│ writes  ") >= 3
        assert "[MASK]" in page


@pytest.mark.parametrize("masking", ["token", "span"])
def test_what_is_printed_is_the_text_and_its_masks(make, tokenizer, masking) -> None:
    work = make("mlm", masking=masking, sequence_length=64)
    page = show_examples(work, tokenizer, 2)
    for number, text in enumerate(page.split("── example ")[1:]):
        row = (2 * number + 1) * work.num_examples // 4
        assert f"row {row:,} ·" in text
        example = work.example(row, number)
        shown = body(text.split("\n", 1)[1])
        # Read back: in brackets stands what is to be found, and what the model sees.
        original = re.sub(r"⟦(.*?)(→\[MASK\](×\d+)?|≠.*?|=)⟧", r"\1", shown)
        ids = np.where(example["labels"] != IGNORED, example["labels"], example["input_ids"])
        ids = ids[: len(work.rows[row].ids)]
        decoded = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        assert original.strip("…") == re.sub(r"\s+", "", decoded.replace("\n", "↵"))
        hidden = sum(int(times or 1) for times in re.findall(r"→\[MASK\](?:×(\d+))?⟧", shown))
        assert hidden == int(((example["input_ids"] == 4) & (example["labels"] != IGNORED)).sum())


def test_edges_of_documents_are_seen(make, tokenizer) -> None:
    work = make("clm", sequence_length=64)
    row = next(row for row in range(work.num_examples) if len(work.rows[row].bounds) > 2)
    assert row < work.num_examples
    page = show_examples(work, tokenizer, work.num_examples)
    pieces = [len(work.rows[row].bounds) - 1 for row in range(work.num_examples)]
    assert page.count("├" + "─" * 39) == sum(pieces) - len(pieces)
    assert page.count("‹") - 1 == sum(pieces)  # one in the legend
    assert len(re.findall("── example ", page)) == work.num_examples


def test_no_more_examples_than_there_are(make, tokenizer) -> None:
    work = make("clm", sequence_length=512)
    assert show_examples(work, tokenizer, 10_000).count("── example ") == work.num_examples
    assert show_examples(work, tokenizer, 0).count("── example ") == 0


@pytest.mark.parametrize("name, options", VARIANTS)
def test_descriptions_say_what_the_rows_hold(make, name, options) -> None:
    work = make(name, sequence_length=64, mask_probability=0.2, **options)
    said = work.describe()
    assert f"{work.num_examples:,} " in said and "%" in said and len(said.splitlines()) == 2
    assert ("cropped" in said) and f"{len(work.documents)} documents" in said


@pytest.mark.parametrize("width", [40, 73])
@pytest.mark.parametrize("name, options", VARIANTS)
def test_pages_are_as_narrow_as_asked(make, tokenizer, name, options, width, monkeypatch) -> None:
    work = make(name, sequence_length=64, **options)
    page = show_examples(work, tokenizer, 3, width=width)
    assert max(map(cell_len, page.split("\n"))) <= width
    monkeypatch.setenv("COLUMNS", str(width))
    assert show_examples(work, tokenizer, 3) == page
    assert ("├───" in page.split("── example")[0]) == (
        name not in ("mlm_nsp", "mlm_sop") and options.get("packing") != "none"
    )


@examples(200)
@given(text=st.text("ab 的漢カ\u0301\n⟦", max_size=80), width=st.integers(6, 30))
def test_lines_are_broken_by_columns_and_lose_nothing(text, width) -> None:
    lines = wrap(text, width=width, first="1 ", later="2 ")
    assert [line[0] for line in lines] == ["1", *"2" * (len(lines) - 1)]
    for line in lines:
        assert sum(2 if mark in "的漢カ" else 0 if mark == "\u0301" else 1 for mark in line.rstrip()) <= width
    assert re.sub(r"\s", "", "".join(line[2:] for line in lines)) == re.sub(r"\s", "", text)


def test_lines_of_the_text_and_their_indents_stay() -> None:
    text = "def f():↵\n    return 1↵↵\n中文字中文字"
    assert wrap(text, width=14, first="│ ", later="│ ") == ["│ def f():↵", "│     return", "│ 1↵↵", "│ 中文字中文字"]


def test_what_is_left_of_a_character_is_shown_as_bytes(make, tokenizer) -> None:
    page = _Page(make("mlm", sequence_length=64), tokenizer, 100)
    ids = tokenizer("cat 日", add_special_tokens=False)["input_ids"]
    assert page._text(np.array(ids)) == "cat 日" and page._text(np.array(ids[:-1])) == "cat \\xe6\\x97"
    assert page._text(np.array([tokenizer.mask_token_id, *ids[:-1]])) == "[MASK]cat \\xe6\\x97"
