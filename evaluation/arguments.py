"""The options of an evaluation."""

from dataclasses import dataclass, field
from typing import Any, Literal

from lacuna.common.errors import InputError


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class EvaluationArguments:
    """Which model to examine, on what, and how."""

    model: str | None = _option(None, "A folder or Hub id of a pretrained encoder or decoder.")
    suite: Literal["bits_per_byte", "minimal_pairs"] = _option(
        "bits_per_byte",
        "bits_per_byte (how well the model predicts text) or minimal_pairs (does it prefer the grammatical sentence).",
    )
    data: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Files, folders or globs: text for bits_per_byte (default: the built-in corpus), rows with "
            "sentence_good and sentence_bad for minimal_pairs, one file a paradigm as in BLiMP."
        },
    )
    text_column: str = _option("text", "Column that holds the text, in files that have columns.")
    max_examples: int | None = _option(None, "At most this many documents, or pairs of each paradigm. Default: all.")
    window: int | None = _option(
        None,
        "bits_per_byte: tokens the model reads at once. Default: 256, or what the model takes if that is less. "
        "Beyond the length it was trained on a model seldom reads well.",
    )
    stride: int | None = _option(
        None, "bits_per_byte, decoders: tokens from one window to the next within a document. Default: half a window."
    )
    join_documents: bool = _option(
        False, "bits_per_byte, decoders: let windows run over the ends of documents, as if all were one."
    )
    batch_size: int | None = _option(None, "Rows the model reads at once. Default: about 8,000 tokens.")
    output_file: str | None = _option(
        None, "Where to write the results as JSON. Default: evaluation_SUITE.json in the folder of --model, or here."
    )
    trust_remote_code: bool = _option(
        False, "Run the code that a checkpoint of --model carries. Checkpoints of Lacuna do not need it here."
    )

    def __post_init__(self) -> None:
        for name, least in {"max_examples": 1, "window": 2, "stride": 1, "batch_size": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name} must be at least {least}, got {value}")
