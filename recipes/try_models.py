"""Try trained models with plain transformers, on a machine that need not know Lacuna.

    python recipes/try_models.py --model runs/model

What it does follows from the model: masks are filled, prompts continued, gaps mended; what was fine-tuned answers its
predictions.jsonl. Native models need nothing else; one with code of its own needs --trust_remote_code, which runs it.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from safetensors import SafetensorError

MASKED = ["Return a new [MASK] with the same items.", "If the argument is [MASK], the default value is used."]
FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.py"]
PROMPTS = ["Return the number of", "This module provides"]


def show(given: str, found: str, right: object = None) -> None:
    """What a model was given, what it makes of it, and what would be right where that is known."""
    known = "" if right is None else f" (right: {', '.join(right) or 'none' if isinstance(right, list) else right})"
    print(f"  {' '.join(given.split())[:90]}\n      {' '.join(found.split())}{known}")


def fill_masks(load: dict, tokenizer: Any, settings: dict, rows: list[dict]) -> None:
    """The three likeliest tokens for each mask."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(**load)
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=3)
    for text in MASKED:
        found = fill(text.replace("[MASK]", tokenizer.mask_token))
        show(text, ", ".join(f"{each['token_str'].strip()!r} {each['score']:.0%}" for each in found))


def continue_prompts(load: dict, tokenizer: Any, settings: dict, rows: list[dict]) -> None:
    """Forty tokens after each prompt, the likeliest one each time, without repeating five of them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(**load)
    for text in PROMPTS:
        ids = model.generate(
            **tokenizer(text, return_tensors="pt"), max_new_tokens=40, do_sample=False, no_repeat_ngram_size=5
        )
        print(f"  {text} ... {' '.join(tokenizer.decode(ids[0], skip_special_tokens=True)[len(text) :].split())}")


def write(load: dict, tokenizer: Any, settings: dict, rows: list[dict]) -> None:
    """What is written from each source; without sources a text with a gap anew, or what was in the gap."""
    pair = settings["is_encoder_decoder"]  # else a decoder, which continues after the source and a token that ends it
    model = (transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM).from_pretrained(**load)
    ends = [each for each in (tokenizer.sep_token_id, tokenizer.eos_token_id) if each is not None]
    gap = "<extra_id_0>" if "<extra_id_0>" in tokenizer.get_vocab() else tokenizer.mask_token or ""
    for row in rows or [{"source": text.replace("[MASK]", gap)} for text in MASKED]:
        source = settings.get("source_prefix", "") + row["source"]
        ids = tokenizer(source, truncation=True, max_length=settings.get("max_length", 256))["input_ids"]
        ids += [] if pair or ids[-1:] == ends[:1] else ends[:1]
        how = {"max_new_tokens": settings.get("max_target_length", 64), "num_beams": settings.get("num_beams", 1)}
        how |= {"eos_token_id": ends[-1], "pad_token_id": tokenizer.pad_token_id, "do_sample": False}
        written = model.generate(torch.tensor([ids]), **how)[0, 1 if pair else len(ids) :]
        show(row["source"], tokenizer.decode(written, skip_special_tokens=True).strip() or "nothing", row.get("gold"))


def classify(load: dict, tokenizer: Any, settings: dict, rows: list[dict]) -> None:
    """What each text is taken for, beside what it is: a label, the labels that hold, or a number."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(**load)
    classifier = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    kind, least = model.config.problem_type, settings.get("threshold", 0.5)
    for row in rows:
        given = {"text": row["text"]} | ({"text_pair": row["text_pair"]} if "text_pair" in row else {})
        found = classifier([given], truncation=True, max_length=settings.get("max_length", 128))[0]
        several = [each for each in found if each["score"] > least]
        found = {"regression": found, "multi_label_classification": several}.get(kind, found[:1])
        form = "{label} {score:.4g}" if kind == "regression" else "{label} {score:.0%}"
        show(row["text"], ", ".join(form.format(**each) for each in found) or "none", row.get("gold"))


def tag(load: dict, tokenizer: Any, settings: dict, rows: list[dict]) -> None:
    """The entities of each text."""
    model = transformers.AutoModelForTokenClassification.from_pretrained(**load)
    tagger = transformers.pipeline("ner", model=model, tokenizer=tokenizer, aggregation_strategy="first")
    for row in rows:
        found = [f"{row['text'][a['start'] : a['end']].strip()} ({a['entity_group']})" for a in tagger(row["text"])]
        gold = [each if isinstance(each, str) else f"{each['text']} ({each['type']})" for each in row.get("gold", [])]
        show(row["text"], ", ".join(found) or "none", gold if "gold" in row else None)


@torch.no_grad()
def answer(load: dict, tokenizer: Any, settings: dict, rows: list[dict]) -> None:
    """The context of each question, up to the longest input, with the likeliest span marked."""
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(**load)
    how = {"truncation": "only_second", "max_length": settings.get("max_length", 384), "return_tensors": "pt"}
    for row in rows:
        batch, context = tokenizer(row["question"], row["context"], return_offsets_mapping=True, **how), row["context"]
        places, inside = batch.pop("offset_mapping")[0], torch.tensor([part == 1 for part in batch.sequence_ids(0)])
        found = model(**batch)
        scores = (found.start_logits[0][:, None] + found.end_logits[0]).where((inside[:, None] & inside).triu(), -1e9)
        start, end = (places[at][side] for side, at in enumerate(divmod(int(scores.argmax()), len(inside))))
        around = f"{context[:start][-60:]}>>{context[start:end].strip()}<<{context[end:][:30]}"
        show(row["question"], f"...{around}...", (row.get("gold", [None]) or ["it does not say"])[0])


HEADS = {"ForMaskedLM": fill_masks, "ForPreTraining": fill_masks, "ForCausalLM": continue_prompts}
HEADS |= {"LMHeadModel": continue_prompts, "ForConditionalGeneration": write}
HEADS |= {"ForSequenceClassification": classify, "ForTokenClassification": tag, "ForQuestionAnswering": answer}


def try_model(model: str, examples: str | None, number: int, revision: str | None, trust_remote_code: bool) -> None:
    """What a model is for, by its head and by what fine-tuning says of it; ValueError where nothing can be done."""
    folder = Path(model)
    if not folder.is_dir() and model.count("/") == 1 and not folder.parent.is_dir():
        folder = Path(huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=FILES))
    if not (folder / "config.json").is_file():
        raise ValueError(f"--model {model} is not the folder of a model: it has no config.json")
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    settings, rows = {"is_encoder_decoder": config.is_encoder_decoder}, []
    head = "SentenceTransformer" if (folder / "modules.json").is_file() else (config.architectures or ["no name"])[0]
    settings |= json.loads(path.read_text(encoding="utf-8")) if (path := folder / "task.json").is_file() else {}
    do = write if settings.get("name") == "sequence_to_sequence" else HEADS.get(next(filter(head.endswith, HEADS), ""))
    if do is None:
        raise ValueError(f"--model {model}: its head, {head}, is for recipes/predict.py --model {model} --input FILE")
    if do in (classify, tag, answer) or (do is write and (examples or "name" in settings)):
        if not (path := Path(examples or folder / "predictions.jsonl")).is_file():
            raise ValueError(f"--examples {path}: no such file; fine-tuning writes predictions.jsonl beside the model")
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:number] if line]
    load = {"pretrained_model_name_or_path": str(folder), "trust_remote_code": trust_remote_code}
    do({**load, "use_safetensors": True}, transformers.AutoTokenizer.from_pretrained(**load), settings, rows)


def main() -> None:
    """Parse and try; what is wrong with a folder or a file is one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="A model: a folder, or OWNER/NAME on the Hub.")
    parser.add_argument("--revision", help="Branch, tag or commit on the Hub.")
    parser.add_argument("--examples", help="Examples for a fine-tuned model. Default: its predictions.jsonl.")
    parser.add_argument("--number", type=int, default=2, help="Examples to show.")
    parser.add_argument("--trust_remote_code", action="store_true", help="Run the code that the model brings along.")
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    try:
        try_model(**vars(parser.parse_args()))
    except (KeyError, OSError, ValueError, SafetensorError) as error:
        known = {KeyError: "--examples: a row has no ", json.JSONDecodeError: "--examples: a line is not JSON: "}
        parser.error(known.get(type(error), "") + " ".join(str(error).split()))


if __name__ == "__main__":
    main()
