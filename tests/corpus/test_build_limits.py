"""What a build refuses or takes in the odd cases of places, names, weights and shards."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from corpus import TextArguments, TokenStore, open_text, prepare_store
from corpus import pieces as pieces_module
from tokenization import train_bpe


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(documents=["The cat sat. The dog ran! A new one. " * 20], vocab_size=280)


def prepare(data: list[str], tokenizer: Any, output_dir: Path | str, **options: Any) -> TokenStore | None:
    kinds = {name: options.pop(name) for name in ("document_boundary", "on_bad_record") if name in options}
    return prepare_store(
        text=open_text(TextArguments(data=data, **kinds)),
        tokenizer=tokenizer,
        tokenizer_fingerprint="t1",
        output_dir=output_dir,
        num_workers=0,
        **options,
    )


@pytest.mark.parametrize("gap", [" \n\n", "\t \n\n", "\u3000\n\n", "\n \n\n"])
def test_sections_are_not_cut_inside_white_space(
    gap: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces_module, "SECTION_BYTES", 50)
    text = gap.join(["The cat sat. The dog ran!"] * 20)
    (tmp_path / "a.txt").write_text(text)
    assert len(list(pieces_module.cut_sections(text.encode()))) > 3
    store = prepare([f"{tmp_path}/a.txt"], tokenizer, tmp_path / "store")
    assert store is not None
    assert store.document_tokens(0).tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "".join(pieces_module.cut_sections(b" " * 500)) == " " * 500
