"""Export a model for other programs: a native class of transformers, ONNX, or GGUF for llama.cpp.

    python recipes/export_model.py --model runs/classifier --format onnx --output_dir runs/onnx
    python recipes/export_model.py --model runs/decoder --format gguf --quantize q8_0 --output_dir runs/gguf
    python recipes/export_model.py --model runs/model --format native --output_dir runs/native

What was written is read again and compared with the model on real text before the folder appears; the comparison is
printed and kept in export_check.json. An ONNX folder of a classifier or a tagger answers new rows like the model:
python recipes/predict.py --model runs/onnx --input new.csv --output answers.csv
"""

from pathlib import Path

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.corpus import TextArguments, open_text
from lacuna.exporting import ExportArguments, export_model
from lacuna.training import use_all_cores


def main() -> None:
    """Parse, export, compare, report."""
    (arguments,) = parse_arguments((ExportArguments,), description=__doc__)
    use_all_cores()
    print(f"exporting {arguments.model} as {arguments.format}; this can take a minute", flush=True)
    found = export_model(arguments, open_text(TextArguments(data=arguments.data)).texts())
    print(
        f"on {found['texts']} texts ({found['tokens']:,} tokens) its logits are within "
        f"{found['largest_difference']:.2g} of those of the {found['model']} (the largest is "
        f"{found['largest_logit']:.3g}), and its likeliest answer is the same in {found['same_answer']:.1%}"
    )
    files = sorted(Path(arguments.output_dir).iterdir())
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{len(files)} files, {size:.1f} MB, are in {arguments.output_dir}")


if __name__ == "__main__":
    exit_cleanly(main)
