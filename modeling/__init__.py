"""The Lacuna model: configuration, layers, heads, and conversion to and from native transformers classes.

Importing this package registers the configuration and the heads with the Auto classes of transformers, and marks them
so that `save_pretrained` puts their code into every checkpoint. Such a checkpoint loads anywhere with
`trust_remote_code=True`.
"""

import transformers

from . import modeling_lacuna
from .checks_lacuna import ConfigurationError
from .configuration_lacuna import LacunaConfig
from .conversion import as_ours, from_native, to_native
from .families_lacuna import FAMILIES, HEADS, SIZES
from .modeling_lacuna import (
    LacunaForCausalLM,
    LacunaForConditionalGeneration,
    LacunaForMaskedLM,
    LacunaForMultipleChoice,
    LacunaForPreTraining,
    LacunaForPreTrainingOutput,
    LacunaForQuestionAnswering,
    LacunaForSequenceClassification,
    LacunaForTokenClassification,
    LacunaModel,
    LacunaPreTrainedModel,
)
from .native_families import ConversionError


def _register() -> None:
    transformers.AutoConfig.register(LacunaConfig.model_type, LacunaConfig, exist_ok=True)
    LacunaConfig.register_for_auto_class()
    for heads in HEADS.values():
        for auto_name, head_name in heads.items():
            head = getattr(modeling_lacuna, head_name)
            getattr(transformers, auto_name).register(LacunaConfig, head, exist_ok=True)
            head.register_for_auto_class(auto_name)
    LacunaPreTrainedModel.to_native = to_native  # conversion.py stays at home, and so does what calls it


_register()
