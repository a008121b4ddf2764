"""What recipes import, for the server of `processes`: all that starts no threads and reads no environment.

What every run would compute anew is done here once, and nothing forked from here draws curves, which takes a third of
a short run: tests/training draws them.
"""

import gc
from importlib import import_module
from pathlib import Path

from processes import no_curves

ROOMS = ("corpus", "evaluation", "modeling", "objectives", "tasks", "tokenization", "training")
REPOSITORY = Path(__file__).resolve().parent.parent
LIBRARIES = (
    *("accelerate.utils", "datasets", "matplotlib.pyplot", "safetensors.torch", "sentencex", "tokenizers"),
    *("torch.distributed.fsdp", "torch.nn.parallel", "torch.utils.data", "transformers.modeling_utils"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *(
        "transformers.models.bert.modeling_bert",
        "transformers.tokenization_utils_tokenizers",
        "transformers.pipelines",
    ),
)

gc.disable()
for library in LIBRARIES:
    import_module(library)
for path in (path for room in ROOMS for path in (REPOSITORY / room).rglob("[a-z]*.py")):
    import_module(".".join(["lacuna", *path.relative_to(REPOSITORY).with_suffix("").parts]))


import_module("lacuna.training.reports.log").draw_curves = no_curves
import_module("lacuna.tokenization.vocabulary")._likely_classes()
gc.collect()
gc.enable()
gc.freeze()  # a collection would copy every page that a forked process shares with the server
