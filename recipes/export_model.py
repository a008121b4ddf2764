"""Export a model for other programs: a native class of transformers, ONNX, or GGUF for llama.cpp.

    python recipes/export_model.py --model runs/classifier --format onnx --output_dir runs/onnx
    python recipes/export_model.py --model runs/classifier --format onnx --quantize int8 --eval_file test.csv \\
        --output_dir runs/int8
    python recipes/export_model.py --model runs/decoder --format gguf --quantize q8_0 --output_dir runs/gguf
    python recipes/export_model.py --model runs/model --format native --output_dir runs/native

What was written is read again and compared with the model on real text before the folder appears; the comparison is
printed and kept in export_check.json. With --eval_file, rows with labels, the accuracy of a classifier or a tagger
before and after stands there too, which is what --quantize may cost. An ONNX folder of either answers new rows like
the model: python recipes/predict.py --model runs/onnx --input new.csv --output answers.csv
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError
from lacuna.common.files import write_text
from lacuna.corpus import TextArguments, open_text, read_labelled
from lacuna.exporting import ExportArguments, export_model
from lacuna.tasks.predict.inference import open_predictor
from lacuna.tasks.predict.predictor import PredictionArguments, Predictor, check_rows, predict
from lacuna.training import use_all_cores


def open_classifier(arguments: ExportArguments, model: str, revision: str | None = None) -> Predictor:
    """What answers the rows of --eval_file; InputError where it has not one label for a row or a token."""
    asked: dict[str, Any] = {"model": model, "input": arguments.eval_file or "", "output": "answers.jsonl"}
    asked |= {"trust_remote_code": arguments.trust_remote_code, "revision": revision}
    predictor = open_predictor(PredictionArguments(**asked))
    known = predictor.settings.get("problem_type", predictor.settings.get("name"))
    if known not in ("single_label_classification", "token_classification") or arguments.format != "onnx":
        raise InputError(
            "--eval_file is for taggers, classifiers with one label a row, and --format onnx: leave it out"
        )
    return predictor


def accuracy(predictor: Predictor) -> float:
    """Share of the rows of --eval_file, or of their tokens, that are labelled as they were."""
    rows = read_labelled(predictor.arguments.input)
    check_rows(predictor, rows)
    label = predictor.settings.get("label_column") or predictor.settings["tags_column"]
    if label not in rows[0].fields:
        raise InputError(f"--eval_file {predictor.arguments.input} has no column {label!r}, which held the labels")
    right: list[bool] = []
    for row in predict(predictor, rows):
        wanted, found = row[label], row.get("predicted_tags", row["prediction"])
        pairs = zip(wanted, found, strict=True) if isinstance(wanted, list) else [(wanted, found)]
        right += [str(one) == str(other) for one, other in pairs]
    return sum(right) / len(right)


def main(words: Sequence[str] | None = None) -> str:
    """Parse, export, compare, report; returns the folder of the export."""
    (arguments,) = parse_arguments((ExportArguments,), words, description=__doc__)
    use_all_cores()
    before = None
    if arguments.eval_file:
        before = accuracy(open_classifier(arguments, arguments.model, arguments.revision))
    print(f"exporting {arguments.model} as {arguments.format}; this can take a minute", flush=True)
    found = export_model(arguments, open_text(TextArguments(data=arguments.data)).texts())
    print(
        f"on {found['texts']} texts ({found['tokens']:,} tokens) its logits are within "
        f"{found['largest_difference']:.2g} of those of the {found['model']} (the largest is "
        f"{found['largest_logit']:.3g}), and its likeliest answer is the same in {found['same_answer']:.1%}"
    )
    if arguments.format == "gguf" and "ForCausalLM" not in found["model"] and "For" in found["model"]:
        print("llama.cpp takes the encoder, for vectors of texts: the head of the model is not in model.gguf")
    if before is not None:
        after = accuracy(open_classifier(arguments, arguments.output_dir))
        print(f"accuracy on {arguments.eval_file}: {before:.4f} before, {after:.4f} now")
        found |= {"eval_file": arguments.eval_file, "accuracy_before": before, "accuracy": after}
        write_text(Path(arguments.output_dir, "export_check.json"), json.dumps(found, indent=2) + "\n")
    files = sorted(Path(arguments.output_dir).iterdir())
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{len(files)} files, {size:.1f} MB, are in {arguments.output_dir}")
    return str(arguments.output_dir)


if __name__ == "__main__":
    exit_cleanly(main)
