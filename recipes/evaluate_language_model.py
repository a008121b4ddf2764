"""Ask a pretrained model what it knows: bits per byte of text, minimal pairs, analogies and similarity of words.

    python recipes/evaluate_language_model.py --model runs/model --max_examples 20          # a laptop, seconds
    python recipes/evaluate_language_model.py --model runs/model --data held_out/           # of your own text
    python recipes/evaluate_language_model.py --model runs/model --suite minimal_pairs --data blimp/ --max_examples 50
    python recipes/evaluate_language_model.py --model runs/model --suite analogies --data words.txt --occurrences my/
    python recipes/evaluate_language_model.py --model runs/model --suite all --pairs blimp/ --analogies words.txt

--model takes a folder made by recipes/pretrain.py or any encoder or decoder of the Hub. Minimal pairs are rows with
sentence_good and sentence_bad, one file for each paradigm, as BLiMP comes. The results are printed and written as JSON
with flat names. Without --data, bits per byte are those of the built-in corpus, which the recipes train on by default.
Of several processes the first does it all.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from lacuna import evaluation
from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError
from lacuna.common.files import write_text
from lacuna.common.loading import commit_of
from lacuna.corpus import TextArguments, find_files, open_text, read_records
from lacuna.corpus.read.streams import Reading
from lacuna.modeling.conversion import as_ours
from lacuna.training import is_main_process, use_all_cores

OTHER_DATA = ("train_text", "occurrences", "pairs", "analogies", "similarity")


def read_texts(paths: list[str], arguments: evaluation.EvaluationArguments, most: int | None = None) -> list[str]:
    """The first documents of paths, or of the built-in corpus."""
    text = open_text(TextArguments(data=paths, text_column=arguments.text_column, **arguments.reading()))
    return list(islice(text.texts(), most))


def read_data(suite: str, paths: list[str], arguments: evaluation.EvaluationArguments) -> Any:
    """What a suite is asked with: documents, or pairs or questions in groups."""
    most = arguments.max_examples
    if suite == "bits_per_byte":
        if not paths:
            print("text: the built-in corpus. A model that was trained on it has seen most of this text before.")
        return read_texts(paths, arguments, most)
    files = find_files(paths=paths)
    if suite == "minimal_pairs":
        how = Reading(**arguments.reading())
        rows = ((each.fields, each.path, each.line) for path in files for each in read_records(path, how))
        return evaluation.group_pairs(rows=rows, max_examples=most)
    if others := [path for path in files if ".txt" not in path.suffixes]:
        raise InputError(
            f"{others[0]}: --suite {suite} reads {evaluation.FORMS[suite]}; rename it if that is its form"
        )
    texts = TextArguments(data=[*map(str, files)], document_boundary="line", encoding=arguments.encoding)
    lines = open_text(texts).documents()
    groups = evaluation.read_questions(((line.text, line.place) for line in lines), suite=suite)
    return {name: some[:most] for name, some in groups.items()}


def evaluate(
    model: evaluation.LanguageModel, arguments: evaluation.EvaluationArguments, data: dict[str, Any], texts: list[Any]
) -> dict[str, dict[str, Any]]:
    """The results of each suite; of --suite all why one is left out, where words are too few."""
    train_documents, occurrences = texts
    found: dict[str, dict[str, Any]] = {}
    if documents := data.get("bits_per_byte"):
        windows = {name: getattr(arguments, name) for name in ("window", "stride")}
        found["bits_per_byte"] = evaluation.measure_bits_per_byte(language_model=model, documents=documents, **windows)
        if train_documents:
            print("compressing the text beside it: about a minute for each 10 MB of --train_text", flush=True)
        found["bits_per_byte"] |= evaluation.measure_text_baselines(
            language_model=model, documents=documents, train_documents=train_documents
        )
    if pairs := data.get("minimal_pairs"):
        found["minimal_pairs"] = evaluation.measure_minimal_pairs(language_model=model, pairs=pairs)
    if of_words := {suite: data[suite] for suite in ("analogies", "similarity") if suite in data}:
        words = [word for questions in of_words.values() for word in evaluation.words_of(questions)]
        words += arguments.neighbours_of
        vectors, missing = evaluation.collect_vectors(language_model=model, words=words, documents=occurrences)
        for word in arguments.neighbours_of:
            near = evaluation.nearest_neighbours(vectors=vectors["contextual_" if occurrences else ""], word=word)
            missing[f"near_{word}"] = ", ".join(f"{other} {cosine:.2f}" for other, cosine in near) or "has no vector"
        for suite, questions in of_words.items():
            try:
                found[suite] = evaluation.measure_words(suite=suite, vectors=vectors, questions=questions) | missing
            except InputError as error:
                if arguments.suite != "all":
                    raise
                found[suite] = {"not_run": str(error)}
    return found


def main(words: Sequence[str] | None = None) -> str:
    """Parse, read, so that mistakes show at once, load, ask, report; returns the file of the results."""
    (arguments,) = parse_arguments((evaluation.EvaluationArguments,), words, description=__doc__)
    if not is_main_process():
        return ""
    os.environ["LOCAL_WORLD_SIZE"] = "1"  # the cores of the other processes are free
    use_all_cores()
    commit = commit_of(arguments.model, revision=arguments.revision)
    data = {suite: read_data(suite, paths, arguments) for suite, paths in arguments.asked().items()}
    texts = [read_texts(some, arguments) if some else [] for some in (arguments.train_text, arguments.occurrences)]
    origin = {"trust_remote_code": arguments.trust_remote_code, "revision": commit, "bf16": arguments.bf16}
    language_model = evaluation.load_language_model(model=arguments.model, **origin)
    path = arguments.place()
    print(f"model: {type(language_model.model).__name__} ({language_model.kind}) from {arguments.model}", flush=True)
    faster = as_ours(language_model.model)  # by a tenth, with the same scores
    language_model = replace(language_model, model=faster, batch_size=arguments.batch_size)
    start = time.perf_counter()
    found = evaluate(language_model, arguments, data, texts)
    seconds = round(time.perf_counter() - start, 1)
    about = {
        "model": arguments.model,
        **({"revision": commit} if commit else {}),
        "suite": arguments.suite,
        "kind": language_model.kind,
        "precision": "bf16" if arguments.bf16 else "float32",
        "data": ", ".join(arguments.data or ["built-in corpus"] * ("bits_per_byte" in found)),
        **{name: ", ".join(given) for name in OTHER_DATA if (given := getattr(arguments, name))},
        **{name: given for name in ("max_examples", "batch_size") if (given := getattr(arguments, name))},
        "seconds": seconds,
        **{name: version(name) for name in ("torch", "transformers")},
    }
    if arguments.suite == "all":
        results = {f"{suite}/{name}": value for suite, some in found.items() for name, value in some.items()}
        print(table := evaluation.format_summary(found))
        named = Path(arguments.model).name if Path(arguments.model).is_dir() else arguments.model
        report = f"# What {named} knows, {time.strftime('%Y-%m-%d')}\n\n{table}\n"
        for suite, some in {**found, "about": about}.items():
            report += f"\n## {suite}\n\n```\n{evaluation.format_results(some)}\n```\n"
        write_text(path.with_name("evaluation.md"), report, hint=". See --output_file")
    else:
        results = found[arguments.suite]
        print(evaluation.format_results(results))
    if found.get("bits_per_byte", {}).get("unknown_tokens"):
        print("The tokenizer does not know all of this text: its bits per byte look better than they are.")
    about["summary"] = evaluation.summarize(found)
    write_text(path, json.dumps({**results, **about}, indent=2) + "\n", hint=". See --output_file")
    print(f"{seconds:.1f} s; results are in {path}")
    return str(path)


if __name__ == "__main__":
    exit_cleanly(main)
