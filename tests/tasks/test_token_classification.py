"""Token classification: columns, tags, tokens and their words, windows, loss, learning, and messages for bad input."""

import copy
import dataclasses
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast

from lacuna.common.errors import InputError
from lacuna.tasks.base.report import write_results
from lacuna.tasks.base.rows import as_rows
from lacuna.tasks.token_classification.reader import (
    TOKEN_CLASSIFICATION,
    TokenClassificationArguments,
    cut_sentences,
    read_sentences,
    window_bounds,
    words_of_tokens,
)
from lacuna.tasks.token_classification.task import TokenClassification, word_choices

pytest.importorskip("seqeval", reason="seqeval is not installed: pip install -e '.[tasks]'")


@dataclasses.dataclass
class Record:
    """What `corpus.read_labelled` gives."""

    fields: dict[str, Any]
    path: str
    line: int


def records(rows: list[dict[str, Any]], path: str = "train.conll") -> list[Record]:
    return [Record(fields=row, path=path, line=10 * number) for number, row in enumerate(rows, start=1)]


def rows(*sentences: str) -> list[dict[str, Any]]:
    """Rows of sentences such as "New/B-loc York/I-loc": words and tags."""
    pairs = [[word.rsplit("/", 1) for word in sentence.split()] for sentence in sentences]
    return [{"tokens": [word for word, _ in pair], "tags": [tag for _, tag in pair]} for pair in pairs]


ROWS = rows(
    "the/O river/B-water of/O the/O north/B-place",
    "what/O is/O the/O name/O of/O New/B-place York/I-place ?/O",
    "lazy/O dog/O",
    "it/O is/O the/O Red/B-water Sea/I-water now/O",
)


@pytest.fixture
def tagger():
    def make(num_labels: int, *, hidden: int = 32, length: int = 512) -> BertForTokenClassification:
        torch.manual_seed(0)
        sizes = {"hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = BertConfig(
            vocab_size=400,
            intermediate_size=2 * hidden,
            max_position_embeddings=length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=num_labels,
            **sizes,
        )
        return BertForTokenClassification(config)

    return make


def task(tokenizer, train=ROWS, eval_rows=(), **options) -> TokenClassification:
    asked = TokenClassificationArguments(train_file="rows.jsonl", **options)
    return TokenClassification(asked, train_rows=train, eval_rows=eval_rows, tokenizer=tokenizer)


# Columns


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tokens": ["a"], "tags": ["O"]}, ("tokens", "tags")),
        ({"id": "3", "words": ["a"], "ner": ["O"], "pos": ["NN"]}, ("words", "ner")),
        ({"sentence": "a b", "labels": "O O"}, ("sentence", "labels")),
        ({"text": "a b", "tokens": ["a", "b"], "ner_tags": [0, 1]}, ("tokens", "ner_tags")),
        ({"was": ["O", "O", "B"], "Wort": ["a", "b", "c"], "id": 4}, ("Wort", "was")),
    ],
)
def test_columns_are_inferred(fields, expected):
    assert (*TOKEN_CLASSIFICATION.find(as_rows([fields], part="training")).values(),) == expected


def test_columns_that_are_named_win_and_lists_may_be_text(tokenizer):
    given = [{"tokens": ["x"], "a": "one two", "b": '["B-x", "O"]', "tags": ["O"]}] * 4
    work = task(tokenizer, given, eval_rows=given, tokens_column="a", tags_column="b")
    assert "inferred" not in work.notes[0] and "inferred" in task(tokenizer, eval_rows=ROWS).notes[0]
    assert work.label_names == ["O", "B-x", "I-x"]


# Tags


def test_labels_are_iob2_whatever_the_data_has(tokenizer):
    written = {
        "IOB1": "I-LOC B-LOC I-LOC O I-PER",
        "IOB2": "B-LOC B-LOC I-LOC O B-PER",
        "BIOES": "S-LOC B-LOC E-LOC O S-PER",
    }
    seen = set()
    for tags in written.values():
        given = [{"tokens": list("abcde"), "tags": tags.split()}] * 2
        work = task(tokenizer, given, eval_rows=given)
        assert work.scheme == "IOB2" and any("IOB2: LOC (4), PER (2)" in note for note in work.notes)
        assert work.label_names == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
        seen.add(tuple(work.example(0, 0)["labels"]))
        batch = work.collate([work.eval_example(0)])
        logits = torch.nn.functional.one_hot(batch["labels"].clamp(min=0), 5).float() * 9
        work.summarize(work.evaluate(Fixed(logits), batch))
        assert work.predictions()[0]["tags"] == written["IOB2"].split()
    assert len(seen) == 1


class Fixed(torch.nn.Module):
    """A model that always says the same."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, **inputs: Any) -> Any:
        return self


def test_numbers_get_names(tokenizer):
    given = [{"tokens": list("abc"), "ner_tags": [1, 2, 0]}, {"tokens": ["d"], "ner_tags": [0]}]
    work = task(tokenizer, given, eval_rows=given, label_names=["O", "B-x", "I-x"])
    assert (work.scheme, work.label_names, work.metric) == ("IOB2", ["O", "B-x", "I-x"], "f1")
    plain = task(tokenizer, given, eval_rows=given)
    assert (plain.scheme, plain.label_names, plain.metric) == ("plain", ["0", "1", "2"], "accuracy")
    assert any("--label_names" in note for note in plain.notes)
    with pytest.raises(InputError, match="training row 1: tag 2 has no name among the 2"):
        task(tokenizer, given, label_names=["O", "B-x"])


def test_parts_of_speech_are_measured_by_accuracy(tokenizer, tagger, evaluate):
    given = rows("the/DET dog/NOUN jumps/VERB", "a/DET fox/NOUN")
    work = task(tokenizer, given, eval_rows=given)
    assert (work.metric, work.label_names) == ("accuracy", ["DET", "NOUN", "VERB"])
    found = work.summarize(evaluate(model=tagger(3), work=work))
    wrong = sum(not row["correct"] for row in work.predictions())
    assert set(found) == {"loss", "accuracy", "f1_macro", "f1_micro", "matthews_correlation"} and wrong
    assert work.baseline()["accuracy"] == 1.0
    counts = work.tables()["Confusion matrix"].counts
    assert [sum(row) for row in counts] == [2, 2, 1]
    assert work.predictions()[0]["gold"] == ["DET", "NOUN", "VERB"]


# Tokens and words


def tokenizers(tokenizer) -> dict[str, Any]:
    """Of the kinds there are: with the blank before a word in its offsets or not, lower-casing, pieces with "▁"."""
    trimmed = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    trimmed.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), trimmed.post_processor])
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pieces = Tokenizer(models.Unigram())
    pieces.pre_tokenizer = pre_tokenizers.Metaspace()
    text = ["the quick brown fox jumps over the lazy dog , again and again .", "Größe naïve"] * 3
    words.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]", "[PAD]"]))
    pieces.train_from_iterator(
        text, trainers.UnigramTrainer(vocab_size=60, special_tokens=["[PAD]", "[UNK]"], unk_token="[UNK]")
    )
    made = {"byte level": tokenizer}
    for name, core in (("trimmed", trimmed), ("word pieces", words), ("metaspace", pieces)):
        made[name] = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]")
    return made


WORDS = ["Größe", "of", "the", "naïve", "fox", ",", "日本", "x-y", "don't", "🙂", "dog"]


@pytest.mark.parametrize("kind", ["byte level", "trimmed", "word pieces", "metaspace"])
def test_every_token_finds_its_word(tokenizer, kind):
    chosen = tokenizers(tokenizer)[kind]
    encoding = chosen(" ".join(WORDS), add_special_tokens=False, return_offsets_mapping=True)
    found = words_of_tokens(WORDS, encoding["offset_mapping"])
    text = " ".join(WORDS)
    for word, own in enumerate(WORDS):
        mine = np.flatnonzero(found == word)
        assert len(mine) and (np.diff(mine) == 1).all(), own
        start, end = encoding["offset_mapping"][mine[0]][0], encoding["offset_mapping"][mine[-1]][1]
        assert text[start:end].strip() == own
    assert (np.diff(found[found >= 0]) >= 0).all()
    # Words in front of words do not change which token is the first.
    firsts = cut_sentences(sentences=[WORDS], tokenizer=chosen, max_length=500)[0]["words"]
    assert firsts[firsts >= 0].tolist() == list(range(len(WORDS)))


def test_a_sentence_that_fits_is_what_the_tokenizer_makes_of_it(tokenizer):
    window = cut_sentences(sentences=[WORDS], tokenizer=tokenizer, max_length=500)[0]
    expected = tokenizer(" ".join(WORDS))
    assert window["input_ids"].tolist() == expected["input_ids"]
    assert window["token_type_ids"].tolist() == expected["token_type_ids"]


def test_long_sentences_are_cut_and_every_word_is_seen_once(tokenizer):
    generator = np.random.default_rng(0)
    sentence = [WORDS[i] for i in generator.integers(0, len(WORDS), 60)]
    windows = cut_sentences(sentences=[["a"], sentence], tokenizer=tokenizer, max_length=32)
    own = [window for window in windows if window["sentence"] == 1]
    assert len(own) > 3 and all(len(window["input_ids"]) <= 32 for window in windows)
    ids = tokenizer(" ".join(sentence), add_special_tokens=False)["input_ids"]
    assert own[0]["input_ids"][1:-1].tolist() == ids[:30]
    assert own[-1]["input_ids"][1:-1].tolist() == ids[-30:]
    spoken = [sorted(set(window["words"][window["words"] >= 0].tolist())) for window in own]
    assert sorted(word for words in spoken for word in words) == list(range(60))
    full = cut_sentences(sentences=[sentence], tokenizer=tokenizer, max_length=5000)[0]
    counts = np.bincount(np.concatenate([window["words"][window["words"] >= 0] for window in own]))
    assert counts.tolist() == np.bincount(full["words"][full["words"] >= 0]).tolist()


def test_window_bounds():
    assert window_bounds(length=10, room=10) == [(0, 10)]
    assert window_bounds(length=11, room=10) == [(0, 10), (1, 11)]
    found = window_bounds(length=100, room=10)
    assert found[0][0] == 0 and found[-1] == (90, 100)
    assert all(before[1] - after[0] >= 2 for before, after in pairwise(found))
    assert window_bounds(length=3, room=1) == [(0, 1), (1, 2), (2, 3)]


def test_a_word_that_is_nothing_to_the_tokenizer_is_tagged_all_the_same(tokenizer, tagger, evaluate):
    chosen = tokenizers(tokenizer)["word pieces"]  # its normalizer drops control characters
    given = [{"tokens": ["fox", "\x00", "", "dog"], "tags": ["B-x", "B-x", "O", "O"]}] * 2
    work = task(chosen, given, eval_rows=given)
    assert any("4 tokens are nothing to the tokenizer and get 'O'" in note for note in work.notes)
    work.summarize(evaluate(model=tagger(3), work=work))
    assert work.predictions()[0]["tags"][1:3] == ["O", "O"]


# Batches and loss


@pytest.mark.parametrize("side", ["right", "left"])
def test_loss_is_that_of_the_model(tokenizer, tagger, side):
    padded = copy.deepcopy(tokenizer)
    padded.padding_side = side
    work = task(padded, eval_rows=ROWS)
    batch = work.collate([work.example(row, 0) for row in range(4)])
    words = 5 + 8 + 2 + 6
    assert work.count_targets(batch)["tokens"] == (batch["labels"] >= 0).sum() == words
    assert torch.equal(batch["input_ids"] == 0, batch["attention_mask"] == 0)
    model = tagger(5).eval()
    expected = model(**batch).loss
    targets = {"tokens": torch.tensor(work.count_targets(batch)["tokens"])}
    assert work.loss(model, batch, targets)[0].item() == pytest.approx(expected.item(), rel=1e-5)
    if side == "right":  # BERT counts its positions from the left, padding included
        halves = [work.collate([work.example(row, 0) for row in part]) for part in ((0,), (1, 2, 3))]
        added = sum(work.loss(model, half, targets)[0].item() for half in halves)
        assert added == pytest.approx(expected.item(), rel=1e-5)


def test_records_of_two_halves_give_the_same_summary(tokenizer, tagger, evaluate):
    work, model = task(tokenizer, eval_rows=[*ROWS, *ROWS[:3]], max_length=12), tagger(5)
    assert work.num_eval_examples > 7  # some are cut
    whole = work.summarize(evaluate(model=model, work=work))
    rows = range(work.num_eval_examples)
    odd, even = (evaluate(model=model, work=work, rows=rows[start::2], batch_size=2) for start in (1, 0))
    assert work.summarize(odd + even) == pytest.approx(whole, rel=1e-5)
    assert len(work.predictions()) == 7
    assert [row["tokens"] for row in work.predictions()] == [row["tokens"] for row in [*ROWS, *ROWS[:3]]]
    assert all(len(json.dumps(record)) < 400 for record in odd)
    with torch.no_grad():
        batch = work.collate([work.eval_example(row) for row in rows])
        assert whole["loss"] == pytest.approx(model(**{k: v for k, v in batch.items() if k in MODEL}).loss.item())


MODEL = ("input_ids", "attention_mask", "token_type_ids", "labels")


def test_a_model_that_finds_nothing_has_a_table_of_it(tokenizer, tmp_path):
    work = task(tokenizer, eval_rows=ROWS)
    batch = work.collate([work.eval_example(row) for row in range(4)])
    logits = torch.zeros(*batch["input_ids"].shape, 5)
    logits[..., 0] = 9.0  # O everywhere
    found = work.summarize(work.evaluate(Fixed(logits), batch))
    write_results(work, {f"eval_{name}": value for name, value in found.items()}, tmp_path)
    assert found["f1"] == 0.0 and not list(tmp_path.glob("*.png"))
    assert "| place | 0 | 0 | 0 | 2 |" in (tmp_path / "report.md").read_text()
    nothing = task(tokenizer, eval_rows=rows("the/O dog/O"))
    batch = nothing.collate([nothing.eval_example(0)])
    nothing.summarize(nothing.evaluate(Fixed(logits[:1, : batch["input_ids"].shape[1]]), batch))
    write_results(nothing, {}, tmp_path / "nothing")
    assert "## Entities by type\n\nThere are none.\n" in (tmp_path / "nothing" / "report.md").read_text()


def test_words_are_decided_by_the_token_that_speaks_for_them():
    words = torch.tensor([[-1, 0, -1, 1], [0, -1, -1, -1]])
    probabilities = torch.tensor([[[0.5, 0.5], [0.9, 0.1], [0.3, 0.7], [0.2, 0.8]], [[0.4, 0.6]] * 3 + [[1.0, 0.0]]])
    rows, found, labels, sure = word_choices(probabilities.clamp(min=1e-9).log(), words)
    assert (rows.tolist(), found.tolist(), labels.tolist()) == ([0, 0, 1], [0, 1, 0], [0, 1, 1])
    assert sure.tolist() == pytest.approx([0.9, 0.8, 0.6])


def test_scores_are_those_of_seqeval(tokenizer, tagger, evaluate):
    from seqeval.metrics import f1_score, precision_score, recall_score

    model = tagger(5)
    torch.nn.init.normal_(model.classifier.weight, std=2.0)
    work = task(tokenizer, eval_rows=ROWS)
    found = work.summarize(evaluate(model=model, work=work))
    gold = [row["tags"] for row in ROWS]
    predicted = [tags for tags, _ in work._predicted()]
    assert any(tag != "O" for tags in predicted for tag in tags)
    for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        assert found[name] == pytest.approx(score(gold, predicted, zero_division=0))
    assert {"f1_place", "f1_water", "accuracy"} <= set(found)


def test_a_small_model_learns_its_sentences(tokenizer, tagger, fit, evaluate):
    given = rows(
        *(
            f"{a}/O {b}/B-x {c}/I-x {d}/B-y"
            for a, b, c, d in zip("abcdefgh", "jklmnopq", "rstuvwxy", "ABCDEFGH", strict=True)
        )
    )
    work, model = task(tokenizer, given, eval_rows=given), tagger(5, hidden=64)
    assert any("8 of 8 held-out rows are also in the training rows" in note for note in work.notes)
    assert fit(model=model, work=work, steps=60) < 0.05
    found = work.summarize(evaluate(model=model, work=work))
    assert found["f1"] == 1.0 and found["f1_x"] == 1.0 and work.baseline()["f1"] == 1.0
    first = work.predictions()[0]
    assert first["correct"] and 0.5 < first["probability"] <= 1
    assert first["gold"] == [
        {"type": "x", "text": "j r", "start": 2, "end": 5, "tokens": [1, 3]},
        {"type": "y", "text": "A", "start": 6, "end": 7, "tokens": [3, 4]},
    ]
    assert [{**span, "probability": 0} for span in first["prediction"]] == [
        {**span, "probability": 0} for span in first["gold"]
    ]
    assert work.tables()["Entities by type"].rows == [["x", 1.0, 1.0, 1.0, 8], ["y", 1.0, 1.0, 1.0, 8]]
    assert all(first["text"][span["start"] : span["end"]] == span["text"] for span in first["prediction"])


# Held-out part and what people are told


def test_a_part_is_held_out_by_its_rarest_type(tokenizer):
    given = rows(*(f"w{i}/B-often" for i in range(20)), *(f"v{i}/B-rare w/B-often" for i in range(4)), *["o/O"] * 16)
    work = task(tokenizer, given, eval_fraction=0.25)
    assert (work.num_examples, work.num_eval_examples) == (30, 10)
    held_out = [" ".join(item.words)[0] for item in work._eval_sentences]
    assert sorted(held_out) == ["o"] * 4 + ["v"] + ["w"] * 5
    again = task(tokenizer, given, eval_fraction=0.25)
    assert [item.words for item in again._eval_sentences] == [item.words for item in work._eval_sentences]


def test_what_people_are_told(tokenizer):
    work = task(tokenizer, eval_rows=rows("a/O river/B-water in/O the/O north/B-place"), max_length=12)
    said = "\n".join(work.describe(2))
    assert "water (2)" in said and "place (2)" in said and "several windows" in said and "/B-water" in said
    assert work.settings()["label_names"] == work.label_names and work.settings()["max_length"] == 12
    assert json.dumps(work.settings())
    # Tokens are counted, each once, so that shares make a whole.
    assert work.balance() == {"O": 15, "B-place": 2, "I-place": 1, "B-water": 2, "I-water": 1}
    assert "label balance of the training tokens: O 15 (71.4%), B-place 2 (9.5%), I-place 1 (4.8%)" in said
    assert (
        "fewer than 5 entities are held out of 2 of 2 labels, whose own scores say little: water 1 (2 in training"
        in said
    )
    assert "none of the training sentences is longer than --max_length 256" in task(tokenizer, eval_rows=ROWS).notes
    plain = task(tokenizer, rows("the/DET dog/NOUN", "a/DET fox/NOUN"), eval_rows=rows("fox/NOUN " * 6))
    assert plain.balance() == {"DET": 2, "NOUN": 2} and sum(line[:8] == "example " for line in plain.describe(5)) == 2
    assert any("fewer than 5 tokens are held out of 1 of 2 labels" in note and "DET 0" in note for note in plain.notes)


# Bad input


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"tokens": ["a", "b"], "tags": ["O"]},
            r"train.conll:50: 2 tokens in column 'tokens' but 1 tag in column 'tags'",
        ),
        ({"tokens": [], "tags": []}, "train.conll:50: column 'tokens' is empty"),
        ({"tokens": ["a"]}, r"train.conll:50: no column 'tags'; the columns there are \['tokens'\].*--tags_column"),
        ({"tokens": ["a"], "tags": [None]}, "train.conll:50: None in column 'tags' is no text.*--tags_column"),
        ({"tokens": [3], "tags": ["O"]}, "train.conll:50: 3 in column 'tokens' is no text.*--tokens_column"),
        ({"tokens": ["a"], "tags": 3}, "train.conll:50: column 'tags' holds 3, not a list"),
        ({"tokens": ["a"], "tags": "['O']"}, "train.conll:50: column 'tags' holds .* not JSON"),
        ({"tokens": ["a"], "tags": ["Bplace"]}, "train.conll:50: tag 'Bplace' is neither O nor B-"),
    ],
)
def test_a_bad_row_is_named(tokenizer, bad, message):
    with pytest.raises(InputError, match=message) as caught:
        task(tokenizer, records([*ROWS, bad]))
    assert caught.value.exit_code == 2


def test_a_tag_unknown_to_training_is_named(tokenizer):
    held_out = records(rows("a/O b/B-god"), path="dev.conll")
    with pytest.raises(InputError, match=r"dev.conll:10: tag 'B-god' in column 'tags' .*--label_names"):
        task(tokenizer, ROWS, eval_rows=held_out)
    names = ["O", "B-place", "I-place", "B-water", "I-water", "B-god", "I-god"]
    assert task(tokenizer, ROWS, eval_rows=held_out, label_names=names).label_names == names


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ([], {}, "no training rows.*--train_file"),
        (rows("a/O b/O"), {}, "every tag in column 'tags' is 'O'"),
        (ROWS, {"tokens_column": "wrods"}, r"no column 'wrods'; the columns there are \['tags', 'tokens'\]"),
        ([{"a": 1, "b": 2}], {}, r"which columns of \['a', 'b'\] hold the tokens.*--tokens_column"),
        (ROWS, {"label_names": ["O", "O"]}, "names a label twice"),
        (ROWS, {"max_length": 2}, "--max_length must be at least 8"),
    ],
)
def test_bad_rows_as_a_whole(tokenizer, given, options, message):
    with pytest.raises(InputError, match=message):
        task(tokenizer, given, **options)


def test_a_file_that_is_one_sentence_is_refused(tokenizer):
    """What a CoNLL file without empty lines is; there would be nothing to evaluate on."""
    whole = rows("a/B-place " * 350 + "b/O " * 350)
    asked = r"train.conll:10: this is the only training sentence \(an empty line ends one in files of columns\)"
    with pytest.raises(InputError, match=f"{asked}.*nothing can be held out.*--eval_file") as caught:
        task(tokenizer, records(whole), eval_rows=[])
    assert caught.value.exit_code == 2
    assert task(tokenizer, records(whole), eval_rows=whole).num_judged


def test_tags_that_differ_in_case_are_named(tokenizer):
    notes = task(tokenizer, [*ROWS, *rows("a/B-Place b/O")]).notes
    assert any("differ only in case" in note and "'Place' and 'place'" in note for note in notes)


# Real data


def test_wnut17(tokenizer, shared_data, tagger, evaluate):
    from seqeval.metrics import f1_score

    parts = {}
    for part, name in (("train", "wnut17train"), ("dev", "emerging.dev")):
        text = (shared_data / "wnut17" / f"{name}.conll").read_text(encoding="utf-8")
        pairs = [
            [line.split("\t") for line in block.split("\n") if line.strip()]
            for block in text.replace("\n\t\n", "\n\n").split("\n\n")
        ]
        parts[part] = [{"tokens": [p[0] for p in block], "tags": [p[1] for p in block]} for block in pairs if block][
            :200
        ]
    work = task(tokenizer, parts["train"], eval_rows=parts["dev"], max_length=128)
    assert work.scheme == "IOB2" and len(work.label_names) == 13
    found = work.summarize(evaluate(model=tagger(13), work=work, batch_size=32))
    assert found["f1"] == pytest.approx(
        f1_score([row["tags"] for row in parts["dev"]], [t for t, _ in work._predicted()])
    )
    assert sum(work.balance().values()) == sum(len(row["tokens"]) for row in parts["train"])
    read = read_sentences(as_rows(parts["dev"], part="evaluation"), tokens_column="tokens", tags_column="tags")
    assert [prediction["text"] for prediction in work.predictions()] == [item.text for item in read]
    assert 0 <= work.baseline()["f1"] < 0.5
