"""README.md of a checkpoint, and of an adapter: what it is, how to load it, how it was made."""

import math
import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData, metadata_load
from yaml import YAMLError

from lacuna.common.hub import HERE, HUB_NAME
from lacuna.common.private import without_places
from lacuna.common.work import BESIDE

from ..arguments import TrainingArguments
from ..optimizers.adapters import Adapter, num_weights

_MODEL_CODE = """\
from transformers import AutoTokenizer, {auto_class}

{here}
tokenizer = AutoTokenizer.from_pretrained(path{trust})
model = {auto_class}.from_pretrained(path{trust})"""

_ADAPTER_CODE = """\
from peft import PeftConfig, PeftModel
from transformers import {auto_class}, AutoTokenizer

{here}
base = PeftConfig.from_pretrained(path).base_model_name_or_path
tokenizer = AutoTokenizer.from_pretrained(path{trust})
model = {auto_class}.from_pretrained(base{trust}{labels})
model = PeftModel.from_pretrained(model, path)"""

_ENCODER_CODE = """\
from sentence_transformers import SentenceTransformer

{here}
encoder = SentenceTransformer(path{trust})
vectors = encoder.encode(["a text", "another text"])
print(encoder.similarity(vectors, vectors))"""

_CARRIES_CODE = """\
The modelling code is in this folder, so that nothing but `transformers` is needed; `trust_remote_code=True` runs it.

"""

_BASE_OF_ADAPTER = """\
`base` is the model that the adapter was trained on, as `adapter_config.json` names it: a Hub id, or the folder in
which it was then. Where it has moved since, give its new place.
"""

_AUTO_CLASSES = {"ForConditionalGeneration": "AutoModelForSeq2SeqLM", "LMHeadModel": "AutoModelForCausalLM"}
"""By how the class of a native model ends; for all other heads the Auto class ends as they do."""

_PIPELINES = {"": "feature-extraction", "ForCausalLM": "text-generation", "ForSeq2SeqLM": "text2text-generation"}
_PIPELINES |= {"ForMaskedLM": "fill-mask", "ForPreTraining": "fill-mask", "ForMultipleChoice": "multiple-choice"}
_PIPELINES |= {"ForSequenceClassification": "text-classification", "ForTokenClassification": "token-classification"}
_PIPELINES |= {"ForQuestionAnswering": "question-answering"}
"""What the Hub calls what they do, by how their Auto classes end."""

_LIMITS = """
## Limits and intended use

It is meant for text like that it was trained on, whose language, errors and bias it has taken over; what was not there
it does not know. Scores here are of held-out examples, by default of the same source: on other text they may be worse.
Nobody has examined whether it does harm, is unfair or repeats personal data: whoever relies on it has to.
"""

_OF_CLASSIFIERS = ("id2label", "problem_type", "classifier_pooling", "pad_token_id")
"""What fine-tuning writes into the configuration of a model with labels."""

_MOST_SHOWN = 12  # items of a list in a table
_LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "safetensors", "lacuna", "peft")


def model_card(
    *,
    model: Any,
    run_info: dict[str, Any],
    step: int,
    tokens: int | None = None,
    metrics: dict[str, float],
    baseline: dict[str, float] | None = None,
    choices: dict[str, str] | None = None,
    curves: bool = False,
    code: str = _MODEL_CODE,
) -> str:
    """The text of the card; it names no host, no user and no folder of theirs.

    Args:
        run_info: `objective` (words after "by"), `model` (the base); of a fine-tuned model `task` (options of the data
            by name), `examples` and `held_out` (how many), `command`; of one that was pretrained the options of its
            text, and with `--for` `self_pretraining` (`file` and number of `texts` of each).
        metrics, baseline: named as in results.json.
        choices: what it was made with, by name.
        curves: whether curves.png is beside it.
        code: a template of what loads it.
    """
    config, base = model.config, run_info.get("model")
    shape, size = getattr(config, "shape", "model"), f"{num_weights(model) / 1e6:.1f} M"
    objective = f" by {run_info['objective']}" if "objective" in run_info else ""
    origin = f", from `{without_places(base)}`" if base else ""
    rows = {"steps": f"{step:,}", **({} if tokens is None else {"tokens seen": f"{tokens:,}"}), **(choices or {})}
    if own := run_info.get("self_pretraining"):
        parts = [f"{each['texts']:,} of `{without_places(each['file'])}`" for each in own]
        rows["texts of a task"] = f"{run_info['for_share']:.0%} of the rows, without labels: {', '.join(parts)}"
    own, beside = {name.removeprefix("eval_"): value for name, value in metrics.items()}, baseline or {}
    scores = {"": own}
    for part, what in BESIDE.items():
        if known := {name: beside[f"{part}_{name}"] for name in own if f"{part}_{name}" in beside}:
            scores[what] = known
    if len(scores) == 1:
        rows |= {f"{name} (held out)": f"{score:.4f}" for name, score in own.items()}
    sections = [_table(("training", ""), rows.items())]
    if len(scores) > 1:
        lines = [[name, *(f"{each[name]:.4f}" if name in each else "" for each in scores.values())] for name in own]
        sections.append("## Scores\n\n" + _table(("held out", *(whose or "this model" for whose in scores)), lines))
    sections += ["## Curves\n\n![loss, held-out scores, learning rate and speed](curves.png)\n"] if curves else []
    sections += [_data(run_info), _origin(run_info)] if "task" in run_info else []
    carries = _CARRIES_CODE if code is _MODEL_CODE and getattr(config, "auto_map", None) else ""
    summary = f"A `{config.model_type}` {shape} with {size} parameters, trained with Lacuna{objective}{origin}."
    return _card(
        model,
        run_info,
        opening=f"# {type(model).__name__}\n\n{summary}",
        code=code,
        rest=carries + "\n".join(sections),
        scores=scores,
    )


def encoder_card(model: Any, run_info: dict[str, Any], results: dict[str, float], **choices: str) -> str:
    """README.md of the folder that sentence-transformers loads a model from; `results` are those of results.json."""
    metrics = {name: value for name, value in results.items() if name.startswith("eval_")}
    given = {"model": model, "run_info": run_info, "step": int(results["steps"]), "choices": choices}
    return model_card(**given, metrics=metrics, baseline=results, code=_ENCODER_CODE)


def adapter_card(model: Any, adapter: Adapter) -> str:
    """README.md of an adapter: the code that puts it into the model that it was trained on."""
    config, labels = adapter.config, ""
    if config.task_type in ("SEQ_CLS", "TOKEN_CLS"):  # their heads are as the labels are
        found = {name: getattr(model.config, name, None) for name in _OF_CLASSIFIERS}
        labels = "".join(f", {name}={value!r}" for name, value in found.items() if value is not None)
        labels += ", ignore_mismatched_sizes=True"
    size = f"Rank {config.r}, alpha {config.lora_alpha}"
    return _card(
        model,
        {"model": config.base_model_name_or_path},
        opening=f"# LoRA adapter for `{without_places(config.base_model_name_or_path)}`\n\n{size}, for a "
        f"`{type(model).__name__}`, trained with Lacuna.",
        code=_ADAPTER_CODE,
        rest=_BASE_OF_ADAPTER,
        labels=labels,
    )


def _card(
    model: Any, run_info: dict[str, Any], *, opening: str, code: str, rest: str, labels: str = "", scores: Any = None
) -> str:
    """The text and its head, by which the Hub finds and shows it; `scores` of the model ("") and of what is beside."""
    auto, task, base = auto_class(model), run_info.get("task", {}), run_info.get("model")
    kind, library, tags = _PIPELINES.get(auto.removeprefix("AutoModel")), "transformers", ["lacuna"]
    if code is _ADAPTER_CODE:
        library, tags = "peft", ["lora", "lacuna"]
    elif code is _ENCODER_CODE:
        kind, library, tags = "sentence-similarity", "sentence-transformers", ["sentence-transformers", "lacuna"]
    given = [*run_info.get("data", []), *run_info.get("for_file", [])]
    datasets = {str(name).split(":")[0] for name in (task.get("train_file"), *given)}
    is_builtin = "data" in run_info and not (given or run_info.get("corpus"))
    language, of_base = run_info.get("language", "en"), None
    with suppress(OSError, ValueError, YAMLError):  # the card of a model on the disk
        of_base = (metadata_load(Path(str(base), "README.md")) or {}).get("language")
    where = without_places(task.get("eval_file") or "held out of the same source")
    results = [
        EvalResult(kind or "other", "unknown", where, f"{name} ({whose})" if whose else name, round(value, 4))
        for whose, values in (scores or {}).items()
        for name, value in values.items()
        if math.isfinite(value)
    ]
    head = ModelCardData(
        library_name=library,
        base_model=base if _is_on_hub(str(base)) else None,
        datasets=sorted(filter(_is_on_hub, datasets)) or None,
        # Left as it is, it says nothing: only sentences are split by it.
        language=re.split("[-_]", language)[0].lower() if is_builtin or language != "en" else of_base,
        pipeline_tag=kind,
        tags=tags,
        eval_results=results or None,
        model_name=type(model).__name__ if results else None,
    )
    trust = ", trust_remote_code=True" if getattr(model.config, "auto_map", None) else ""
    loading = code.format(auto_class=auto, here=HERE, trust=trust, labels=labels)
    text = f"{opening}\n\n```python\n{loading}\n```\n\n{rest}{_LIMITS}"
    return str(ModelCard(f"---\n{head.to_yaml()}\n---\n\n{text}"))


def _is_on_hub(name: str) -> bool:
    return bool(HUB_NAME.fullmatch(name)) and not Path(name).parent.exists()


def auto_class(model: Any) -> str:
    """The name of the Auto class that loads a model with its head."""
    class_name, auto_map = type(model).__name__, getattr(model.config, "auto_map", None) or {}
    named = {target.split(".")[-1]: auto for auto, target in auto_map.items()}
    _, head, task = class_name.partition("For")
    ends = (auto for end, auto in _AUTO_CLASSES.items() if class_name.endswith(end))
    return named.get(class_name) or next(ends, f"AutoModel{head}{task}")


def choices_of(
    arguments: TrainingArguments, *, epochs: float, precision: str, ended_early: bool = False
) -> dict[str, str]:
    """The options that made a model, by name; `ended_early` by `early_stopping_patience`."""
    planned = f"before the {arguments.max_steps:,} steps that were planned: " if arguments.max_steps else ""
    early = f"{planned}{arguments.early_stopping_patience} evaluations in a row without a better one"
    alpha = 2.0 * arguments.lora_rank if arguments.lora_alpha is None else arguments.lora_alpha
    found = {
        "ended early": early if ended_early else "",
        "epochs": f"{epochs:.2f}",
        "batch size": str(arguments.batch_size),
        "optimizer": arguments.optimizer,
        "learning rate": f"{arguments.learning_rate:g} at its peak, schedule {arguments.schedule}",
        "LoRA": f"rank {arguments.lora_rank}, alpha {alpha:g}" if arguments.lora_rank else "",
        "weights": f"the mean of {getattr(arguments, 'seeds', 1)} runs" if getattr(arguments, "soup", False) else "",
        "frozen": "the backbone" if arguments.freeze_backbone else "",
        "precision": "float32" if precision == "no" else precision,
        "seed": str(arguments.seed),
    }
    return {name: text for name, text in found.items() if text}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len([*head]), *lines[1:], ""])


def _data(run_info: dict[str, Any]) -> str:
    """What it was fine-tuned on, as far as the options say; what was left to the model is not among it."""
    rows = {}
    for name, value in run_info["task"].items():
        if value not in (None, [], "auto"):
            parts = [*map(str, value)] if isinstance(value, list | tuple) else [str(value)]
            more = [f"and {len(parts) - _MOST_SHOWN:,} more"] if len(parts) > _MOST_SHOWN else []
            text = without_places(", ".join([*parts[:_MOST_SHOWN], *more])).replace("|", r"\|")
            rows[name] = f"`{text}`"
    if "examples" in run_info:
        rows["examples"] = f"{run_info['examples']:,} to train on, {run_info['held_out']:,} held out"
    return "## Data\n\n" + _table(("data", ""), rows.items())


def _origin(run_info: dict[str, Any]) -> str:
    """The command, and what it ran on."""
    versions = [f"Python {platform.python_version()}"]
    for name in (*_LIBRARIES, *run_info.get("libraries", ())):
        with suppress(PackageNotFoundError):  # not installed, or run from its folder
            versions.append(f"{name} {version(name)}")
    command = f"```\n{run_info['command']}\n```\n\nwith " if "command" in run_info else ""
    return f"## Made by\n\n{command}{', '.join(versions)}.\n"
