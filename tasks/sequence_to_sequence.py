"""Sequence to sequence: a text is written from another one, as a translation or a summary."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lacuna.common.errors import InputError
from lacuna.tasks.columns import SEQUENCE_TO_SEQUENCE
from lacuna.tasks.metrics import generation_metrics
from lacuna.tasks.pairs import TextPair, read_pairs, unfold
from lacuna.tasks.rows import as_rows
from lacuna.tasks.splits import split_groups
from lacuna.tasks.tables import Matrix, Points, Table, groups
from lacuna.tasks.task import Inputs, Task
from lacuna.tasks.writing import IGNORED, Writer


class SequenceToSequence(Task):
    """Learning to write a text from another one; implements the loop's `Work`.

    A model is judged by chrF, which also tells apart models that hardly get a word right.

    Args:
        train_rows: mappings, or records with `fields`, `path` and `line`.
        eval_rows: the same, held out; empty: a seeded part of `train_rows` is held out, all rows of a source together.
        tokenizer: a fast tokenizer with a padding token.
        config: the model's, which says how it writes.
        source_column, target_column: column names; None: guessed, and the guess is in `notes`.
        files: of sources and of targets, one a line, where the training rows are from such; then no column is guessed.
        source_prefix: stands before every source.
        max_length, max_target_length: tokens that sources and targets are cut to, special tokens included; texts are
            written no longer than targets.
        num_beams: of beam search in evaluation; 1: the most probable token is taken each time.
        seed: decides the held-out part.
        eval_fraction: share of `train_rows` to hold out.

    Raises:
        InputError: a column or text that is missing or cannot be used; the message has its file and line.
    """

    name = "sequence_to_sequence"
    metric = "chrf"
    mistakes_heading = "The {count} surest texts that are not as they should be"
    probability_note = "The probability is the geometric mean of those of the tokens that were written."

    def __init__(
        self,
        *,
        train_rows: Sequence[Any],
        eval_rows: Sequence[Any] = (),
        tokenizer: Any,
        config: Any,
        source_column: str | None = None,
        target_column: str | None = None,
        files: tuple[str, str] | None = None,
        source_prefix: str = "",
        max_length: int = 256,
        max_target_length: int = 128,
        num_beams: int = 1,
        seed: int = 0,
        eval_fraction: float = 0.1,
    ) -> None:
        super().__init__(tokenizer=tokenizer, max_length=max_length)
        self.writer = Writer(
            tokenizer=tokenizer,
            config=config,
            max_length=max_length,
            max_target_length=max_target_length,
            num_beams=num_beams,
            source_prefix=source_prefix,
        )
        rows = unfold(as_rows(train_rows, part="training"))
        if not rows:
            raise InputError("there are no training rows: name a file that has some with --train_file")
        self.source_column, self.target_column = SEQUENCE_TO_SEQUENCE.find(
            rows, source=source_column, target=target_column
        )
        how = "" if source_column and target_column else " (guessed; --source_column and --target_column override it)"
        self.notes.append(
            f"source from column '{self.source_column}', target from '{self.target_column}'{how}"
            if files is None
            else f"source from {files[0]}, target from {files[1]}, line by line"
        )
        self.note_names(rows, texts=[self.source_column, self.target_column])
        columns = {"source": self.source_column, "target": self.target_column}
        train = read_pairs(rows, **columns)
        held_out = read_pairs(unfold(as_rows(eval_rows, part="evaluation")), **columns)
        if held_out:
            known = [[(pair.source, pair.target) for pair in part] for part in (train, held_out)]
            self.note_overlap(train=known[0], held_out=known[1])
        else:
            sources = [pair.source for pair in train]
            kept, out = split_groups(groups=sources, fraction=eval_fraction, seed=seed)
            self.note_held_out(of=train, count=len(out), what="pairs")
            train, held_out = [train[i] for i in kept], [train[i] for i in out]
        self._eval_pairs = held_out
        learnt = self._examples(train, note=True)
        asked = self._examples(held_out)
        self._eval_sources = [example.pop("source") for example in asked]
        for example in learnt:
            del example["source"]
        self.set_examples(train=learnt, held_out=asked)

    def _examples(self, pairs: Sequence[TextPair], *, note: bool = False) -> list[Inputs]:
        """Examples with what is read before writing, "source"."""
        sources, cut_sources = self.writer.sources([pair.source for pair in pairs])
        targets, cut_targets = self.writer.targets([pair.target for pair in pairs])
        cut = (("sources", cut_sources, "max_length"), ("targets", cut_targets, "max_target_length"))
        for what, count, option in cut if note else ():
            share = (
                f"{count / len(pairs):.1%} of the training {what} are" if count else f"none of the training {what} is"
            )
            self.notes.append(f"{share} cut to --{option} {getattr(self.writer, option)}")
        return [
            {**self.writer.example(source, target), "source": source}
            for source, target in zip(sources, targets, strict=True)
        ]

    # What the loop asks for

    def collate(self, examples: list[Inputs]) -> dict[str, Tensor]:
        """Inputs padded to the longest, `labels`, -100 where nothing is to be written; `row` for held-out examples."""
        batch = self.writer.collate(examples)
        if "row" in examples[0]:
            batch["row"] = torch.tensor([example["row"] for example in examples])
        return batch

    def count_targets(self, batch: dict[str, Tensor]) -> dict[str, int]:
        """One target a token to be written."""
        return {"tokens": int((batch["labels"] != IGNORED).sum())}

    def loss(
        self, model: nn.Module, batch: dict[str, Tensor], num_targets: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy of the targets' tokens, summed over the batch and divided by the tokens of the step."""
        return self.writer.nats(model, batch)[0].sum() / num_targets["tokens"], {}

    def evaluate(self, model: nn.Module, batch: dict[str, Tensor]) -> list[dict[str, Any]]:
        """One record a pair: row, nats and tokens of its target, what the model writes, and how sure it is of that."""
        nats, counts = self.writer.nats(model, batch)
        rows = batch["row"].tolist()
        sources = [self._eval_sources[row] for row in rows]
        prompts = {name: value.to(nats.device) for name, value in self.writer.prompts(sources).items()}
        written = self.writer.write(model, prompts)
        sure = self.writer.sureness(model, sources, written)
        columns = (rows, nats.tolist(), counts.tolist(), written, sure)
        return [
            {
                "row": row,
                "nats": loss,
                "tokens": count,
                "prediction": self.writer.text(ids),
                "ended": self.writer.end in ids,
                "probability": round(probability, 6),
            }
            for row, loss, count, ids, probability in zip(*columns, strict=True)
        ]

    def summarize(self, records: list[dict[str, Any]]) -> dict[str, float]:
        """The mean loss of a token in nats, and `scores`, over all records, in any order."""
        self.records = sorted(records, key=lambda record: record["row"])
        tokens = sum(record["tokens"] for record in self.records)
        return {"loss": math.fsum(record["nats"] for record in self.records) / max(tokens, 1), **self.scores()}

    def scores(self) -> dict[str, float]:
        """BLEU, chrF and ROUGE from 0 to 100, and the share of texts that came to an end."""
        found = self._scores({record["row"]: record["prediction"] for record in self.records})
        ended = sum(record["ended"] for record in self.records)
        return {**found, "ended": ended / max(len(self.records), 1)}

    def _scores(self, texts: dict[int, str]) -> dict[str, float]:
        references = [[self._eval_pairs[row].target] for row in texts]
        return generation_metrics(predictions=list(texts.values()), references=references)

    def baseline(self) -> dict[str, float]:
        """The source itself as the text; the loss: always the tokens' frequencies in the training targets (plus 1)."""
        if not self._eval_pairs:
            return {}
        counts = Counter(int(token) for item in self._train for token in item["labels"] if token != IGNORED)
        total = math.log(sum(counts.values()) + len(self.tokenizer))
        wanted = [int(token) for item in self._eval for token in item["labels"] if token != IGNORED]
        loss = float(np.mean([total - math.log(counts[token] + 1) for token in wanted]))
        return {"loss": loss, **self._scores({row: pair.source for row, pair in enumerate(self._eval_pairs)})}

    # For people

    def predictions(self) -> list[dict[str, Any]]:
        """Each source with what was written and what should have been.

        The probability is the (geometric) mean of those of the tokens written; right is only what is the same.
        """
        readable = []
        for record in self.records:
            pair = self._eval_pairs[record["row"]]
            sides = {"source": pair.source, "prediction": record["prediction"], "gold": pair.target}
            right = " ".join(record["prediction"].split()) == " ".join(pair.target.split())
            readable.append({**sides, "probability": record["probability"], "correct": right})
        return readable

    def tables(self) -> dict[str, Matrix | Table | Points]:
        """Scores by the length of the source, in parts of about as many texts each."""
        words = [len(self._eval_pairs[record["row"]].source.split()) for record in self.records]
        rows: list[list[object]] = []
        for name, part in groups(words):
            found = self._scores({self.records[i]["row"]: self.records[i]["prediction"] for i in part})
            rows.append([name, len(part), found["bleu"], found["chrf"], found["rougeL"]])
        columns = ("words of the source", "texts", "bleu", "chrf", "rougeL")
        return {"By the length of the source": Table(columns, rows, bars=columns[2:], highest=100.0)}

    def settings(self) -> dict[str, Any]:
        """What `recipes/predict.py` needs to write from new sources."""
        return {
            **super().settings(),
            "max_target_length": self.writer.max_target_length,
            "num_beams": self.writer.num_beams,
            "source_prefix": self.writer.source_prefix,
            "source_column": self.source_column,
            "target_column": self.target_column,
        }

    def show(self, example: Inputs) -> list[str]:
        """One example: what is read, and what is learnt."""
        labels = example["labels"]
        read = example["input_ids"] if self.writer.is_encoder_decoder else example["input_ids"][labels == IGNORED]
        return [self.tokenizer.decode(read), f"-> {self.tokenizer.decode(labels[labels != IGNORED])}"]
