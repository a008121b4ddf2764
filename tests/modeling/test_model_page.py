"""docs/models.md tells the truth: its table is what the models really are, and its examples run.

To write the table anew after a change: `python -m tests.modeling.test_model_page`.
"""

import re
from pathlib import Path

import pytest
import torch

from lacuna import modeling
from lacuna.modeling import FAMILIES, HEADS, SIZES, LacunaConfig, LacunaModel

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
START, END = "<!-- table: families and sizes -->", "<!-- end of table -->"
VOCABULARY = 32_768


def in_millions(number: int) -> str:
    return f"{number / 1e6:,.1f} M"


def make_table() -> str:
    lines = [
        "| family | size | hidden | layers | heads (key-value) | feed-forward | blocks | all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        for size in SIZES:
            config = LacunaConfig.from_family(family, size, vocab_size=VOCABULARY)
            with torch.device("meta"):
                model = LacunaModel(config, add_pooling_layer=False)
            model.tie_weights()
            stacks = [getattr(model, stack) for stack in config.stacks]
            blocks = sum(parameter.numel() for stack in stacks for parameter in stack.layers.parameters())
            everything = sum(parameter.numel() for parameter in model.parameters())
            layers = " + ".join(str(len(stack.layers)) for stack in stacks)
            heads = f"{config.num_attention_heads} ({config.num_key_value_heads})"
            lines.append(
                f"| `{family}` | `{size}` | {config.hidden_size} | {layers} | {heads} | {config.intermediate_size} | "
                f"{in_millions(blocks)} | {in_millions(everything)} |"
            )
    return "\n".join(lines)


def test_the_table_in_the_docs_is_true() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.split(START)[1].split(END)[0].strip() == make_table()


def test_the_examples_run() -> None:
    names = dict(vars(modeling))
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        exec(example, names)
    assert type(names["native"]).__name__ == "ModernBertForMaskedLM"


@pytest.mark.parametrize("head", sorted({head for heads in HEADS.values() for head in heads.values()}))
def test_every_head_is_listed_with_its_shapes(head: str) -> None:
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{head}` |"))
    shapes = [shape for shape, heads in HEADS.items() if head in heads.values()]
    assert row.split("|")[2].strip() == ("all" if len(shapes) == len(HEADS) else ", ".join(shapes))


if __name__ == "__main__":
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(f"{before}{START}\n{make_table()}\n{END}{rest.split(END)[1]}", encoding="utf-8")
