"""What every task does to its inputs: agree with the model on lengths and ids, and pad a batch to its longest row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.errors import TaskError

MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


def longest_input(*, config: Any, tokenizer: Any) -> int | None:
    """Most tokens that model and tokenizer take, special tokens included; None when neither has a limit.

    Args:
        config: the model's configuration.
        tokenizer: its tokenizer; transformers writes "no limit" as a number near 1e30.
    """
    limits = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    finite = [int(limit) for limit in limits if limit is not None and 0 < limit < 10**9]
    return min(finite) if finite else None


def resolve_max_length(*, asked: int | None, default: int, config: Any, tokenizer: Any) -> int:
    """The length to cut inputs to: what was asked for, else the smaller of `default` and what the model takes.

    Raises:
        TaskError: more was asked for than the model takes.
    """
    limit = longest_input(config=config, tokenizer=tokenizer)
    if asked is None:
        return default if limit is None else min(default, limit)
    if limit is not None and asked > limit:
        raise TaskError(f"--max_length {asked} is more than the {limit} tokens that the model takes: lower it")
    return asked


def check_tokenizer(*, tokenizer: Any, embedding_rows: int) -> None:
    """Refuse a tokenizer that does not belong to the model.

    Args:
        embedding_rows: rows of the model's input embedding; ids must lie below.

    Raises:
        TaskError: ids beyond the embedding, or no padding token to make batches with.
    """
    if len(tokenizer) > embedding_rows:
        raise TaskError(
            f"the tokenizer has {len(tokenizer)} ids but the model embeds only {embedding_rows}: "
            "--model must name a folder whose tokenizer was trained with its model"
        )
    if tokenizer.pad_token_id is None:
        raise TaskError(
            "the tokenizer has no padding token, which batches of texts of different length need: "
            "set tokenizer.pad_token (often to its eos_token) and save it in the folder of --model"
        )


def tokenizer_inputs(encoding: Mapping[str, Any], number: int) -> dict[str, np.ndarray]:
    """What a tokenizer made of text `number`, kept small: int32 [length] for ids, int8 for segments."""
    inputs = {"input_ids": np.asarray(encoding["input_ids"][number], dtype=np.int32)}
    if "token_type_ids" in encoding:
        inputs["token_type_ids"] = np.asarray(encoding["token_type_ids"][number], dtype=np.int8)
    return inputs


def pad_inputs(*, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> dict[str, Tensor]:
    """Pad the inputs of a batch to its longest example, on the tokenizer's padding side.

    Args:
        examples: each with `input_ids` [length] and, where the tokenizer makes them, `token_type_ids` [length].

    Returns:
        int64 tensors [batch, longest]: `input_ids`, `attention_mask` (1 for tokens, 0 for padding), `token_type_ids`.
    """
    longest = max(len(example["input_ids"]) for example in examples)
    fill = {"input_ids": tokenizer.pad_token_id, "token_type_ids": getattr(tokenizer, "pad_token_type_id", 0)}
    names = [name for name in fill if name in examples[0]]
    batch = {name: torch.full((len(examples), longest), fill[name], dtype=torch.long) for name in names}
    batch["attention_mask"] = torch.zeros((len(examples), longest), dtype=torch.long)
    for position, example in enumerate(examples):
        length = len(example["input_ids"])
        place = slice(longest - length, None) if tokenizer.padding_side == "left" else slice(0, length)
        batch["attention_mask"][position, place] = 1
        for name in names:
            batch[name][position, place] = torch.from_numpy(example[name].astype(np.int64))
    return batch


def model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a batch that a model's forward takes; labels stay out, since the task computes the loss."""
    return {name: batch[name] for name in MODEL_INPUTS if name in batch}
