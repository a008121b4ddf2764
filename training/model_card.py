"""README.md of a checkpoint, and of an adapter: what it is, how to load it, how it was made."""

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lacuna.common.private import without_places

from .adapters import Adapter, num_weights
from .arguments import TrainingArguments

_CARD = """\
---
library_name: transformers
{metadata}tags:
- lacuna
---

# {title}

A `{family}` {shape} with {parameters} parameters, trained with Lacuna{objective}.

```python
from transformers import AutoTokenizer, {auto_class}

tokenizer = AutoTokenizer.from_pretrained("PATH"{trust})
model = {auto_class}.from_pretrained("PATH"{trust})
```

{code}| training | |
|---|---|
| steps | {steps} |
| tokens seen | {tokens} |
{rows}
"""

_CODE = """\
The modelling code is in this folder, so that nothing but `transformers` is needed; `trust_remote_code=True` runs it.

"""

_ADAPTER_CARD = """\
---
library_name: peft
{metadata}tags:
- lora
- lacuna
---

# Low-rank additions to `{base}`

Rank {rank}, alpha {alpha}, for a `{class_name}`, learned with Lacuna.

```python
from peft import PeftConfig, PeftModel
from transformers import {auto_class}, AutoTokenizer

folder = "PATH"
base = PeftConfig.from_pretrained(folder).base_model_name_or_path
tokenizer = AutoTokenizer.from_pretrained(base{trust})
model = {auto_class}.from_pretrained({options})
model = PeftModel.from_pretrained(model, folder)
```

`base` is the model that the additions were learned on, as `adapter_config.json` names it: a Hub id, or the folder in
which it was then. Where it has moved since, give its new place.
"""

_AUTO_CLASSES = {"ForConditionalGeneration": "AutoModelForSeq2SeqLM", "LMHeadModel": "AutoModelForCausalLM"}
"""By how the class of a native model ends; for all other heads the Auto class ends as they do."""

_OF_CLASSIFIERS = ("id2label", "problem_type", "classifier_pooling", "pad_token_id")
"""What fine-tuning writes into the configuration of a model with labels."""

_MOST_SHOWN = 12
"""Items of a list that a table has room for."""

_LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "safetensors")


def model_card(
    *,
    model: Any,
    run_info: dict[str, Any],
    step: int,
    tokens: int,
    metrics: dict[str, float],
    baseline: dict[str, float] | None = None,
    choices: dict[str, str] | None = None,
) -> str:
    """The text of the card; it names no host, no user and no folder of theirs.

    Args:
        run_info: `objective` (words after "by"), and of a fine-tuned model `model` (what it was made from), `task`
            (options of the data by name), `examples` and `held_out` (how many), `command`.
        metrics: held-out ones, named `eval_...`.
        baseline: what is reached without a model, named `baseline_...`.
        choices: what it was made with, by name.
    """
    config = model.config
    has_code = bool(getattr(config, "auto_map", None))
    objective = f" by {run_info['objective']}" if "objective" in run_info else ""
    base = run_info.get("model") if "task" in run_info else None
    card = _CARD.format(
        metadata=_base_model(base),
        title=type(model).__name__,
        family=config.model_type,
        shape=getattr(config, "shape", "model"),
        parameters=f"{num_weights(model) / 1e6:.1f} M",
        objective=objective + (f", from `{without_places(base)}`" if base else ""),
        auto_class=auto_class(model),
        trust=", trust_remote_code=True" if has_code else "",
        code=_CODE if has_code else "",
        steps=f"{step:,}",
        tokens=f"{tokens:,}",
        rows="\n".join([*_rows(choices or {}), *_metrics(metrics, baseline or {})]),
    )
    return "\n".join([card, *_data(run_info), *_origin(run_info)]) if "task" in run_info else card


def adapter_card(model: Any, adapter: Adapter) -> str:
    """README.md of an adapter: the code that puts it into the model that it was learned on."""
    config, base = model.config, adapter.config.base_model_name_or_path
    trust = ["trust_remote_code=True"] if getattr(config, "auto_map", None) else []
    options = []
    if adapter.config.task_type in ("SEQ_CLS", "TOKEN_CLS"):  # their heads are as the labels are
        found = {name: getattr(config, name, None) for name in _OF_CLASSIFIERS}
        options = [f"{name}={value!r}" for name, value in found.items() if value is not None]
        options.append("ignore_mismatched_sizes=True")
    return _ADAPTER_CARD.format(
        metadata=_base_model(base),
        base=without_places(base),
        rank=adapter.config.r,
        alpha=adapter.config.lora_alpha,
        class_name=type(model).__name__,
        auto_class=auto_class(model),
        trust="".join(f", {word}" for word in trust),
        options=", ".join(["base", *trust, *options]),
    )


def auto_class(model: Any) -> str:
    """The name of the Auto class that loads a model with its head."""
    class_name = type(model).__name__
    auto_map = getattr(model.config, "auto_map", None) or {}
    named = {target.split(".")[-1]: auto for auto, target in auto_map.items()}
    if class_name in named:
        return named[class_name]
    prefix = class_name.find("For")
    alike = f"AutoModel{class_name[prefix:]}" if prefix > 0 else "AutoModel"
    return next((auto for end, auto in _AUTO_CLASSES.items() if class_name.endswith(end)), alike)


def choices_of(plan: TrainingArguments, *, epochs: float, precision: str, ended_early: bool = False) -> dict[str, str]:
    """What a run was made with, by name, with defaults filled in.

    Args:
        plan: the options, resolved.
        epochs: passes over the data that were made.
        precision: "bf16" or "no".
        ended_early: whether `early_stopping_patience` ended the run.
    """
    planned = f"before the {plan.max_steps:,} steps that were planned: " if plan.max_steps else ""
    early = f"{planned}{plan.early_stopping_patience} evaluations in a row without a better one"
    alpha = 2.0 * plan.lora_rank if plan.lora_alpha is None else plan.lora_alpha
    return {
        **({"ended early": early} if ended_early else {}),
        "epochs": f"{epochs:.2f}",
        "batch size": str(plan.batch_size),
        "optimizer": plan.optimizer,
        "learning rate": f"{plan.learning_rate:g} at its peak, schedule {plan.schedule}",
        **({"LoRA": f"rank {plan.lora_rank}, alpha {alpha:g}"} if plan.lora_rank else {}),
        **({"frozen": "the backbone"} if plan.freeze_backbone else {}),
        "precision": "bf16" if precision == "bf16" else "float32",
        "seed": str(plan.seed),
    }


def _rows(table: dict[str, str]) -> list[str]:
    return [f"| {name} | {value} |" for name, value in table.items()]


def _metrics(metrics: dict[str, float], baseline: dict[str, float]) -> list[str]:
    """Rows of the table above; or a table of its own, where something stands beside them."""
    names = [name.removeprefix("eval_") for name in metrics]
    if not any(f"baseline_{name}" in baseline for name in names):
        return [f"| {name} (held out) | {metrics[f'eval_{name}']:.4f} |" for name in names]
    rows = []
    for name in names:
        other = baseline.get(f"baseline_{name}")
        rows.append(f"| {name} | {metrics[f'eval_{name}']:.4f} | {'' if other is None else f'{other:.4f}'} |")
    return ["", "## Scores", "", "| held out | this model | without a model |", "|---|---|---|", *rows]


def _data(run_info: dict[str, Any]) -> list[str]:
    """What it was fine-tuned on, as far as the options say; what was left to the model is not among it."""
    options = {name: value for name, value in run_info["task"].items() if value not in (None, [], "auto")}
    counts = []
    if "examples" in run_info:
        counts = [f"| examples | {run_info['examples']:,} to learn from, {run_info['held_out']:,} held out |"]
    rows = _rows({name: _shown(value) for name, value in options.items()})
    return ["## Data", "", "| data | |", "|---|---|", *rows, *counts, ""]


def _shown(value: Any) -> str:
    text = str(value)
    if isinstance(value, list | tuple):
        more = [f"and {len(value) - _MOST_SHOWN:,} more"] if len(value) > _MOST_SHOWN else []
        text = ", ".join([*map(str, value[:_MOST_SHOWN]), *more])
    return f"`{without_places(text).replace('|', chr(92) + '|')}`"


def _origin(run_info: dict[str, Any]) -> list[str]:
    """The command, and what it ran on."""
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in _LIBRARIES)]
    for name in ("lacuna", "peft"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    command = ["```", str(run_info["command"]), "```", ""] if "command" in run_info else []
    made = [*command, f"with {', '.join(versions)}.", ""] if command else [", ".join(versions), ""]
    return ["## Made by", "", *made]


def _base_model(name: str | None) -> str:
    """What the Hub reads: the model that this one was made from, if it knows that."""
    return f"base_model: {name}\n" if name and _is_hub_id(name) else ""


def _is_hub_id(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", name)) and not Path(name).exists()
