"""What `ablations.py` compares: two base runs, and what is changed in them, one thing at a time."""

from dataclasses import dataclass, field
from typing import Any, Literal

from held_out import Kind

TRAINING = {
    "optimizer": "muon",
    "learning_rate": 6e-3,
    "batch_size": "64",
    "schedule": "wsd",
    "warmup_steps": 0.05,
    "weight_decay": 0.01,
    "compile": "on",
}


@dataclass(frozen=True)
class Base:
    """A run to which others are compared.

    Attributes:
        document_boundary: lines are documents where held-out lines have special tokens around them.
        config: fields of `LacunaConfig`, over those of family and size.
        training: of `TrainingArguments`. objective: of `ObjectiveArguments`.
    """

    kind: Kind
    head: str
    family: str
    document_boundary: Literal["file", "line"]
    size: str = "tiny"
    config: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=lambda: dict(TRAINING))
    objective: dict[str, Any] = field(default_factory=dict)


BASES = {
    "mlm": Base("masked", "AutoModelForMaskedLM", "lacuna", "line", objective={"mask_probability": "0.3"}),
    "clm": Base("causal", "AutoModelForCausalLM", "qwen3", "file"),
}


@dataclass(frozen=True)
class Variant:
    """What is changed in a base.

    Attributes:
        of: the bases in which it is a change.
        same_speed: a step is the same work as in the base, so that its time need not be measured.
        across: attention goes over the whole row, not only inside documents.
    """

    config: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, Any] = field(default_factory=dict)
    of: tuple[str, ...] = ("mlm", "clm")
    same_speed: bool = False
    across: bool = False

    def changes(self) -> dict[str, Any]:
        """All that differs from the base."""
        parts = {name: value for name in ("config", "training", "objective") if (value := getattr(self, name))}
        return {**parts, **({"across": True} if self.across else {})}

    def describe(self) -> str:
        """The changes in one line."""
        flat = {**self.config, **self.training, **self.objective}
        words = [f"{name} {_shown(value)}" for name, value in flat.items()]
        return ", ".join([*words, "attention across documents"] if self.across else words) or "the base"


def _shown(value: Any) -> str:
    return f"all {value[0]}" if isinstance(value, list) and len(set(value)) == 1 else str(value)


def _trained(**changes: Any) -> Variant:
    return Variant(training=changes, same_speed=True)


NOTHING = "base"
_RATE = float(str(TRAINING["learning_rate"]))
_MLM, _CLM = ("mlm",), ("clm",)
_WIDE = {"hidden_size": 512, "num_attention_heads": 8}

VARIANTS: dict[str, Variant] = {
    NOTHING: Variant(same_speed=True),
    "adamw": Variant(training={"optimizer": "adamw", "learning_rate": 1e-3}),
    "adamw_faster": Variant(training={"optimizer": "adamw", "learning_rate": 3e-3}),
    "rate_half": _trained(learning_rate=0.5 * _RATE),
    "rate_double": _trained(learning_rate=2 * _RATE),
    "rate_quarter": _trained(learning_rate=0.25 * _RATE),
    "schedule_linear": _trained(schedule="linear"),
    "schedule_cosine": _trained(schedule="cosine"),
    "warmup_none": _trained(warmup_steps=0),
    "warmup_long": _trained(warmup_steps=0.15),
    "decay_all": _trained(decay_share=1.0),
    "weight_decay_none": _trained(weight_decay=0.0),
    "weight_decay_0.1": _trained(weight_decay=0.1),
    "average_ema": Variant(training={"average": "ema"}),
    "average_tail": Variant(training={"average": "tail"}),
    "batch_ramp": Variant(training={"batch_size": "32,64", "batch_size_at": "0,0.3"}),
    "batch_32": Variant(training={"batch_size": "32"}),
    "length_ramp": Variant(objective={"sequence_length": "64,128", "sequence_length_at": "0,0.5"}),
    "mask_15": Variant(objective={"mask_probability": "0.15"}, of=_MLM),
    "mask_30_to_15": Variant(objective={"mask_probability": "0.3,0.15"}, of=_MLM),
    "mask_only": Variant(objective={"mask_replace_prob": 1.0, "random_replace_prob": 0.0}, of=_MLM, same_speed=True),
    "packing_best_fit": Variant(objective={"packing": "best_fit"}, of=_MLM),
    "packing_none": Variant(objective={"packing": "none"}, of=_MLM),
    "attention_across": Variant(across=True, of=_MLM),
    "no_qk_norm": Variant(config={"qk_norm": False}),
    "zero_init_residual": Variant(config={"zero_init_residual": True}, same_speed=True),
    "full_attention": Variant(config={"layer_types": ["full_attention"] * 6}, of=_MLM),
    "gated_relu": Variant(config={"hidden_act": "relu"}),
    "gated_relu2": Variant(config={"hidden_act": "relu2"}),
    "gated_silu": Variant(config={"hidden_act": "silu"}, of=_MLM),
    "gated_gelu": Variant(config={"hidden_act": "gelu"}, of=_CLM),
    "plain_relu2": Variant(config={"gated_mlp": False, "intermediate_size": 1024, "hidden_act": "relu2"}),
    "plain_gelu": Variant(config={"gated_mlp": False, "intermediate_size": 1024, "hidden_act": "gelu"}),
    "dropout_0.1": Variant(config={"embedding_dropout": 0.1, "hidden_dropout": 0.1}),
    "norm_rms": Variant(config={"norm_type": "rms_norm"}, of=_MLM),
    "norm_layer": Variant(config={"norm_type": "layer_norm"}, of=_CLM),
    "embedding_norm": Variant(config={"embedding_norm": True}, of=_CLM),
    "wide": Variant(config=_WIDE, of=_MLM),
    "wide_rate_half": Variant(config=_WIDE, training={"learning_rate": 0.5 * _RATE}, of=_MLM),
    "wide_rate_0.7": Variant(config=_WIDE, training={"learning_rate": 0.7 * _RATE}, of=_MLM),
    "untied": Variant(config={"tie_word_embeddings": False}),
    "z_loss": Variant(objective={"z_loss": 1e-4}),
}
"""The name of a variant is also that of its part on the disk."""
