"""Try trained models with plain transformers, on a machine that need not know Lacuna.

    python recipes/try_models.py --model runs/model                        # fills masks or continues prompts
    python recipes/try_models.py --model runs/classifier                   # takes its predictions.jsonl as examples

What it does follows from the model: an encoder fills masks, a decoder continues prompts, a classifier and a question
answerer take examples from the predictions.jsonl that fine-tuning wrote. Nothing of Lacuna is imported: the modelling
code comes from the checkpoint itself, hence `trust_remote_code=True`.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers

MASKED = [
    "Return a new [MASK] with the same items.",
    "Raise an error if the file does not [MASK].",
    "If the argument is [MASK], the default value is used.",
]
PROMPTS = ["Return the number of", "This module provides"]


def fill_masks(folder: str, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
    """The three likeliest tokens for each mask."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    for text in MASKED:
        batch = tokenizer(text.replace("[MASK]", tokenizer.mask_token), return_tensors="pt")
        place = int((batch["input_ids"][0] == tokenizer.mask_token_id).nonzero())
        with torch.no_grad():
            chances = model(**batch).logits[0, place].softmax(dim=-1)
        best = chances.topk(3)
        guesses = ", ".join(
            f"{tokenizer.decode(token).strip()!r} {chance:.0%}" for chance, token in zip(*best, strict=True)
        )
        print(f"  {text}\n      {guesses}")


def continue_prompts(folder: str, tokenizer: transformers.PreTrainedTokenizerBase) -> None:
    """Forty tokens after each prompt, the likeliest one each time, without repeating five of them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    for text in PROMPTS:
        batch = tokenizer(text, return_tensors="pt")
        ids = model.generate(**batch, max_new_tokens=40, do_sample=False, no_repeat_ngram_size=5)
        print(f"  {text} ... {' '.join(tokenizer.decode(ids[0], skip_special_tokens=True)[len(text) :].split())}")


def classify(folder: str, examples: list[dict]) -> None:
    """What each text is taken for, beside what it is."""
    classifier = transformers.pipeline("text-classification", model=folder, trust_remote_code=True)
    for row in examples:
        given = {"text": row["text"], "text_pair": row["text_pair"]} if "text_pair" in row else row["text"]
        best = classifier(given, truncation=True, max_length=128)
        best = best[0] if isinstance(best, list) else best
        shown = " ".join(row["text"].split())[:90]
        print(f"  {shown}\n      {best['label']} {best['score']:.0%} (right: {row['gold']})")


def answer(folder: str, examples: list[dict]) -> None:
    """The context of each question with the likeliest span marked, by the pipeline that the folder brings along."""
    answers = transformers.pipeline("question-answering", model=folder, trust_remote_code=True)
    for row in examples:
        best, context = answers(row), row["context"]
        first, last = best["start"], best["end"]
        around = f"{context[max(0, first - 60) : first]}>>{best['answer']}<<{context[last : last + 30]}"
        right = row["gold"][0] if row["gold"] else "it does not say"
        print(f"  {row['question']}\n      ...{' '.join(around.split())}... (right: {right})")


def main() -> None:
    """Load the folder's configuration, then do what its head is for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Folder of a model.")
    parser.add_argument("--examples", help="Examples for a fine-tuned model. Default: its predictions.jsonl.")
    parser.add_argument("--number", type=int, default=2, help="Examples to show.")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()

    if not Path(options.model, "config.json").is_file():
        parser.error(f"--model {options.model} is not the folder of a model: it has no config.json")
    config = transformers.AutoConfig.from_pretrained(options.model, trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model, trust_remote_code=True)
    head = (config.architectures or [""])[0]
    examples: list[dict] = []
    if "SequenceClassification" in head or "QuestionAnswering" in head:
        path = Path(options.examples or Path(options.model, "predictions.jsonl"))
        if not path.is_file():
            parser.error(f"--examples {path}: no such file; fine-tuning writes predictions.jsonl beside the model")
        examples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[: options.number]]
    if "CausalLM" in head:
        continue_prompts(options.model, tokenizer)
    elif "SequenceClassification" in head:
        classify(options.model, examples)
    elif "QuestionAnswering" in head:
        answer(options.model, examples)
    else:
        fill_masks(options.model, tokenizer)


if __name__ == "__main__":
    main()
