"""Try trained models with plain transformers, on a machine that need not know Lacuna.

    python recipes/try_models.py --model runs/model

Masks are filled, texts continued and gaps mended in texts that were held out; a fine-tuned model answers its own.
"""

import argparse
import json
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

FILES, GAP = ["*.json", "*.jsonl", "*.safetensors", "*.txt", "*.jinja", "*.py"], "[GAP]"


def show(given: str, found: str, right: object = None) -> None:
    """What a model was given, what it makes of it, and what would be right where that is known."""
    known = "" if right is None else f" (right: {', '.join(right) or 'none' if isinstance(right, list) else right})"
    print(f"  {' '.join(given.split())[:90]}\n      {' '.join(found.split())}{known}")


def fill_masks(load: dict, tokenizer: Any, settings: dict, rows: list[dict]) -> None:
    """The three likeliest tokens for each mask."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(**load)
    fill, mask = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=3), tokenizer.mask_token
    for row in rows:
        found = fill(row["source"].replace(GAP, mask))
        likeliest = ", ".join(f"{each['token_str'].strip()!r} {each['score']:.0%}" for each in found)
        show(row["source"], likeliest, row["gold"])


def continue_prompts(load: dict, tokenizer: Any, settings: dict, rows: list[dict]) -> None:
    """Forty tokens after the first words of each text, the likeliest one each time, without repeating five of them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(**load)
    how = {"max_new_tokens": 40, "do_sample": False, "no_repeat_ngram_size": 5}
    for text in (" ".join(row["text"].split()[:5])[:60] for row in rows):
        ids = model.generate(**tokenizer(text, return_tensors="pt"), **how)
        print(f"  {text} ... {' '.join(tokenizer.decode(ids[0], skip_special_tokens=True)[len(text) :].split())}")


def write(load: dict, tokenizer: Any, settings: dict, rows: list[dict]) -> None:
    """What is written from each source; from a text with a gap the whole text, or what was in the gap."""
    pair = settings["is_encoder_decoder"]  # else a decoder, which continues after the source and a token that ends it
    model = (transformers.AutoModelForSeq2SeqLM if pair else transformers.AutoModelForCausalLM).from_pretrained(**load)
    ends = [each for each in (tokenizer.sep_token_id, tokenizer.eos_token_id) if each is not None]
    gap = "<extra_id_0>" if "<extra_id_0>" in tokenizer.get_vocab() else tokenizer.mask_token or ""
    for row in rows:
        source = settings.get("source_prefix", "") + row["source"].replace(GAP, gap)
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
    with suppress(ImportError):  # where Lacuna is installed, what others made is looked through first
        from lacuna.common.foreign import check_foreign

        check_foreign(folder, tokenizer=True, weights=True)
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    settings = {"is_encoder_decoder": config.is_encoder_decoder}
    head = "SentenceTransformer" if (folder / "modules.json").is_file() else (config.architectures or ["no name"])[0]
    settings |= json.loads(path.read_text(encoding="utf-8")) if (path := folder / "task.json").is_file() else {}
    do = write if settings.get("name") == "sequence_to_sequence" else HEADS.get(next(filter(head.endswith, HEADS), ""))
    if do is None:
        raise ValueError(f"--model {model}: its head, {head}, is for recipes/predict.py --model {model} --input FILE")
    tuned = do in (classify, tag, answer) or "name" in settings
    path = Path(examples or folder / ("predictions.jsonl" if tuned else "held_out.jsonl"))
    if not path.is_file():
        raise ValueError(f"--examples {path}: no such file (the Hub has none); name another one, .jsonl or .txt")
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line][:number]
    rows = [{"text": line} if path.suffix == ".txt" else json.loads(line) for line in lines]
    for row in [] if tuned else rows:  # [MASK] is the gap, or the longest word, or a letter where nothing is between
        words = re.findall(r"\b\w{2,18}\b", row["text"][:100]) or [row["text"][7:8] or "-"]
        word = "[MASK]" if "[MASK]" in row["text"] else max(words, key=len)
        row |= {"source": row["text"][:100].replace(word, GAP, 1), "gold": None if word == "[MASK]" else word}
    load = {"pretrained_model_name_or_path": str(folder), "trust_remote_code": trust_remote_code}
    do({**load, "use_safetensors": True}, transformers.AutoTokenizer.from_pretrained(**load), settings, rows)


def main(words: list[str] | None = None) -> None:
    """Parse and try; what is wrong with a folder or a file is one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="A model: a folder, or OWNER/NAME on the Hub.")
    parser.add_argument("--revision", help="Branch, tag or commit on the Hub.")
    parser.add_argument("--examples", help="Rows (.jsonl) or texts (.txt). Default: those that were held out.")
    parser.add_argument("--number", type=int, default=2, help="Examples to show. Default: 2.")
    parser.add_argument("--trust_remote_code", action="store_true", help="Run the code that the model brings along.")
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    try:
        try_model(**vars(parser.parse_args(words)))
    except (KeyError, OSError, TypeError, ValueError, SafetensorError, StrictDataclassError) as error:
        kinds = {KeyError: "--examples: a row has no ", json.JSONDecodeError: "--examples: a line is not JSON: "}
        parser.exit(2, f"error: {kinds.get(type(error), '')}{' '.join(str(error).split())}\n")


if __name__ == "__main__":
    main()
