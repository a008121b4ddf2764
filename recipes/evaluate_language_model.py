"""Ask a pretrained model what it knows: bits per byte of text, or its choice between minimal pairs.

    python recipes/evaluate_language_model.py --model runs/model --max_examples 20          # a laptop, seconds
    python recipes/evaluate_language_model.py --model runs/model --data held_out/           # of your own text
    python recipes/evaluate_language_model.py --model runs/model --suite minimal_pairs --data blimp/ --max_examples 50

--model takes a folder made by recipes/pretrain.py or any encoder or decoder of the Hub. Minimal pairs are rows with
sentence_good and sentence_bad, one file for each paradigm, as BLiMP comes. The results are printed and written as JSON
with flat names. Without --data, bits per byte are those of the built-in corpus, which the recipes train on by default.
"""

import json
import time
from importlib.metadata import version
from itertools import islice

from lacuna import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError
from lacuna.common.files import write_text
from lacuna.common.loading import commit_of
from lacuna.corpus import TextArguments, find_files, open_text, read_records
from lacuna.evaluation import (
    EvaluationArguments,
    LanguageModel,
    check_output_file,
    format_results,
    group_pairs,
    load_language_model,
    measure_bits_per_byte,
    measure_minimal_pairs,
)
from lacuna.training import use_all_cores


def evaluate_bits_per_byte(language_model: LanguageModel, arguments: EvaluationArguments) -> dict[str, float]:
    """Bits per byte of --data, or of the built-in corpus."""
    text = open_text(TextArguments(data=arguments.data, text_column=arguments.text_column))
    if not arguments.data:
        print("text: the built-in corpus. A model that was trained on it has seen most of this text before.")
    return measure_bits_per_byte(
        language_model=language_model,
        documents=list(islice(text.texts(), arguments.max_examples)),
        window=arguments.window,
        stride=arguments.stride,
        join_documents=arguments.join_documents,
        batch_size=arguments.batch_size,
    )


def evaluate_minimal_pairs(language_model: LanguageModel, arguments: EvaluationArguments) -> dict[str, float]:
    """Choices between the pairs of --data."""
    if not arguments.data:
        raise InputError(
            "--suite minimal_pairs needs --data: .jsonl files with sentence_good and sentence_bad, such as BLiMP "
            "(github.com/alexwarstadt/blimp)"
        )
    records = (record for path in find_files(paths=arguments.data) for record in read_records(path))
    pairs = group_pairs(
        rows=((record.fields, record.path, record.line) for record in records), max_examples=arguments.max_examples
    )
    return measure_minimal_pairs(language_model=language_model, pairs=pairs, batch_size=arguments.batch_size)


SUITES = {"bits_per_byte": evaluate_bits_per_byte, "minimal_pairs": evaluate_minimal_pairs}


def main() -> None:
    """Parse, load, ask, report."""
    (arguments,) = parse_arguments((EvaluationArguments,), description=__doc__)
    use_all_cores()
    commit = commit_of(arguments.model, revision=arguments.revision)
    code = arguments.trust_remote_code
    language_model = load_language_model(model=arguments.model, trust_remote_code=code, revision=commit)
    path = check_output_file(output_file=arguments.output_file, model=arguments.model, suite=arguments.suite)
    print(f"model: {type(language_model.model).__name__} ({language_model.kind}) from {arguments.model}", flush=True)
    start = time.perf_counter()
    results = SUITES[arguments.suite](language_model, arguments)
    seconds = round(time.perf_counter() - start, 1)
    print(format_results(results))
    if results.get("unknown_tokens"):
        print("The tokenizer does not know all of this text: its bits per byte look better than they are.")
    about = {
        "model": arguments.model,
        **({"revision": commit} if commit else {}),
        "suite": arguments.suite,
        "kind": language_model.kind,
        "data": ", ".join(arguments.data) or "built-in corpus",
        "seconds": seconds,
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
    write_text(path, json.dumps({**results, **about}, indent=2) + "\n", hint=". See --output_file")
    print(f"{seconds:.1f} s; results are in {path}")


if __name__ == "__main__":
    exit_cleanly(main)
