"""Loads what a run with additions of low rank has left behind, and writes what it computes.

python loaded_model.py CLASS OUTPUT MODEL [ADAPTER]

The class is one of transformers. Without ADAPTER the model is loaded alone, where there is no `peft`; with it the
adapter is put into the model.
"""

import sys

import torch
import transformers
from safetensors.torch import save_file

IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 0]])


@torch.no_grad()
def outputs(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All that a model says of two rows, of which one is padded."""
    decoded = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    found = model.eval()(input_ids=IDS, attention_mask=(IDS > 0).long(), **decoded)
    return {name: value for name, value in found.items() if name.endswith("logits")}


if __name__ == "__main__":
    torch.set_num_threads(1)
    class_name, output, folder, *adapter = sys.argv[1:]
    if not adapter:
        sys.modules["peft"] = None  # type: ignore[assignment]
    loaded = getattr(transformers, class_name).from_pretrained(folder)
    if adapter:
        import peft

        loaded = peft.PeftModel.from_pretrained(loaded, adapter[0])
    save_file(outputs(loaded), output)
