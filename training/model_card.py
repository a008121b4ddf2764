"""README.md of a checkpoint: what it is, how to load it, how it was made."""

from typing import Any

_CARD = """\
---
library_name: transformers
tags:
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


def model_card(*, model: Any, run_info: dict[str, Any], step: int, tokens: int, metrics: dict[str, float]) -> str:
    """The text of the card; it names no host, user or absolute path."""
    config = model.config
    class_name = type(model).__name__
    auto_map = getattr(config, "auto_map", None) or {}
    named = {target.split(".")[-1]: auto for auto, target in auto_map.items()}
    prefix = class_name.find("For")
    auto_class = named.get(class_name) or (f"AutoModel{class_name[prefix:]}" if prefix > 0 else "AutoModel")
    rows = "\n".join(f"| {name.removeprefix('eval_')} (held out) | {value:.4f} |" for name, value in metrics.items())
    objective = f" by {run_info['objective']}" if "objective" in run_info else ""
    return _CARD.format(
        title=f"{class_name}",
        family=config.model_type,
        shape=getattr(config, "shape", "model"),
        parameters=f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} M",
        objective=objective,
        auto_class=auto_class,
        trust=", trust_remote_code=True" if auto_map else "",
        code=_CODE if auto_map else "",
        steps=f"{step:,}",
        tokens=f"{tokens:,}",
        metrics=rows,
    )
