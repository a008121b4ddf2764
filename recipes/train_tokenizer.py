"""Train a tokenizer on raw text.

    python recipes/train_tokenizer.py                                              # the built-in corpus, seconds
    python recipes/train_tokenizer.py --data my_texts/ --vocab_size 16384 --output_dir runs/tokenizer

Writes the tokenizer (it loads with `AutoTokenizer.from_pretrained`) and tokenizer_report.json.
"""

import json
import time
import warnings
from pathlib import Path

from corpus import builtin_documents, read_documents
from tokenization import (
    TokenizerArguments,
    compression_report,
    save_tokenizer,
    tokenizer_fingerprint,
    train_bpe,
)
from training import exit_cleanly, parse_arguments


def main() -> None:
    (arguments,) = parse_arguments((TokenizerArguments,))
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"

    def documents():
        if not arguments.data:
            return builtin_documents()
        return read_documents(paths=arguments.data, text_column=arguments.text_column)

    start = time.perf_counter()
    tokenizer = train_bpe(
        documents=documents(), vocab_size=arguments.vocab_size, min_frequency=arguments.min_frequency
    )
    seconds = time.perf_counter() - start
    report = compression_report(tokenizer=tokenizer, documents=documents())
    report |= {"training_seconds": round(seconds, 2), "fingerprint": tokenizer_fingerprint(tokenizer)}

    output_dir = Path(arguments.output_dir)
    save_tokenizer(tokenizer=tokenizer, output_dir=output_dir)
    text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
    (output_dir / "tokenizer_report.json").write_text(text, encoding="utf-8")
    source = ", ".join(arguments.data) or "the built-in corpus"
    print(
        f"trained on {report['documents']:,} documents, {report['bytes'] / 1e6:.2f} MB of {source} in {seconds:.1f} s"
    )
    print(f"vocabulary size   {report['vocab_size']:,} ({report['unused_tokens']:,} tokens unused in this text)")
    print(f"bytes per token   {report['bytes_per_token']:.2f}")
    print(f"tokens per word   {report['tokens_per_word']:.2f}")
    print(f"saved in {output_dir}")


if __name__ == "__main__":
    exit_cleanly(main)
