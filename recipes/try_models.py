"""Try trained models with plain transformers, on a machine that need not know Lacuna.

    python recipes/try_models.py --model runs/model

Masks are filled, texts continued and gaps mended in texts that were held out; a fine-tuned model answers its own.
"""

import argparse
import importlib
import json
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import errors, snapshot_download
from safetensors import SafetensorError

FILES, GAP = ["*.json", "*.jsonl", "*.safetensors", "*.txt", "*.jinja", "*.py"], "[GAP]"


def show(given: str, found: str, right: object = None) -> None:
    """What a model was given, what it makes of it, and what would be right where that is known."""
    known = "" if right is None else f" (right: {', '.join(right) or 'none' if isinstance(right, list) else right})"
    print(f"  {' '.join(given.split())[:90]}\n      {' '.join(found.split())}{known}")


def fill_masks(model: Any, tokenizer: Any, settings: dict, row: dict) -> None:
    """The three likeliest tokens for each mask."""
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=3)
    found = fill(row["source"].replace(GAP, tokenizer.mask_token))
    show(row["source"], ", ".join(f"{each['token_str'].strip()!r} {each['score']:.0%}" for each in found), row["gold"])


def continue_prompts(model: Any, tokenizer: Any, settings: dict, row: dict) -> None:
    """Forty tokens after the first words of each text, the likeliest one each time, without repeating five of them."""
    text, how = " ".join(row["text"].split()[:5])[:60], {"do_sample": False, "no_repeat_ngram_size": 5}
    ids = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=40, **how)
    print(f"  {text} ... {' '.join(tokenizer.decode(ids[0], skip_special_tokens=True)[len(text) :].split())}")


def write(model: Any, tokenizer: Any, settings: dict, row: dict) -> None:
    """What is written from each source; from a text with a gap the whole text."""
    ends = [each for each in (tokenizer.sep_token_id, tokenizer.eos_token_id) if each is not None]
    source = settings.get("source_prefix", "") + row["source"].replace(GAP, tokenizer.mask_token or "")
    ids = tokenizer(source, truncation=True, max_length=settings.get("max_length", 256))["input_ids"]
    ids += [] if model.config.is_encoder_decoder or ids[-1:] == ends[:1] else ends[:1]  # a decoder goes on after one
    how = {"max_new_tokens": settings.get("max_target_length", 64), "num_beams": settings.get("num_beams", 1)}
    how |= {"eos_token_id": ends[-1], "pad_token_id": tokenizer.pad_token_id, "do_sample": False}
    written = model.generate(torch.tensor([ids]), **how)[0, 1 if model.config.is_encoder_decoder else len(ids) :]
    show(row["source"], tokenizer.decode(written, skip_special_tokens=True).strip() or "nothing", row.get("gold"))


def classify(model: Any, tokenizer: Any, settings: dict, row: dict) -> None:
    """What each text is taken for, beside what it is: a label, the labels that hold, or a number."""
    classifier = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    given = {"text": row["text"]} | ({"text_pair": row["text_pair"]} if "text_pair" in row else {})
    found = classifier([given], truncation=True, max_length=settings.get("max_length", 128))[0]
    several = [each for each in found if each["score"] > settings.get("threshold", 0.5)]
    found = {"regression": found, "multi_label_classification": several}.get(model.config.problem_type, found[:1])
    form = "{label} {score:.4g}" if model.config.problem_type == "regression" else "{label} {score:.0%}"
    show(row["text"], ", ".join(form.format(**each) for each in found) or "none", row.get("gold"))


def tag(model: Any, tokenizer: Any, settings: dict, row: dict) -> None:
    """The entities of each text, by the tags of its words: that of the first token which is more than a blank."""
    text, ner = row["text"], transformers.pipeline("ner", model=model, tokenizer=tokenizer, ignore_labels=[])
    words, tokens = [each.span() for each in re.finditer(r"\S+", text)], ner(text)
    firsts = [a | {"start": s, "end": e} for s, e in words for a in [a for a in tokens if a["end"] > s][:1]]
    found = [f"{text[a['start'] : a['end']]} ({a['entity_group']})" for a in ner.group_entities(firsts)]
    gold = [each if isinstance(each, str) else f"{each['text']} ({each['type']})" for each in row.get("gold", [])]
    show(text, ", ".join(a for a in found if a[-4:] != " (O)") or "none", gold if "gold" in row else None)


@torch.no_grad()
def answer(model: Any, tokenizer: Any, settings: dict, row: dict) -> None:
    """The context of each question, up to the longest input, with the likeliest span marked."""
    how = {"truncation": "only_second", "max_length": settings.get("max_length", 384), "return_tensors": "pt"}
    batch, context = tokenizer(row["question"], row["context"], return_offsets_mapping=True, **how), row["context"]
    places, inside = batch.pop("offset_mapping")[0], torch.tensor([part == 1 for part in batch.sequence_ids(0)])
    found = model(**batch)
    scores = (found.start_logits[0][:, None] + found.end_logits[0]).where((inside[:, None] & inside).triu(), -1e9)
    start, end = (places[at][side] for side, at in enumerate(divmod(int(scores.argmax()), len(inside))))
    around = f"{context[:start][-60:]}>>{context[start:end].strip()}<<{context[end:][:30]}"
    show(row["question"], f"...{around}...", (row.get("gold", [None]) or ["it does not say"])[0])


ALSO = {"PreTraining": "MaskedLM", "LMHeadModel": "CausalLM", "Generation": "Seq2SeqLM", "MTModel": "Seq2SeqLM"}
HEADS = {"MaskedLM": fill_masks, "CausalLM": continue_prompts, "Seq2SeqLM": write, "TokenClassification": tag}
HEADS |= {"SequenceClassification": classify, "QuestionAnswering": answer}


def try_model(model: str, examples: str | None, number: int, revision: str | None, trust_remote_code: bool) -> None:
    """What a model is for, by its head and by what fine-tuning says of it; ValueError where nothing can be done."""
    if number < 1:
        raise ValueError(f"--number must be at least 1, got {number}")
    folder = Path(model)
    if not folder.is_dir() and model.count("/") == 1 and not folder.parent.is_dir():
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=FILES))
    if not (folder / "config.json").is_file():
        raise ValueError(f"--model {model} is not the folder of a model: it has no config.json")
    with suppress(ImportError):  # where Lacuna is installed, what others made is looked through first
        importlib.import_module("lacuna.common.foreign").check_foreign(folder, tokenizer=True, weights=True)
    load = {"pretrained_model_name_or_path": str(folder), "trust_remote_code": trust_remote_code}
    config = transformers.AutoConfig.from_pretrained(**load)
    head = "SentenceTransformer" if (folder / "modules.json").is_file() else (config.architectures or ["no name"])[0]
    kind = next((ALSO.get(end, end) for end in [*ALSO, *HEADS] if head.endswith(end)), None)
    if kind is None:
        raise ValueError(f"--model {model}: its head, {head}, is for recipes/predict.py --model {model} --input FILE")
    settings = json.loads(path.read_text(encoding="utf-8")) if (path := folder / "task.json").is_file() else {}
    do = write if settings.get("name") == "sequence_to_sequence" else HEADS[kind]
    tuned = do in (classify, tag, answer) or "name" in settings
    path, rows = Path(examples or folder / ("predictions.jsonl" if tuned else "held_out.jsonl")), list[dict]()
    for place, line in enumerate(path.read_bytes().splitlines() if path.is_file() else [], start=1):
        if line.strip() and len(rows) < number:
            try:
                rows.append({"text": line.decode()} if path.suffix == ".txt" else {**json.loads(line)})
            except (TypeError, ValueError) as error:
                raise ValueError(f"--examples {path}:{place} is no line of .jsonl or .txt in UTF-8: {error}") from None
    if not rows:
        why = "fine-tune it on questions first, or " * (do is answer and not settings) + "name a .jsonl or .txt"
        raise ValueError(f"--examples {path}: no such file (the Hub has none), or it is empty; {why}")
    for row, text in [] if tuned else [(row, row["text"][:100]) for row in rows]:  # the gap: [MASK], or a long word
        word = "[MASK]" if "[MASK]" in text else max(re.findall(r"\b\w{2,18}\b", text) or [text[7:8] or "-"], key=len)
        row |= {"source": text.replace(word, GAP, 1), "gold": None if word == "[MASK]" else word}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    loaded = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(**load, use_safetensors=True)
    for row in rows:
        do(loaded, tokenizer, settings, row)


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
    given = parser.parse_args(words)
    try:
        try_model(**vars(given))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError):
        why = "no such folder, and the Hub does not show it, or is out of reach: check the name, or log in"
        parser.exit(6, f"error: --model {given.model}: {why}\n")
    except SafetensorError as error:
        parser.exit(3, f"error: --model {given.model}: its weights cannot be read: {error}\n")
    except (KeyError, OSError, TypeError, ValueError, errors.StrictDataclassError) as error:
        lacks = "--examples: a row has no " * isinstance(error, KeyError)
        parser.exit(2, f"error: {lacks}{' '.join(str(error).split())}\n")


if __name__ == "__main__":
    main()
