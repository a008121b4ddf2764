"""Sequence to sequence: generating a text from another one, as a translation or a summary.

An encoder-decoder reads the source with its encoder and writes the target with its decoder. A decoder reads the source
and a token that ends it, and continues from there.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from lacuna.common.errors import InputError, called
from lacuna.common.loading import longest_input
from lacuna.common.options import check_range, essential
from lacuna.common.work import to_device
from lacuna.tasks.base import features
from lacuna.tasks.base.arguments import ROWS, TaskArguments, column_option, data_option, max_length_option
from lacuna.tasks.base.columns import TEXT, Column, Layout, only_ones
from lacuna.tasks.base.features import IGNORED, mask_of, model_inputs, pad_inputs, pad_like, records, stacked, tokenize
from lacuna.tasks.base.metrics import generation
from lacuna.tasks.base.models import resolve_max_length
from lacuna.tasks.base.rows import Row, gathered
from lacuna.tasks.base.task import Batch, Inputs, Task
from lacuna.tasks.predict.predictor import NEW_TOKENS, Predictor


@dataclass
class SequenceToSequenceArguments(TaskArguments):
    """Which pairs of texts to learn from, and how to read and write them."""

    train_file: str | None = essential(
        None, f"Pairs to train on, in two columns: {ROWS}; or sources, one per line, with --train_target_file."
    )
    train_target_file: str | None = essential(None, "Targets for the lines of --train_file, one per line.")
    eval_target_file: str | None = essential(None, "Targets for the lines of --eval_file, one per line.")
    source_column: str | None = column_option("Column of the source.")
    target_column: str | None = column_option("Column of the target.")
    source_prefix: str = data_option("", "Prepended to every source, such as 'translate English to German: '.")
    max_target_length: int | None = max_length_option("Truncate targets and generated text to this many tokens.", 128)
    num_beams: int = data_option(1, "Beams in evaluation; 1 is greedy decoding.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "max_target_length", "num_beams", above=0)
        for part in ("train", "eval"):
            if getattr(self, f"{part}_target_file") is not None and getattr(self, f"{part}_file") is None:
                raise InputError(f"--{part}_target_file needs a --{part}_file with the sources, one a line")


_SHORTEST = 4  # tokens of a text that special ones leave room for

SEQUENCE_TO_SEQUENCE = Layout(
    {
        "source_column": Column("the source", "", TEXT),
        "target_column": Column("what is to be written from it", "", TEXT),
    },
    pairs=(
        "source target, src tgt trg, input output target, instruction output response, prompt completion response, "
        "article highlights summary abstract, document summary, dialogue summary, text summary title target, "
        "question answer"
    ),
    by_content=only_ones,
)


class TextPair(NamedTuple):
    """A source and the text to be written from it, without blanks around them."""

    source: str
    target: str
    where: str


def read_pair(row: Row, *, source_column: str, target_column: str) -> TextPair:
    """The two texts of a row; InputError where one is missing or empty."""
    source = row.text(source_column, option="--source_column").strip()
    return TextPair(source, row.text(target_column, option="--target_column").strip(), row.where)


def unfold(rows: Sequence[Row]) -> list[Row]:
    """Rows whose column "translation" holds {"en": ..., "de": ...}, as on the Hub, get the columns en and de."""
    unfolded = []
    for row in rows:
        inner = row.fields.get("translation")
        whole = {name: value for name, value in row.fields.items() if name != "translation"}
        unfolded.append(Row({**inner, **whole}, row.where) if isinstance(inner, Mapping) else row)
    return unfolded


def writes_with(config: Any) -> str:
    """The Auto class of a model that writes texts; InputError for an encoder, which writes none."""
    if getattr(config, "is_encoder_decoder", False):
        return "AutoModelForSeq2SeqLM"
    shape = getattr(config, "shape", None)
    only_reads = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False)
    if shape == "encoder" or (shape is None and only_reads):
        raise InputError(
            f"--model {config.name_or_path} is an encoder ({config.model_type}), which writes no text: name a decoder "
            "(recipes/pretrain.py --objective clm makes one) or an encoder-decoder (--objective denoising)"
        )
    return "AutoModelForCausalLM"


def resolve_lengths(
    *, source: int | None, target: int | None, config: Any, tokenizer: Any, default: tuple[int, int] = (256, 128)
) -> tuple[int, int]:
    """Tokens to truncate sources and targets to: the requested number, else the default or what the model takes.

    Both together must fit into a decoder, each by itself into an encoder-decoder; else it is an InputError.
    """
    limit = longest_input(config=config, tokenizer=tokenizer)
    if limit is None or getattr(config, "is_encoder_decoder", False):
        parts: dict[str, Any] = {"config": config, "tokenizer": tokenizer}
        length = resolve_max_length(asked=source, default=default[0], **parts)
        return length, resolve_max_length(asked=target, default=default[1], option="max_target_length", **parts)
    if (source or _SHORTEST) + (target or _SHORTEST) + 1 > limit:
        given = {"max_length": source, "max_target_length": target}
        named = " and ".join(f"--{option} {value}" for option, value in given.items() if value is not None)
        raise InputError(
            f"{named}: source, a token that ends it, and target do not fit into the {limit} tokens that this decoder "
            "takes: lower them"
        )
    target = target or min(default[1], limit // 2, limit - 1 - (source or _SHORTEST))
    return source or min(default[0], limit - 1 - target), target


@dataclass(kw_only=True, eq=False)
class Writer:
    """What a tokenizer and a model need to know of each other for one to write texts."""

    tokenizer: Any
    config: Any
    max_length: int  # tokens that a source is cut to, special tokens included
    max_target_length: int  # tokens that a target is cut to, and that are written at most, the end included
    num_beams: int = 1
    source_prefix: str = ""

    def __post_init__(self) -> None:
        tokenizer, config = self.tokenizer, self.config
        self.is_encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
        ends = [tokenizer.eos_token_id, tokenizer.sep_token_id, getattr(config, "eos_token_id", None)]
        end = next((token for token in ends if token is not None), None)
        if end is None:
            raise InputError(
                "the tokenizer has no token that ends a text, and a model that writes must learn to stop: set "
                "tokenizer.eos_token and save it in the folder of --model"
            )
        self.end = int(end[0]) if isinstance(end, list) else int(end)
        self.border = self.end if tokenizer.sep_token_id is None else int(tokenizer.sep_token_id)
        self.start = getattr(config, "decoder_start_token_id", None)

    def sources(self, texts: Sequence[str]) -> tuple[list[dict[str, np.ndarray]], int]:
        """What the model reads of sources before it writes, and how many were cut."""
        prefixed = [self.source_prefix + text for text in texts]
        inputs, cut = tokenize(tokenizer=self.tokenizer, texts=prefixed, max_length=self.max_length)
        # Segments are left out: a source is a single one, and models that write seldom know any.
        sources = [each["input_ids"] for each in inputs]
        if not self.is_encoder_decoder:
            border = np.array([self.border], dtype=np.int32)
            sources = [ids if [*ids[-1:]] == [self.border] else np.append(ids, border) for ids in sources]
        return [{"input_ids": ids} for ids in sources], cut

    def targets(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int]:
        """What the model is to write, with its end: int32 [tokens] each; and how many were cut."""
        found: list[np.ndarray] = []
        cut = 0
        # An encoder-decoder learns them with the frame that its decoder knows.
        how: dict[str, Any] = {"kind": "text_target"} if self.is_encoder_decoder else {"add_special_tokens": False}
        for _, encoding in features.encodings(self.tokenizer, texts, **how, verbose=False):
            for ids in encoding["input_ids"]:
                if self.is_encoder_decoder and ids and ids[0] == self.start:  # the model puts it there itself
                    ids = ids[1:]
                body = ids[:-1] if ids and ids[-1] == self.end else ids
                cut += len(body) >= self.max_target_length
                found.append(np.array([*body[: self.max_target_length - 1], self.end], dtype=np.int32))
        return found, cut

    def example(self, source: dict[str, np.ndarray], target: np.ndarray) -> dict[str, Any]:
        """Inputs and `labels`; for a decoder both texts in a row, of which the target is learnt."""
        if self.is_encoder_decoder:
            return {**source, "labels": target}
        prompt = source["input_ids"]
        labels = np.concatenate([np.full(len(prompt), IGNORED, dtype=np.int32), target])
        return {"input_ids": np.concatenate([prompt, target]), "labels": labels}

    def collate(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Inputs padded to the longest, and `labels` [batch, length of the targets or of all], -100 for no target."""
        side = None if self.is_encoder_decoder else "right"
        batch = pad_inputs(examples=examples, tokenizer=self.tokenizer, side=side)
        labels = [example["labels"] for example in examples]
        mask = batch["attention_mask"]
        if self.is_encoder_decoder:
            mask = mask_of([*map(len, labels)], most=self.max_target_length)
        return {**batch, "labels": pad_like(labels, mask=mask, fill=IGNORED)}

    def prompts(self, sources: Sequence[dict[str, np.ndarray]]) -> dict[str, Tensor]:
        """Inputs of `generate`, padded to the longest; those of a decoder on the left."""
        side = None if self.is_encoder_decoder else "left"
        return pad_inputs(examples=sources, tokenizer=self.tokenizer, side=side)

    def with_hints(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add where the targets are, which a GPU would have to be waited for."""
        labels = batch["labels"] if self.is_encoder_decoder else batch["labels"][:, 1:]
        return {**batch, "target_positions": (labels != IGNORED).flatten().nonzero()[:, 0]}

    def nats(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the labels of each row, summed, and their number: float32 and int64 [batch]."""
        labels = batch["labels"]
        if self.is_encoder_decoder:  # what its decoder reads, the model makes of the labels itself
            logits = model(**model_inputs(batch), labels=labels, use_cache=False).logits
        else:
            logits, labels = model(**model_inputs(batch), use_cache=False).logits[:, :-1], labels[:, 1:]
        found = (batch if "target_positions" in batch else self.with_hints(batch))["target_positions"]
        rows, places = found // labels.shape[1], found % labels.shape[1]
        each = F.cross_entropy(logits[rows, places].float(), labels[rows, places], reduction="none")
        return each.new_zeros(len(labels)).index_add(0, rows, each), (labels != IGNORED).sum(dim=1)

    @torch.no_grad()
    def write(self, model: Any, sources: Sequence[dict[str, np.ndarray]]) -> list[list[int]]:
        """The tokens that the model writes for each source, up to the end, which is the last of them where it came."""
        prompts = to_device(self.prompts(sources), model.device)
        written = model.generate(
            **model_inputs(prompts),
            max_new_tokens=self.max_target_length,
            num_beams=self.num_beams,
            do_sample=False,
            eos_token_id=self.end,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        read = 1 if self.is_encoder_decoder else prompts["input_ids"].shape[1]
        texts = written[:, read:].tolist()
        return [ids[: ids.index(self.end) + 1] if self.end in ids else ids for ids in texts]

    def sureness(
        self, model: Any, sources: Sequence[dict[str, np.ndarray]], written: Sequence[Sequence[int]]
    ) -> list[float]:
        """The mean probability (geometric) that the model gives the tokens it wrote; 0 where it wrote none."""
        targets = [np.array(ids, dtype=np.int32) for ids in written]
        batch = self.collate([*map(self.example, sources, targets)])
        nats, counts = self.nats(model, to_device(batch, model.device))
        return torch.where(counts > 0, (-nats / counts.clamp(min=1)).exp(), 0.0).tolist()

    def answers(self, model: Any, sources: Sequence[dict[str, np.ndarray]]) -> list[dict[str, Any]]:
        """The text that the model writes for each source, how sure it is of that, and whether it came to an end."""
        written = self.write(model, sources)
        return records(
            prediction=[self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in written],
            probability=[round(sure, 6) for sure in self.sureness(model, sources, written)],
            ended=[self.end in ids for ids in written],
        )


class SequenceToSequence(Task):
    """Learning to write a text from another one; all pairs of a source are held out together.

    A model is judged by chrF, which also tells apart models that hardly get a word right.
    """

    options: SequenceToSequenceArguments
    name, objective = "sequence_to_sequence", "fine-tuning from one text to another"
    writes, metric = True, "chrf"
    least_examples = 25_000  # a language without text in pretraining takes many passes (docs/pretraining.md)
    mistakes_heading = "The {count} surest texts that are not as they should be"
    probability_note = "The probability is the geometric mean of those of the tokens that were written."

    def longest(self) -> int:
        """`max_length`, and `max_target_length` with it: a decoder has to take both together."""
        self.auto_class = writes_with(self.config)
        source, target = self.options.max_length, self.options.max_target_length
        length, self.max_target_length = resolve_lengths(
            source=source, target=target, config=self.config, tokenizer=self.tokenizer
        )
        return length

    def read(self, train: list[Any], held_out: list[Any]) -> None:
        asked = self.options
        train, held_out = unfold(train), unfold(held_out)
        files = f"source from {asked.train_file}, target from {asked.train_target_file}, line by line"
        instead = files if asked.train_target_file else None
        self.columns = self.find_columns(SEQUENCE_TO_SEQUENCE, train, instead=instead)
        train, held_out = ([read_pair(row, **self.columns) for row in part] for part in (train, held_out))
        self._train_pairs, self._eval_pairs = self.divide(
            train, held_out, same=lambda pair: pair[:2], group=lambda pair: pair.source, what="pairs"
        )

    def training_texts(self) -> list[str]:
        return gathered([pair.source] for pair in self._train_pairs)

    def encode(self) -> None:
        self.writer = Writer(tokenizer=self.tokenizer, config=self.config, **self._how())
        examples, _, cut_sources, cut_targets = self._examples(self._train_pairs)
        self.note_cut(cut_sources, of=len(examples), what="sources")
        self.note_cut(cut_targets, of=len(examples), what="targets", option="max_target_length")
        judged, self._eval_sources, *_ = self._examples(self._eval_pairs)
        self.set_examples(train=examples, held_out=judged)

    def _examples(self, pairs: Sequence[TextPair]) -> tuple[list[Inputs], list[Inputs], int, int]:
        """Examples, what is read of each before writing, and how many sources and targets were cut."""
        sources, cut_sources = self.writer.sources([pair.source for pair in pairs])
        targets, cut_targets = self.writer.targets([pair.target for pair in pairs])
        return [*map(self.writer.example, sources, targets)], sources, cut_sources, cut_targets

    # What the loop asks for

    def collate(self, examples: list[Inputs]) -> Batch:
        """Inputs padded to the longest, `labels`, -100 where nothing is to be written; `row` for held-out examples."""
        return self.writer.collate(examples) | stacked(examples, "row")

    def count_targets(self, batch: Batch) -> dict[str, int]:
        return {"tokens": int((batch["labels"] != IGNORED).sum())}

    def with_hints(self, batch: Batch) -> Batch:
        return self.writer.with_hints(batch)

    def loss(self, model: nn.Module, batch: Batch, num_targets: Batch) -> tuple[Tensor, Batch]:
        """Cross-entropy of the targets' tokens, summed over the batch and divided by the tokens of the step."""
        return self.writer.nats(model, batch)[0].sum() / num_targets["tokens"], {}

    def evaluate(self, model: nn.Module, batch: Batch) -> list[dict[str, Any]]:
        """One record a pair: row, nats and tokens of its target, what the model writes, and how sure it is of that."""
        nats, counts = self.writer.nats(model, batch)
        answers = self.writer.answers(model, [self._eval_sources[row] for row in batch["row"].tolist()])
        found = records(row=batch["row"], loss=nats, tokens=counts)
        return [{**record, **answer} for record, answer in zip(found, answers, strict=True)]

    def scores(self) -> dict[str, float]:
        """BLEU, chrF and ROUGE from 0 to 100, and the share of texts that came to an end."""
        references = [self._eval_pairs[record["row"]].target for record in self.records]
        found = generation([record["prediction"] for record in self.records], references)
        return {**found, "ended": sum(record["ended"] for record in self.records) / max(len(self.records), 1)}

    def baseline(self) -> dict[str, float]:
        """The source itself as the text; the loss: the tokens' frequencies in the training targets (plus 1)."""
        counts = Counter(int(token) for item in self._train for token in item["labels"] if token != IGNORED)
        total = math.log(sum(counts.values()) + len(self.tokenizer))
        wanted = [int(token) for item in self._eval for token in item["labels"] if token != IGNORED]
        loss = float(np.mean([total - math.log(counts[token] + 1) for token in wanted]))
        sources, targets, _ = zip(*self._eval_pairs, strict=True)
        return {"loss": loss, **generation(sources, targets)}

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """Each source with what was written and what should have been; correct is only what is the same."""
        readable = []
        for record in self.records:
            pair = self._eval_pairs[record["row"]]
            sides = {"source": pair.source, "prediction": record["prediction"], "gold": pair.target}
            right = record["prediction"].split() == pair.target.split()
            readable.append({**sides, "probability": record["probability"], "correct": right})
        return readable

    def _how(self) -> dict[str, Any]:
        options = {name: getattr(self.options, name) for name in ("num_beams", "source_prefix")}
        return {**super().settings(), "max_target_length": self.max_target_length, **options}

    def settings(self) -> dict[str, Any]:
        return {**self._how(), **self.columns}

    def show(self, example: Inputs) -> list[str]:
        labels = example["labels"]
        read = example["input_ids"] if self.writer.is_encoder_decoder else example["input_ids"][labels == IGNORED]
        return [self.tokenizer.decode(read), f"-> {self.tokenizer.decode(labels[labels != IGNORED])}"]


class WritingPredictor(Predictor):
    """A text written from another one, and the mean probability of its tokens."""

    columns = ("prediction", "probability")
    trained_column = "source_column"

    @classmethod
    def head(cls, config: Any) -> str:
        return writes_with(config)

    def prepare(self) -> None:
        parts: dict[str, Any] = {"tokenizer": self.tokenizer, "config": self.model.config}
        with called({"--max_target_length": "--max_new_tokens"}):
            source, target = resolve_lengths(
                source=self.arguments.max_length or self.settings.get("max_length"),
                target=self.arguments.max_new_tokens or self.settings.get("max_target_length"),
                default=(256, NEW_TOKENS),
                **parts,
            )
        trained = {name: self.settings[name] for name in ("num_beams", "source_prefix") if name in self.settings}
        self._writer = Writer(max_length=source, max_target_length=target, **parts, **trained)

    def expand(self, row: Row) -> Iterator[Row]:
        yield from unfold([row])

    def read(self, row: Row) -> str:
        return row.text(self.text_column, option="--text_column").strip()

    def forward(self, given: Sequence[Any]) -> Iterator[dict[str, Any]]:
        sources, _ = self._writer.sources(given)
        for answer in self._writer.answers(self.model, sources):
            yield {name: answer[name] for name in self.columns}
