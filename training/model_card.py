"""README.md of a checkpoint: what it is, how to load it, how it was made."""

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .adapters import num_weights
from .shown import without_places

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
{metrics}
"""

_CODE = """\
The modelling code is in this folder, so that nothing but `transformers` is needed; `trust_remote_code=True` runs it.

"""

_LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "safetensors")


def model_card(
    *,
    model: Any,
    run_info: dict[str, Any],
    step: int,
    tokens: int,
    metrics: dict[str, float],
    baseline: dict[str, float] | None = None,
) -> str:
    """The text of the card; it names no host, user or absolute path.

    Args:
        run_info: `objective` (words after "by"), and of a fine-tuned model `model` (what it was made from), `task`
            (options of the data by name), `examples` and `held_out` (how many), `command`.
        metrics: held-out ones, named `eval_...`.
        baseline: what is reached without a model, named `baseline_...`.
    """
    config = model.config
    class_name = type(model).__name__
    auto_map = getattr(config, "auto_map", None) or {}
    named = {target.split(".")[-1]: auto for auto, target in auto_map.items()}
    prefix = class_name.find("For")
    auto_class = named.get(class_name) or (f"AutoModel{class_name[prefix:]}" if prefix > 0 else "AutoModel")
    objective = f" by {run_info['objective']}" if "objective" in run_info else ""
    base = run_info.get("model") if "task" in run_info else None
    card = _CARD.format(
        metadata=f"base_model: {base}\n" if base and _is_hub_id(base) else "",
        title=f"{class_name}",
        family=config.model_type,
        shape=getattr(config, "shape", "model"),
        parameters=f"{num_weights(model) / 1e6:.1f} M",
        objective=objective + (f", from `{without_places(base)}`" if base else ""),
        auto_class=auto_class,
        trust=", trust_remote_code=True" if auto_map else "",
        code=_CODE if auto_map else "",
        steps=f"{step:,}",
        tokens=f"{tokens:,}",
        metrics=_metrics(metrics, baseline or {}),
    )
    return "\n".join([card, *_data(run_info), *_origin(run_info)]) if "task" in run_info else card


def _metrics(metrics: dict[str, float], baseline: dict[str, float]) -> str:
    """Rows of the table above; or a table of its own, where something stands beside them."""
    names = [name.removeprefix("eval_") for name in metrics]
    if not any(f"baseline_{name}" in baseline for name in names):
        return "\n".join(f"| {name} (held out) | {metrics[f'eval_{name}']:.4f} |" for name in names)
    rows = []
    for name in names:
        other = baseline.get(f"baseline_{name}")
        rows.append(f"| {name} | {metrics[f'eval_{name}']:.4f} | {'' if other is None else f'{other:.4f}'} |")
    return "\n".join(["", "| held out | this model | without a model |", "|---|---|---|", *rows])


def _data(run_info: dict[str, Any]) -> list[str]:
    """What it was fine-tuned on, as far as the options say."""
    options = {name: value for name, value in run_info["task"].items() if value is not None and value != []}
    counts = []
    if "examples" in run_info:
        counts = [f"| examples | {run_info['examples']:,} to learn from, {run_info['held_out']:,} held out |"]
    rows = [f"| {name} | {_shown(value)} |" for name, value in options.items()]
    return ["| data | |", "|---|---|", *rows, *counts, ""]


def _shown(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
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
    return ["Made by", "", *command, f"with {', '.join(versions)}.", ""] if command else [", ".join(versions), ""]


def _is_hub_id(name: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", name)) and not Path(name).exists()
