"""Probes: what a model knows while it is pretrained, scored at its evaluations or at steps of their own."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lacuna.common.errors import InputError
from lacuna.common.files import json_lines, write_text
from lacuna.common.options import Arguments, check_range, option

from .language_model import LanguageModel, dense_logits, find_kind
from .minimal_pairs import encode_sentences, group_pairs, measure_minimal_pairs

SAMPLES = "samples.jsonl"
NEW_TOKENS = 24
_probe = partial(option, group="probes", advanced=True)


@dataclass
class ProbeArguments(Arguments):
    """What to ask the model while it learns, beside its held-out loss, and when."""

    probe: list[str] = _probe(  # noqa: RUF009
        [],
        "Minimal pairs that are scored at every --probe_steps: .jsonl files or folders as BLiMP comes.",
        metavar="PATH",
    )
    probe_examples: int = _probe(5, "Pairs of each paradigm that --probe takes.")
    probe_steps: float = _probe(
        0,
        "Steps from one time that --probe and --probe_prompts are asked to the next; below 1, a fraction of the run; "
        "0: at every --eval_steps. They are asked at the end in any case.",
    )
    probe_prompts: str | None = _probe(
        None,
        "File with a prompt a line, for an encoder with [MASK] in it; what the model makes of them at every "
        "--probe_steps is added to samples.jsonl.",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        check_range(self, "probe_examples", at_least=1)
        self.check_steps("probe_steps")
        if self.probe_steps and not (self.probe or self.probe_prompts):
            raise InputError("--probe_steps says when --probe and --probe_prompts are asked: give one of them with it")


class Probe:
    """Asks a model in training; it draws no random number and leaves the weights alone."""

    def __init__(
        self,
        arguments: ProbeArguments,
        *,
        rows: Iterable[tuple[Mapping[str, Any], str, int]],
        tokenizer: Any,
        model: Any,
    ) -> None:
        """Take fields, path and line of each pair of --probe, for an encoder or a decoder that predicts tokens.

        Raises InputError: it is another model, there is no pair, or a prompt that cannot be asked.
        """
        kind = find_kind(model.config, architecture=type(model).__name__)
        self.tokenizer, self.pairs, self.steps = tokenizer, {}, arguments.probe_steps
        if arguments.probe:
            self.pairs = group_pairs(rows=rows, max_examples=arguments.probe_examples)
            sentences = [sentence for group in self.pairs.values() for pair in group for sentence in pair]
            encode_sentences(LanguageModel.of(model=model, tokenizer=tokenizer), sentences)  # none is too long
        self.baseline = {"minimal_pairs": 0.5} if self.pairs else {}
        self.prompts = _read_prompts(arguments.probe_prompts, mask=tokenizer.mask_token if kind == "masked" else None)

    def __call__(self, model: Any, step: int, folder: Path | None) -> dict[str, float]:
        """`minimal_pairs`, the accuracy on the pairs; what it says goes into `samples.jsonl` of the folder, if any."""
        asked = LanguageModel.of(model=model, tokenizer=self.tokenizer)
        if self.prompts and folder is not None:
            path = folder / SAMPLES
            lines = [line for line in json_lines(path) if line["step"] < step]  # a run taken up again says it again
            lines += [{"step": step, "prompt": prompt, "text": self._say(asked, prompt)} for prompt in self.prompts]
            write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        if not self.pairs:
            return {}
        return {"minimal_pairs": measure_minimal_pairs(language_model=asked, pairs=self.pairs)["accuracy"]}

    @torch.no_grad()
    def _say(self, asked: LanguageModel, prompt: str) -> str:
        """The prompt with its masks filled, or with the likeliest tokens behind it."""
        limit = asked.max_length or len(prompt)
        ids = self.tokenizer(prompt, return_tensors="pt", truncation=True, max_length=limit).input_ids
        ids = ids.to(asked.model.device)
        if asked.kind == "masked":
            places = ids == self.tokenizer.mask_token_id
            ids[places] = dense_logits(asked.model, input_ids=ids)[places].argmax(dim=-1)
        else:
            for _ in range(min(NEW_TOKENS, limit - ids.shape[1])):
                ids = torch.cat([ids, dense_logits(asked.model, input_ids=ids)[:, -1:].argmax(dim=-1)], dim=1)
        return str(self.tokenizer.decode(ids[0], skip_special_tokens=True))


def _read_prompts(file: str | None, *, mask: str | None) -> list[str]:
    if file is None:
        return []
    try:
        prompts = [line for line in Path(file).expanduser().read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--probe_prompts {file} cannot be read: {error}") from error
    for number, prompt in enumerate(prompts, start=1):
        if mask is not None and mask not in prompt:
            raise InputError(f"--probe_prompts {file}:{number}: there is no {mask} to fill in {prompt!r}")
    if not prompts:
        raise InputError(f"--probe_prompts {file} has no prompt: write one a line")
    return prompts
