"""Sequence to sequence: columns, what encoder-decoders and decoders read and learn, generation, scores, bad input."""

import copy
import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from examples import fast
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from lacuna import modeling
from lacuna.common.errors import InputError
from lacuna.modeling import LacunaConfig
from lacuna.tasks.base.features import IGNORED
from lacuna.tasks.base.rows import as_rows
from lacuna.tasks.sequence_to_sequence.task import (
    SEQUENCE_TO_SEQUENCE,
    SequenceToSequence,
    SequenceToSequenceArguments,
    Writer,
    resolve_lengths,
    unfold,
    writes_with,
)
from lacuna.tokenization import adapt_tokenizer

for package in ("sacrebleu", "rouge_score"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[tasks]'")


@dataclasses.dataclass
class Record:
    """What `corpus.read_labelled` gives."""

    fields: dict[str, Any]
    path: str
    line: int


def records(rows: list[dict[str, Any]], path: str = "train.tsv") -> list[Record]:
    return [Record(fields=row, path=path, line=line) for line, row in enumerate(rows, start=2)]


WORDS = ["fox", "dog", "river", "north", "city", "name", "quick", "lazy"]
ROWS = [{"source": f"the {word}", "target": f"{word} {'und ' * (i % 3)}{WORDS[-i]}"} for i, word in enumerate(WORDS)]
KINDS = ["bart", "vaswani", "native bart", "t5", "qwen3", "gpt2", "native gpt2"]
DECODERS = KINDS[4:]


@pytest.fixture(scope="module")
def writer_tokenizers(tokenizer):
    """By whether the model has an encoder: "[CLS] A [SEP]", or "[CLS] A"."""
    return {
        is_encoder_decoder: adapt_tokenizer(
            tokenizer=tokenizer,
            shape="encoder-decoder" if is_encoder_decoder else "decoder",
            segments=False,
            max_length=128,
        )
        for is_encoder_decoder in (True, False)
    }


def make_model(kind: str, *, hidden: int = 32) -> Any:
    torch.manual_seed(0)
    if not kind.startswith(("native", "t5")):
        sizes = {"hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": hidden // 2}
        dropout = {"embedding_dropout": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0}
        config = LacunaConfig.from_family(
            kind, vocab_size=320, intermediate_size=2 * hidden, max_position_embeddings=128, **sizes, **dropout
        )
        head = "LacunaForCausalLM" if config.shape == "decoder" else "LacunaForConditionalGeneration"
        return getattr(modeling, head)(config).eval()
    if kind == "native gpt2":
        tokens = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
        config = GPT2Config(
            vocab_size=320,
            n_positions=128,
            n_embd=hidden,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            attn_pdrop=0.0,
            **tokens,
        )
        return GPT2LMHeadModel(config).eval()
    if kind == "t5":
        tokens = {"eos_token_id": 3, "pad_token_id": 0, "decoder_start_token_id": 0}
        config = T5Config(
            vocab_size=320,
            d_model=hidden,
            d_kv=16,
            d_ff=2 * hidden,
            num_layers=2,
            num_heads=2,
            dropout_rate=0.0,
            **tokens,
        )
        return T5ForConditionalGeneration(config).eval()
    layers = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes = {"d_model": hidden, "encoder_ffn_dim": 2 * hidden, "decoder_ffn_dim": 2 * hidden, **layers}
    tokens = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "decoder_start_token_id": 3}
    config = BartConfig(
        vocab_size=320, max_position_embeddings=128, dropout=0.0, forced_eos_token_id=None, **sizes, **tokens
    )
    return BartForConditionalGeneration(config).eval()


def task(tokenizers, model: Any, rows=ROWS, eval_rows=(), **options: Any) -> SequenceToSequence:
    tokenizer = tokenizers[bool(model.config.is_encoder_decoder)]
    asked = SequenceToSequenceArguments(**{"train_file": "rows.jsonl", **options})
    return SequenceToSequence(asked, train_rows=rows, eval_rows=eval_rows, tokenizer=tokenizer, config=model.config)


# Columns


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": 3, "source": "x", "target": "y"}, ("source", "target")),
        ({"en": "x", "de": "y"}, ("en", "de")),
        ({"highlights": "y", "article": "x", "id": "z"}, ("article", "highlights")),
        ({"translation": {"en": "x", "fr": "y"}}, ("en", "fr")),
    ],
)
def test_columns_are_inferred(fields, expected):
    assert (*SEQUENCE_TO_SEQUENCE.find(unfold(as_rows([fields], part="training"))).values(),) == expected


def test_columns_that_are_named_win(writer_tokenizers):
    rows = as_rows([{"source": "x", "target": "y", "en": "a", "de": "b"}], part="training")
    assert (*SEQUENCE_TO_SEQUENCE.find(rows, source_column="en", target_column="de").values(),) == ("en", "de")
    assert (*SEQUENCE_TO_SEQUENCE.find(rows, target_column="en").values(),) == ("source", "en")
    assert (
        *SEQUENCE_TO_SEQUENCE.find(as_rows([{"a": "x", "b": "y"}], part="training"), source_column="b").values(),
    ) == ("b", "a")
    model = make_model("qwen3")
    named = task(writer_tokenizers, model, source_column="target", target_column="source")
    assert "inferred" not in named.notes[0] and "inferred" in task(writer_tokenizers, model).notes[0]


# What a model reads and learns


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_and_learnt(writer_tokenizers, kind):
    model = make_model(kind)
    work = task(writer_tokenizers, model, eval_rows=ROWS, source_prefix="say: ")
    example, decode = work.example(1, 0), work.tokenizer.decode
    read, learnt = work.show(example)
    assert learnt.endswith("dog und lazy[SEP]") and decode(example["labels"][example["labels"] >= 0]) in learnt
    if kind in DECODERS:
        assert read == "[CLS]say: the dog[SEP]"
        assert decode(example["input_ids"]) == "[CLS]say: the dog[SEP]dog und lazy[SEP]"
    else:
        assert read == "[CLS]say: the dog[SEP]"
        start = "-> [CLS]dog" if kind in ("native bart", "t5") else "-> dog"  # ours starts to write from [CLS]
        assert learnt.startswith(start)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_is_that_of_the_model(writer_tokenizers, kind):
    model = make_model(kind)
    work = task(writer_tokenizers, model, eval_rows=ROWS)
    batch = work.collate([work.example(row, 0) for row in range(8)])
    expected = model(**batch).loss
    tokens = work.count_targets(batch)["tokens"]
    assert tokens == sum(int((work.example(row, 0)["labels"] != IGNORED).sum()) for row in range(8))
    targets = {"tokens": torch.tensor(tokens)}
    found = work.loss(model, batch, targets)[0]
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    halves = [work.collate([work.example(row, 0) for row in part]) for part in (range(3), range(3, 8))]
    assert sum(work.loss(model, half, targets)[0].item() for half in halves) == pytest.approx(found.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["bart", "t5", "qwen3", "native gpt2"])
def test_sureness_is_that_of_generation(writer_tokenizers, kind):
    model = make_model(kind)
    work = task(writer_tokenizers, model, eval_rows=ROWS, max_target_length=5)
    sources = work._eval_sources[:2]
    prompts = work.writer.prompts(sources)
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": 3, "pad_token_id": 0}
    found = model.generate(
        **{name: prompts[name] for name in ("input_ids", "attention_mask")},
        **options,
        output_logits=True,
        return_dict_in_generate=True,
    )
    written = work.writer.write(model, sources)
    steps = torch.stack(found.logits, dim=1).log_softmax(dim=-1).max(dim=-1).values
    expected = [steps[row, : len(ids)].mean().exp().item() for row, ids in enumerate(written)]
    assert work.writer.sureness(model, sources, written) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", fast(["bart", "native bart", "qwen3", "native gpt2"], "bart", "native gpt2"))
def test_a_small_model_learns_its_pairs_and_stops(writer_tokenizers, fit, evaluate, kind):
    model = make_model(kind, hidden=64)
    work = task(writer_tokenizers, model, eval_rows=ROWS, max_target_length=24)
    assert any("8 of 8 held-out rows are also in the training rows" in note for note in work.notes)
    assert fit(model=model, work=work, steps=75, learning_rate=5e-3) < 0.1
    found = work.summarize(evaluate(model=model, work=work))
    assert found["bleu"] == pytest.approx(100.0) and found["chrf"] == pytest.approx(100.0) and found["ended"] == 1.0
    readable = work.predictions()
    assert [row["prediction"] for row in readable] == [row["target"] for row in ROWS]
    assert all(row["correct"] and 0.5 < row["probability"] <= 1 for row in readable)
    assert found["loss"] < 0.2 < work.baseline()["loss"]
    # Padding changes nothing, and beams find the same where a model is sure.
    together = work.writer.write(model, work._eval_sources)
    for num_beams in (1, 2):
        work.writer.num_beams = num_beams
        apart = [work.writer.write(model, [source])[0] for source in work._eval_sources]
        assert together == apart


@pytest.mark.parametrize("kind", ["t5", "native bart", "native gpt2"])
def test_a_tokenizer_that_tells_segments_writes_too(tokenizer, evaluate, kind):
    assert "token_type_ids" in tokenizer("a")
    segments = copy.deepcopy(tokenizer)
    segments.eos_token = "[SEP]"
    model = make_model(kind)
    work = task({True: segments, False: segments}, model, eval_rows=ROWS[:3], max_target_length=6)
    assert set(work.collate([work.example(0, 0)])) == {"input_ids", "attention_mask", "labels"}
    assert len(work.summarize(evaluate(model=model, work=work))) > 1


@pytest.mark.parametrize("kind", ["bart", "qwen3"])
def test_records_of_two_halves_give_the_same_summary(writer_tokenizers, evaluate, kind):
    model = make_model(kind)
    work = task(writer_tokenizers, model, eval_rows=ROWS[:7], max_target_length=6)
    whole = work.summarize(evaluate(model=model, work=work))
    odd, even = (evaluate(model=model, work=work, rows=range(start, 7, 2), batch_size=2) for start in (1, 0))
    assert work.summarize(odd + even) == pytest.approx(whole, rel=1e-4)
    assert [row["source"] for row in work.predictions()] == [row["source"] for row in ROWS[:7]]
    assert all(len(json.dumps(record)) < 300 for record in odd)
    batch = work.collate([work.eval_example(row) for row in range(7)])
    batch.pop("row")
    with torch.no_grad():
        assert whole["loss"] == pytest.approx(model(**batch).loss.item(), rel=1e-4)


def test_baseline_copies_the_source(writer_tokenizers):
    rows = [{"source": f"the fox {i}", "target": f"the fox {i}"} for i in range(4)]
    found = task(writer_tokenizers, make_model("qwen3"), rows, eval_rows=rows).baseline()
    assert found["bleu"] == pytest.approx(100.0) or found["chrf"] == pytest.approx(100.0)
    assert found["rougeL"] == pytest.approx(100.0) and found["loss"] > 0


# Lengths


def test_sources_and_targets_are_cut_and_it_is_said(writer_tokenizers):
    rows = [*ROWS, {"source": "fox " * 40, "target": "dog " * 40}]
    for kind in ("bart", "qwen3"):
        work = task(writer_tokenizers, make_model(kind), rows, eval_rows=ROWS, max_length=16, max_target_length=12)
        said = "\n".join(work.notes)
        assert "11.1% of the training sources are cut to --max_length 16" in said
        assert "of the training targets are cut to --max_target_length 12" in said
        last = work.example(8, 0)
        assert (last["labels"] != IGNORED).sum() == 12 and last["labels"][-1] == 3
        assert len(last["input_ids"]) == (16 if kind == "bart" else 16 + 1 + 12)


def test_lengths():
    tokenizer = SimpleNamespace(model_max_length=10**30)
    decoder = SimpleNamespace(max_position_embeddings=128)
    both = SimpleNamespace(max_position_embeddings=128, is_encoder_decoder=True)
    free = SimpleNamespace()

    def lengths(config: Any, source: int | None = None, target: int | None = None) -> tuple[int, int]:
        return resolve_lengths(source=source, target=target, config=config, tokenizer=tokenizer)

    assert lengths(free) == (256, 128) and lengths(both) == (128, 128) and lengths(both, 64, 32) == (64, 32)
    assert (
        lengths(decoder) == (63, 64) and lengths(decoder, 100) == (100, 27) and lengths(decoder, None, 20) == (107, 20)
    )
    assert sum(lengths(decoder, 100)) + 1 == sum(lengths(decoder)) + 1 == 128
    with pytest.raises(InputError, match=r"--max_length 100 and --max_target_length 28.*128 tokens"):
        lengths(decoder, 100, 28)
    with pytest.raises(InputError, match="--max_target_length 129 is more than the 128"):
        lengths(both, 64, 129)


# Held-out part and what people are told


def test_what_people_are_told(writer_tokenizers):
    rows = [{"source": f"the fox {i // 2}", "target": f"{i}"} for i in range(20)]
    work = task(writer_tokenizers, make_model("bart"), rows, eval_fraction=0.2)
    assert (work.num_examples, work.num_eval_examples) == (16, 4)
    held_out = {pair.source for pair in work._eval_pairs}
    assert len(held_out) == 2 and not any(work.show(work.example(i, 0))[0][5:-5] in held_out for i in range(16))
    said = work.describe(5)
    assert "-> " in "\n".join(said) and sum(line.startswith("example ") for line in said) == 5
    assert "none of the training sources is cut to --max_length 128" in said
    assert "none of the training targets is cut to --max_target_length 128" in said
    assert json.dumps(work.settings()) and work.settings()["max_target_length"] == 128


def test_which_models_write():
    for config in (LacunaConfig.from_family("bart"), T5Config()):
        assert writes_with(config) == "AutoModelForSeq2SeqLM"
    for config in (LacunaConfig.from_family("qwen3"), GPT2Config()):
        assert writes_with(config) == "AutoModelForCausalLM"
    for config in (LacunaConfig.from_family("modernbert"), BertConfig()):
        config.name_or_path = "m"
        with pytest.raises(InputError, match="--model m is an encoder"):
            writes_with(config)


def test_files_of_lines_have_no_columns_to_guess(writer_tokenizers):
    named = task(writer_tokenizers, make_model("qwen3"), ROWS, train_file="mt.en", train_target_file="mt.de").notes
    assert "source from mt.en, target from mt.de, line by line" in named and not any("inferred" in n for n in named)
    assert any("(inferred; --source_column" in n for n in task(writer_tokenizers, make_model("qwen3"), ROWS).notes)


def test_one_pair_is_too_few(writer_tokenizers):
    with pytest.raises(InputError, match=r"training row 1: this is the only training pair, so nothing can be held"):
        task(writer_tokenizers, make_model("qwen3"), [{"source": "a", "target": "b"}])


# Bad input


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"source": "x"}, r"train.tsv:10: no column 'target'; the columns there are \['source'\].*--target_column"),
        ({"source": " ", "target": "y"}, "train.tsv:10: column 'source' is empty"),
        ({"source": "x", "target": ""}, "train.tsv:10: column 'target' is empty"),
        ({"source": "x", "target": 3}, "train.tsv:10: column 'target' holds 3, not text"),
    ],
)
def test_a_bad_row_is_named(writer_tokenizers, bad, message):
    with pytest.raises(InputError, match=message) as caught:
        task(writer_tokenizers, make_model("qwen3"), records([*ROWS, bad]))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "no training rows.*--train_file"),
        (
            [{"a": "x", "b": "y", "c": "z"}],
            {},
            "which columns of .* hold the source and what is to be written from it",
        ),
        (
            [{"a": "x", "b": "y", "c": "z"}],
            {"source_column": "a"},
            r"which column of \['a', 'b', 'c'\] holds what is to be written.*--target_column",
        ),
        (ROWS, {"source_column": "en"}, "no column 'en'.*--source_column"),
    ],
)
def test_bad_rows_as_a_whole(writer_tokenizers, rows, options, message):
    with pytest.raises(InputError, match=message):
        task(writer_tokenizers, make_model("qwen3"), rows, **options)


def test_a_tokenizer_without_an_end_is_refused():
    tokenizer = SimpleNamespace(eos_token_id=None, sep_token_id=None)
    with pytest.raises(InputError, match="no token that ends a text"):
        Writer(tokenizer=tokenizer, config=SimpleNamespace(), max_length=8, max_target_length=8)


# Real data


def test_multi30k(writer_tokenizers, shared_data, evaluate):
    sides = [
        (shared_data / "multi30k" / f"val.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")
    ]
    rows = [{"en": source, "de": target} for source, target in zip(*sides, strict=True)][:60]
    model = make_model("bart")
    work = task(writer_tokenizers, model, rows[:40], eval_rows=rows[40:], max_target_length=16)
    found = work.summarize(evaluate(model=model, work=work, batch_size=10))
    assert list(work.columns.values()) == ["en", "de"]
    assert 0 <= found["bleu"] < 20 < 100 and found["loss"] == pytest.approx(np.log(320), rel=0.2)
    assert 5 < work.baseline()["chrf"] < 40
