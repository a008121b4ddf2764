"""The options of an evaluation."""

from dataclasses import dataclass
from typing import Literal

from lacuna.common.options import Arguments, check_range, option


@dataclass
class EvaluationArguments(Arguments):
    """Which model to examine, on what, and how."""

    model: str | None = option(None, "A folder or Hub id of a pretrained encoder or decoder.")
    suite: Literal["bits_per_byte", "minimal_pairs"] = option(
        "bits_per_byte",
        "bits_per_byte (how well the model predicts text) or minimal_pairs (does it prefer the grammatical sentence).",
    )
    data: list[str] = option(
        [],
        "Files, folders or globs: text for bits_per_byte (default: the built-in corpus), rows with "
        "sentence_good and sentence_bad for minimal_pairs, one file a paradigm as in BLiMP.",
    )
    text_column: str = option("text", "Column that holds the text, in files that have columns.")
    max_examples: int | None = option(None, "At most this many documents, or pairs of each paradigm. Default: all.")
    window: int | None = option(
        None,
        "bits_per_byte: tokens the model reads at once. Default: 256, or what the model takes if that is less. "
        "Beyond the length it was trained on a model seldom reads well.",
    )
    stride: int | None = option(
        None, "bits_per_byte, decoders: tokens from one window to the next within a document. Default: half a window."
    )
    join_documents: bool = option(
        False, "bits_per_byte, decoders: let windows run over the ends of documents, as if all were one."
    )
    batch_size: int | None = option(None, "Rows the model reads at once. Default: about 8,000 tokens.")
    output_file: str | None = option(
        None, "Where to write the results as JSON. Default: evaluation_SUITE.json in the folder of --model, or here."
    )
    trust_remote_code: bool = option(
        False, "Run the code that a checkpoint of --model carries. Checkpoints of Lacuna do not need it here."
    )

    def __post_init__(self) -> None:
        check_range(self, "max_examples", "stride", "batch_size", at_least=1)
        check_range(self, "window", at_least=2)
