"""The options of the tasks."""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from lacuna.common.errors import InputError
from lacuna.common.options import Arguments, check_range, option


def check_max_length(max_length: int | None) -> None:
    """Refuse a length that special tokens alone fill.

    Raises:
        InputError: fewer than 8 tokens.
    """
    if max_length is not None and max_length < 8:
        raise InputError(
            f"--max_length must be at least 8, or nothing is left beside special tokens; got {max_length}"
        )


class TaskArguments(Arguments):
    """The checks that the options of all tasks share."""

    is_built_in: ClassVar[bool] = False
    """Whether there are rows to learn from without a file."""
    train_file: str | None
    eval_file: str | None
    max_length: int | None
    eval_fraction: float

    def __post_init__(self) -> None:
        check_range(self, "eval_fraction", above=0, below=1)
        check_max_length(self.max_length)
        if self.train_file is None and not self.is_built_in:
            raise InputError("there is nothing to learn from: name a file with --train_file")
        if self.train_file is None and self.eval_file is not None:
            raise InputError(f"--eval_file {self.eval_file} needs a --train_file")


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

    model: str = option("runs/finetuned", "Folder or Hub id of the model that answers.")
    input: str = option("", "Rows to answer: .jsonl, .json, .csv, .tsv, .parquet, or .txt with a text a line.")
    output: str = option("", "File for the rows with their answers: .jsonl, .csv or .tsv.")
    task: str | None = option(None, "What the model is for. Default: as its task.json or its head says.")
    batch_size: int = option(32, "Rows, or windows of long ones, that go through the model at once.")
    text_column: str | None = option(None, "Column of the text. Default: that of training, or guessed, and said.")
    text_pair_column: str | None = option(None, "Column of a second text. Default: that of training, or guessed.")
    max_length: int | None = option(None, "Tokens to cut an input to. Default: as in training.")
    max_new_tokens: int | None = option(None, "Most tokens of a text that is written. Default: as in training, or 64.")
    top_k: int = option(5, "Tokens to name for each mask.")
    overwrite: bool = option(False, "Write over --output if it is there.")
    trust_remote_code: bool = option(
        False, "Run the code that a checkpoint carries. Checkpoints of Lacuna do not need it here."
    )

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            if not getattr(self, name):
                raise InputError(f"--{name} is missing: name a file, as in --input new.jsonl --output answers.jsonl")
        check_max_length(self.max_length)
        check_range(self, "batch_size", "max_new_tokens", "top_k", above=0)


@dataclass
class ClassificationArguments(TaskArguments):
    """Which labelled texts to learn from, and how to read them."""

    is_built_in = True
    train_file: str | None = option(
        None,
        "Labelled rows to learn from: .jsonl, .csv, .tsv, .parquet, a folder saved by `datasets`, or a dataset of the "
        "Hub (OWNER/NAME:CONFIG:SPLIT). Default: the built-in task.",
    )
    eval_file: str | None = option(None, "Labelled rows to evaluate on. Default: a part of the training rows.")
    text_column: str | None = option(None, "Column of the text. Default: guessed, and said.")
    text_pair_column: str | None = option(None, "Column of a second text, for pairs. Default: guessed, and said.")
    label_column: str | None = option(None, "Column of the label. Default: guessed, and said.")
    label_names: list[str] | None = field(
        default=None,
        metadata={
            "help": "The labels in the order of the model's outputs. Default: those of the training rows, sorted."
        },
    )
    problem_type: Literal["auto", "single_label_classification", "multi_label_classification", "regression"] = option(
        "auto", "What the label column holds: one label, several, or a number. auto: told by its values, and said."
    )
    label_separator: str | None = option(
        None, 'What stands between several labels in a text, such as "|". Lists in JSON are read as they are.'
    )
    class_weights: Literal["none", "balanced"] = option(
        "none", "balanced: in training, rare labels weigh as much as frequent ones."
    )
    pooling: Literal["auto", "first", "mean"] = option(
        "auto", "What of an encoder is classified: its first token or the mean of all. auto: as its config.json says."
    )
    max_length: int | None = option(None, "Tokens to cut a text to. Default: 256, or what the model takes if less.")
    eval_fraction: float = option(0.1, "Share of the training rows to hold out when there is no --eval_file.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_separator is not None and not self.label_separator.strip(" "):
            raise InputError(
                f'--label_separator {self.label_separator!r} is blank: name a sign, such as --label_separator "|"'
            )


@dataclass
class QuestionAnsweringArguments(TaskArguments):
    """Which questions to learn from, and how to cut their contexts."""

    is_built_in = True
    train_file: str | None = option(
        None,
        "Questions to learn from: SQuAD JSON (1.1 or 2.0), .jsonl or .parquet with a question a row, or a dataset of "
        "the Hub (OWNER/NAME:CONFIG:SPLIT). Default: the built-in task.",
    )
    eval_file: str | None = option(None, "Questions to evaluate on. Default: a part of the training contexts.")
    max_length: int | None = option(
        None,
        "Tokens of one window: question and a piece of the context. Default: 384, or what the model takes if less.",
    )
    stride: int | None = option(None, "Tokens that neighbouring windows share. Default: a third of --max_length.")
    max_answer_length: int = option(48, "Most tokens of an answer.")
    eval_fraction: float = option(0.1, "Share of the contexts to hold out when there is no --eval_file.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "stride", "max_answer_length", above=0)


@dataclass
class TokenClassificationArguments(TaskArguments):
    """Which tagged sentences to learn from, and how to read them."""

    train_file: str | None = option(
        None,
        "Sentences to learn from: columns of CoNLL (.conll, .txt), or rows with a list of tokens and one of tags "
        "(.jsonl, .parquet, a folder saved by `datasets`, OWNER/NAME:CONFIG:SPLIT of the Hub).",
    )
    eval_file: str | None = option(None, "Sentences to evaluate on. Default: a part of the training sentences.")
    tokens_column: str | None = option(None, "Column of the tokens. Default: guessed, and said.")
    tags_column: str | None = option(None, "Column of the tags. Default: guessed, and said.")
    label_names: list[str] | None = field(
        default=None,
        metadata={
            "help": "Names of tags that are numbers, in order; or all tags that may occur. Default: those there."
        },
    )
    label_all_tokens: bool = option(
        False, "Teach a tag to all tokens of a word, and let their mean decide. Default: to the first token alone."
    )
    max_length: int | None = option(
        None, "Tokens of a window; longer sentences have several. Default: 256, or what the model takes if less."
    )
    eval_fraction: float = option(0.1, "Share of the training sentences to hold out when there is no --eval_file.")


@dataclass
class MultipleChoiceArguments(TaskArguments):
    """Which questions with choices to learn from, and how to read them."""

    train_file: str | None = option(
        None,
        "Questions to learn from (.jsonl, .csv, .tsv, .parquet, a folder saved by `datasets`, OWNER/NAME:CONFIG:SPLIT "
        "of the Hub): a list of choices in one column, or each in one of its own, as ending0, ending1, ....",
    )
    eval_file: str | None = option(None, "Questions to evaluate on. Default: a part of the training questions.")
    context_column: str | None = option(None, "Column of the text that is asked about. Default: guessed, and said.")
    question_column: str | None = option(None, "Column of the question. Default: guessed, and said.")
    choices_columns: list[str] | None = field(
        default=None,
        metadata={"help": "Column of the lists of choices, or one column a choice. Default: guessed, and said."},
    )
    label_column: str | None = option(
        None, "Column of the right choice: its number, letter, name or text. Default: guessed, and said."
    )
    max_length: int | None = option(
        None, "Tokens to cut a question with one choice to. Default: 256, or what the model takes if less."
    )
    eval_fraction: float = option(0.1, "Share of the training questions to hold out when there is no --eval_file.")


@dataclass
class SequenceToSequenceArguments(TaskArguments):
    """Which pairs of texts to learn from, and how to read and write them."""

    train_file: str | None = option(
        None,
        "Pairs to learn from: two columns (.jsonl, .csv, .tsv, .parquet, a folder saved by `datasets`, "
        "OWNER/NAME:CONFIG:SPLIT of the Hub), or sources, one a line, beside --train_target_file.",
    )
    train_target_file: str | None = option(None, "What is to be written from the lines of --train_file, one a line.")
    eval_file: str | None = option(None, "Pairs to evaluate on. Default: a part of the training pairs.")
    eval_target_file: str | None = option(None, "What is to be written from the lines of --eval_file, one a line.")
    source_column: str | None = option(None, "Column of the source. Default: guessed, and said.")
    target_column: str | None = option(None, "Column of what is to be written. Default: guessed, and said.")
    source_prefix: str = option("", "Stands before every source, as in: translate English to German: .")
    max_length: int | None = option(None, "Tokens to cut sources to. Default: 256, or what the model takes if less.")
    max_target_length: int | None = option(
        None, "Tokens to cut targets to, and to write at most. Default: 128, or what the model takes if less."
    )
    num_beams: int = option(1, "Beams of the search in evaluation; 1: the most probable token each time.")
    eval_fraction: float = option(0.1, "Share of the training pairs to hold out when there is no --eval_file.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "max_target_length", "num_beams", above=0)
        for part in ("train", "eval"):
            if getattr(self, f"{part}_target_file") is not None and getattr(self, f"{part}_file") is None:
                raise InputError(f"--{part}_target_file needs a --{part}_file with the sources, one a line")


@dataclass
class EmbeddingArguments(TaskArguments):
    """Which texts that belong together to learn from, and how; training is that of sentence-transformers."""

    train_file: str | None = option(
        None,
        "Rows to learn from (.jsonl, .csv, .tsv, .parquet, a folder saved by `datasets`, OWNER/NAME:CONFIG:SPLIT of "
        "the Hub): two texts with a score, two that belong together, three, or premise, hypothesis and label.",
    )
    eval_file: str | None = option(None, "Rows to evaluate on. Default: a part of the training rows.")
    kind: Literal["auto", "scored", "pairs", "triples", "nli"] = option(
        "auto", "What the rows are: pairs with a score, pairs, triples, or nli. auto: told by the columns, and said."
    )
    text_column: str | None = option(None, "Column of the first text. Default: guessed, and said.")
    text_pair_column: str | None = option(None, "Column of the one that belongs to it. Default: guessed, and said.")
    negative_column: str | None = option(None, "Column of one that does not. Default: guessed, and said.")
    label_column: str | None = option(None, "Column of the score or label. Default: guessed, and said.")
    max_length: int | None = option(None, "Tokens to cut a text to. Default: 128, or what the model takes if less.")
    eval_fraction: float = option(0.1, "Share of the training rows to hold out when there is no --eval_file.")
    output_dir: str = option("runs/embeddings", "Folder for the model, predictions and metrics.")
    batch_size: int = option(
        64, "Rows in one step, over all processes; texts of other rows are what a text is told apart from."
    )
    max_steps: int | None = option(None, "Stop after this many steps.")
    max_epochs: float = option(3.0, "Stop after this many passes over the data.")
    learning_rate: float | None = option(None, "Peak learning rate. Default: in proportion to the weights.")
    warmup_steps: float = option(0.06, "Steps of warm-up; below 1 a share of the run.")
    eval_steps: float = option(0.2, "Steps between evaluations; below 1 a share of the run; 0 only at the end.")
    mixed_precision: Literal["auto", "no", "bf16"] = option("auto", "bf16, no, or auto: bf16 where it is fast.")
    seed: int = option(0, "Decides the held-out part, sample order and dropout.")
    dry_run: bool = option(False, "Show what would be learned; nothing is trained or written.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "batch_size", "max_steps", above=0)
        check_range(self, "max_epochs", "learning_rate", above=0)
        check_range(self, "warmup_steps", "eval_steps", "seed", at_least=0)
