"""Export a model for other programs: a native class of transformers, ONNX, or GGUF for llama.cpp.

    python recipes/export_model.py --model runs/classifier --format onnx --output_dir runs/onnx
    python recipes/export_model.py --model runs/classifier --format onnx --quantize int8 --eval_file test.csv \\
        --output_dir runs/int8
    python recipes/export_model.py --model runs/decoder --format gguf --quantize q8_0 --output_dir runs/gguf
    python recipes/export_model.py --model runs/model --format native --output_dir runs/native

What was written is read again and compared with the model on real text before the folder appears; the comparison is
printed and kept in export_check.json. With --eval_file, rows with labels, the share that a fine-tuned model answers
rightly before and after stands there too, which is what --quantize may cost. An ONNX folder answers new rows like the
model: python recipes/predict.py --model runs/onnx --input new.csv --output answers.csv
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError
from lacuna.common.files import write_text
from lacuna.corpus import TextArguments, open_text, read_labelled
from lacuna.exporting import ExportArguments, export_model
from lacuna.tasks.base.metrics import best_over_answers, exact_match
from lacuna.tasks.base.rows import Row, as_rows
from lacuna.tasks.classification.reader import label_name, label_set, multi_hot_width
from lacuna.tasks.multiple_choice.task import find_reading, read_labels, read_problem
from lacuna.tasks.predict.inference import open_predictor
from lacuna.tasks.predict.predictor import PredictionArguments, Predictor, check_rows, predict
from lacuna.tasks.question_answering.reader import read_questions
from lacuna.tasks.token_classification.reader import PLAIN, entities, write_tags
from lacuna.training import use_all_cores

SCORED = ("single_label_classification", "multi_label_classification", "token_classification", "multiple_choice")
QUESTIONS = "question_answering"
COLUMNS = ("context_column", "question_column", "choices_columns", "label_column")  # of multiple choice


def open_tuned(arguments: ExportArguments, model: str, revision: str | None = None) -> Predictor:
    """What answers the rows of --eval_file; InputError where an answer cannot be right or wrong."""
    asked: dict[str, Any] = {"model": model, "input": arguments.eval_file or "", "output": "answers.jsonl"}
    asked |= {"trust_remote_code": arguments.trust_remote_code, "revision": revision, "without_words": True}
    predictor = open_predictor(PredictionArguments(**asked))
    known = predictor.settings.get("problem_type", predictor.settings.get("name"))
    if known not in (*SCORED, QUESTIONS) or arguments.format != "onnx":
        raise InputError(
            "--eval_file is for models fine-tuned to classify texts or tokens, to choose or to answer questions, and "
            "for --format onnx: leave it out"
        )
    return predictor


def score(predictor: Predictor) -> tuple[str, float]:
    """Name of the metric, and the share of the rows of --eval_file, or of their tokens, that are answered rightly."""
    records = read_labelled(predictor.arguments.input)
    check_rows(predictor, records)
    settings, found, rows = predictor.settings, list(predict(predictor, records)), as_rows(records, part="eval")
    if settings.get("name") == QUESTIONS:
        wanted = [question.answers or ("",) for question in read_questions(rows)]
        pairs = zip(found, wanted, strict=True)
        return "exact match", fmean(best_over_answers(exact_match, row["prediction"], texts) for row, texts in pairs)
    label = settings.get("label_column") or settings["tags_column"]
    if label not in rows[0].fields:
        raise InputError(f"--eval_file {predictor.arguments.input} has no column {label!r}, which held the labels")
    if settings.get("name") == "multiple_choice":
        columns = {name: settings.get(name) for name in COLUMNS}
        problems = [read_problem(row, columns) for row in rows]
        numbers = read_labels(problems, reading=find_reading(problems))
        return "accuracy", fmean(row["prediction_number"] == one for row, one in zip(found, numbers, strict=True))
    return "accuracy", fmean(_right(predictor, rows, found, label))


def _right(predictor: Predictor, rows: Sequence[Row], found: Sequence[Any], label: str) -> Iterator[bool]:
    """Whether each row, or each of its tokens, is answered rightly; labels may stand there by their numbers."""
    settings, by_number = predictor.settings, sorted(predictor.model.config.id2label.items())
    names = [name for _, name in by_number]
    numbered = (
        {} if any(name.isdecimal() for name in names) else {str(place): name for place, name in enumerate(names)}
    )
    width = multi_hot_width(rows=rows, column=label)
    for row, answered in zip(rows, found, strict=True):
        if settings.get("problem_type") == "multi_label_classification":
            given = label_set(row, label, separator=settings.get("label_separator")) if width is None else []
            given += [names[place] for place in range(width or 0) if row.fields[label][place]]
            yield set(given) == set(answered["prediction"])
        elif settings.get("name") == "token_classification":
            tags = [numbered.get(str(tag).strip(), str(tag).strip()) for tag in row.fields[label]]
            tags = tags if settings.get("scheme") == PLAIN else write_tags(entities(tags), length=len(tags))
            told = answered.get("predicted_tags", answered["prediction"])
            yield from (one == other for one, other in zip(tags, told, strict=True))
        else:
            name = label_name(row, label)
            yield numbered.get(name, name) == answered["prediction"]


def main(words: Sequence[str] | None = None) -> str:
    """Parse, export, compare, report; returns the folder of the export."""
    (arguments,) = parse_arguments((ExportArguments,), words, description=__doc__)
    use_all_cores()
    before = None
    if arguments.eval_file:
        before = score(open_tuned(arguments, arguments.model, arguments.revision))[1]
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
        metric, after = score(open_tuned(arguments, arguments.output_dir))
        print(f"{metric} on {arguments.eval_file}: {before:.4f} before, {after:.4f} now")
        name = metric.replace(" ", "_")
        found |= {"eval_file": arguments.eval_file, f"{name}_before": before, name: after}
        write_text(Path(arguments.output_dir, "export_check.json"), json.dumps(found, indent=2) + "\n")
    files = sorted(Path(arguments.output_dir).iterdir())
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{len(files)} files, {size:.1f} MB, are in {arguments.output_dir}")
    return str(arguments.output_dir)


if __name__ == "__main__":
    exit_cleanly(main)
