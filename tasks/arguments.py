"""The options of the tasks."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from lacuna.common.errors import InputError
from lacuna.common.options import ESSENTIALS, Arguments, check_range, option

_essential = partial(option, group=ESSENTIALS)
_data = partial(option, group="data")
_model = partial(option, group="model")
_optimizer = partial(option, group="optimizer")
_rest = partial(option, group="evaluation and hardware")

_ROWS = ".jsonl, .csv, .tsv, .parquet, a folder saved by `datasets` or a Hub dataset (OWNER/NAME:CONFIG:SPLIT)"


def _column(text: str) -> Any:
    return _data(None, f"{text} Default: inferred and printed.")


def _eval_fraction(rows: str = "rows") -> Any:
    return _data(0.1, f"Fraction of the training {rows} to hold out without --eval_file.")


def _max_length(length: int, of: str = "a text") -> Any:
    return _data(None, f"Truncate {of} to this many tokens. Default: {length}, or the model's limit if that is less.")


def _check_room_for_text(max_length: int | None) -> None:
    """Refuse a length that special tokens alone fill.

    Raises:
        InputError: fewer than 8 tokens.
    """
    if max_length is not None and max_length < 8:
        raise InputError(
            f"--max_length must be at least 8, or nothing is left beside special tokens; got {max_length}"
        )


def _check_files(*, train_file: str | None, eval_file: str | None) -> None:
    if eval_file is not None and train_file is None:
        raise InputError(f"--eval_file {eval_file} needs a --train_file")


def _check_train_file(train_file: str | None) -> None:
    if train_file is None:
        raise InputError("there is nothing to learn from: name a file with --train_file")


def used(arguments: Any) -> dict[str, Any]:
    """Options of the data by name, as a model card says them: without those that decided nothing, such as the share to
    hold out beside a file of held-out rows, columns beside files with a text a line, or a prefix that is empty."""
    options = asdict(arguments)
    without = {name for name, value in options.items() if value == ""}
    if options.get("eval_file"):
        without.add("eval_fraction")
    if options.get("train_target_file") and not (options["eval_file"] and not options["eval_target_file"]):
        without |= {"source_column", "target_column"}
    return {name: value for name, value in options.items() if name not in without}


@dataclass
class PredictionArguments(Arguments):
    """Which model answers which rows, and where the answers go."""

    model: str = _essential("runs/finetuned", "Fine-tuned model: a folder or Hub id.", metavar="MODEL")
    input: str = _essential(
        "", "Rows to answer: .jsonl, .json, .csv, .tsv, .parquet, or .txt with one text per line.", metavar="FILE"
    )
    output: str = _essential("", "File for the rows and their answers: .jsonl, .csv or .tsv.", metavar="FILE")
    task: str | None = option(None, "What the model does. Default: from its task.json or its head.", metavar="NAME")
    batch_size: int = option(32, "Rows, or windows of long rows, per forward pass.")
    text_column: str | None = option(None, "Column of the text. Default: as in training, or inferred and printed.")
    text_pair_column: str | None = option(
        None, "Column of a second text. Default: as in training, or inferred and printed."
    )
    max_length: int | None = option(None, "Truncate inputs to this many tokens. Default: as in training.")
    max_new_tokens: int | None = option(None, "Most tokens to generate. Default: as in training, or 64.")
    top_k: int = option(5, "Predictions to list for each masked token.")
    overwrite: bool = option(False, "Overwrite --output if it exists.")
    trust_remote_code: bool = option(
        False, "Run the code in the checkpoint; checkpoints made by Lacuna do not need it."
    )

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            if not getattr(self, name):
                raise InputError(f"--{name} is missing: name a file, as in --input new.jsonl --output answers.jsonl")
        _check_room_for_text(self.max_length)
        check_range(self, "batch_size", "max_new_tokens", "top_k", above=0)


@dataclass
class ClassificationArguments(Arguments):
    """Which labelled texts to learn from, and how to read them."""

    train_file: str | None = _essential(None, f"Labelled rows to train on: {_ROWS}. Default: the built-in task.")
    eval_file: str | None = _essential(None, "Labelled rows to evaluate on. Default: a part of the training rows.")
    text_column: str | None = _column("Column of the text.")
    text_pair_column: str | None = _column("Column of the second text, for pairs.")
    label_column: str | None = _column("Column of the label.")
    label_names: list[str] | None = _data(
        None,
        "Labels in the order of the outputs. Default: those of the training rows, sorted.",
        metavar="NAME",
    )
    problem_type: Literal["auto", "single_label_classification", "multi_label_classification", "regression"] = _data(
        "auto",
        "What the label column holds: single_label_classification, multi_label_classification, regression or auto "
        "(inferred and printed).",
    )
    label_separator: str | None = _data(
        None, 'Separator of several labels in one string, such as "|"; JSON lists need none.'
    )
    class_weights: Literal["none", "balanced"] = _data(
        "none", "Loss weights: none, or balanced (rare labels count as much as frequent ones)."
    )
    pooling: Literal["auto", "first", "mean"] = _model(
        "auto", "Encoder output to classify: first (token), mean (of all tokens) or auto (as in its config.json)."
    )
    max_length: int | None = _max_length(256)
    eval_fraction: float = _eval_fraction()

    def __post_init__(self) -> None:
        check_range(self, "eval_fraction", above=0, below=1)
        _check_room_for_text(self.max_length)
        _check_files(train_file=self.train_file, eval_file=self.eval_file)
        if self.label_separator is not None and not self.label_separator.strip(" "):
            raise InputError(
                f'--label_separator {self.label_separator!r} is blank: name a sign, such as --label_separator "|"'
            )


@dataclass
class QuestionAnsweringArguments(Arguments):
    """Which questions to learn from, and how to cut their contexts."""

    train_file: str | None = _essential(
        None,
        "Questions to train on: SQuAD JSON (1.1 or 2.0), .jsonl or .parquet with one question per row, or a Hub "
        "dataset (OWNER/NAME:CONFIG:SPLIT). Default: the built-in task.",
    )
    eval_file: str | None = _essential(None, "Questions to evaluate on. Default: a part of the training contexts.")
    max_length: int | None = _data(
        None,
        "Tokens per window: the question and a part of the context. Default: 384, or the model's limit if that is "
        "less.",
    )
    stride: int | None = _data(None, "Tokens by which windows overlap. Default: a third of --max_length.")
    max_answer_length: int = _data(48, "Most tokens in an answer.")
    eval_fraction: float = _eval_fraction("contexts")

    def __post_init__(self) -> None:
        check_range(self, "eval_fraction", above=0, below=1)
        _check_room_for_text(self.max_length)
        check_range(self, "stride", "max_answer_length", above=0)
        _check_files(train_file=self.train_file, eval_file=self.eval_file)


@dataclass
class TokenClassificationArguments(Arguments):
    """Which tagged sentences to learn from, and how to read them."""

    train_file: str | None = _essential(
        None,
        "Tagged sentences to train on: CoNLL columns (.conll, .txt), or rows with lists of tokens and tags (.jsonl, "
        ".parquet, a folder saved by `datasets` or a Hub dataset, OWNER/NAME:CONFIG:SPLIT).",
    )
    eval_file: str | None = _essential(
        None, "Tagged sentences to evaluate on. Default: a part of the training sentences."
    )
    tokens_column: str | None = _column("Column of the tokens.")
    tags_column: str | None = _column("Column of the tags.")
    label_names: list[str] | None = _data(
        None,
        "Names of numeric tags, in order; or all tags that can occur. Default: those in the training data.",
        metavar="NAME",
    )
    label_all_tokens: bool = _data(
        False, "Train on all tokens of a word and average their predictions. Default: the first token alone."
    )
    max_length: int | None = _data(
        None,
        "Tokens per window; longer sentences have several windows. Default: 256, or the model's limit if that is "
        "less.",
    )
    eval_fraction: float = _eval_fraction("sentences")

    def __post_init__(self) -> None:
        check_range(self, "eval_fraction", above=0, below=1)
        _check_room_for_text(self.max_length)
        _check_train_file(self.train_file)


@dataclass
class MultipleChoiceArguments(Arguments):
    """Which questions with choices to learn from, and how to read them."""

    train_file: str | None = _essential(
        None, f"Questions to train on, with a list of choices or one column per choice (ending0, ...): {_ROWS}."
    )
    eval_file: str | None = _essential(None, "Questions to evaluate on. Default: a part of the training questions.")
    context_column: str | None = _column("Column of the context.")
    question_column: str | None = _column("Column of the question.")
    choices_columns: list[str] | None = _column("Column of the lists of choices, or one column per choice.")
    label_column: str | None = _column("Column of the correct choice: its number, letter, name or text.")
    max_length: int | None = _max_length(256, "a question with one choice")
    eval_fraction: float = _eval_fraction("questions")

    def __post_init__(self) -> None:
        check_range(self, "eval_fraction", above=0, below=1)
        _check_room_for_text(self.max_length)
        _check_train_file(self.train_file)


@dataclass
class SequenceToSequenceArguments(Arguments):
    """Which pairs of texts to learn from, and how to read and write them."""

    train_file: str | None = _essential(
        None, f"Pairs to train on, in two columns: {_ROWS}; or sources, one per line, with --train_target_file."
    )
    train_target_file: str | None = _essential(None, "Targets for the lines of --train_file, one per line.")
    eval_file: str | None = _essential(None, "Pairs to evaluate on. Default: a part of the training pairs.")
    eval_target_file: str | None = _essential(None, "Targets for the lines of --eval_file, one per line.")
    source_column: str | None = _column("Column of the source.")
    target_column: str | None = _column("Column of the target.")
    source_prefix: str = _data("", "Prepended to every source, such as 'translate English to German: '.")
    max_length: int | None = _max_length(256, "sources")
    max_target_length: int | None = _max_length(128, "targets, and generated text,")
    num_beams: int = _data(1, "Beams in evaluation; 1 is greedy decoding.")
    eval_fraction: float = _eval_fraction("pairs")

    def __post_init__(self) -> None:
        check_range(self, "eval_fraction", above=0, below=1)
        _check_room_for_text(self.max_length)
        check_range(self, "max_target_length", "num_beams", above=0)
        _check_train_file(self.train_file)
        for part in ("train", "eval"):
            if getattr(self, f"{part}_target_file") is not None and getattr(self, f"{part}_file") is None:
                raise InputError(f"--{part}_target_file needs a --{part}_file with the sources, one a line")


@dataclass
class EmbeddingArguments(Arguments):
    """Which texts that belong together to learn from, and how; training is that of sentence-transformers."""

    train_file: str | None = _essential(
        None,
        f"Rows to train on: scored pairs, pairs, triples, or premise, hypothesis and label; {_ROWS}.",
    )
    eval_file: str | None = _essential(None, "Rows to evaluate on. Default: a part of the training rows.")
    kind: Literal["auto", "scored", "pairs", "triples", "nli"] = _data(
        "auto", "What the rows are: scored (pairs), pairs, triples, nli or auto (inferred from columns and printed)."
    )
    text_column: str | None = _column("Column of the first text.")
    text_pair_column: str | None = _column("Column of the matching text.")
    negative_column: str | None = _column("Column of a text that does not match.")
    label_column: str | None = _column("Column of the score or label.")
    max_length: int | None = _max_length(128)
    eval_fraction: float = _eval_fraction()
    output_dir: str = _essential("runs/embeddings", "Where the model, predictions and metrics are written.")
    batch_size: int = _optimizer(
        64, "Rows per step, over all processes; the texts of other rows serve as in-batch negatives."
    )
    max_steps: int | None = _optimizer(None, "Stop after this many steps.")
    max_epochs: float = _essential(3.0, "Stop after this many passes over the data.")
    learning_rate: float | None = _essential(
        None, "Peak learning rate. Default: automatic, scaled to the RMS of the weights."
    )
    warmup_steps: float = _optimizer(0.06, "Warmup steps; below 1, a fraction of the run.")
    eval_steps: float = _rest(
        0.2, "Steps between evaluations; below 1, a fraction of the run; 0 evaluates only at the end."
    )
    mixed_precision: Literal["auto", "no", "bf16"] = _rest("auto", "bf16, no, or auto: bf16 where it is fast.")
    seed: int = _rest(0, "Seed of the held-out part, sample order and dropout.")
    dry_run: bool = _rest(False, "Show what would be trained, then exit without training.")

    def __post_init__(self) -> None:
        check_range(self, "eval_fraction", above=0, below=1)
        _check_room_for_text(self.max_length)
        _check_train_file(self.train_file)
        check_range(self, "batch_size", "max_steps", above=0)
        check_range(self, "max_epochs", "learning_rate", above=0)
        check_range(self, "warmup_steps", "eval_steps", "seed", at_least=0)
