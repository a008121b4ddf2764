"""recipes/inspect_model.py: a page and pictures of models of all three shapes; a mistake is one line."""

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import processes
import pytest
import torch
from hub_server import HubServer
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

TEXTS = ["The dog sleeps.", "The fox sleeps."]
ONE = {"attention_1.png", "predictions_1.png", "neighbours_1.png", "tokens.png", "inspection.html"}
TWO = {"attention_2.png", "predictions_2.png", "neighbours_2.png", "difference_2.png"}


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process pictures are empty files: the encoder's, from a process of its own, are drawn."""

    @contextmanager
    def picture(path: Path, width: float, height: float, title: str) -> Iterator[MagicMock]:
        yield MagicMock()
        path.write_bytes(b"")

    monkeypatch.setattr("lacuna.evaluation.inspection._picture", picture)


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found
    return json.loads(found[1])


def bart(folder: Path, source: Path, kind: type = BartForConditionalGeneration) -> Path:
    """A native encoder-decoder of 32 hidden units, with the tokenizer of another."""
    folder.mkdir()
    for path in source.glob("*token*"):
        (folder / path.name).write_bytes(path.read_bytes())
    torch.manual_seed(3)
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 64, "vocab_size": 320}
    sizes |= {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("attention_heads", "ffn_dim")}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    kind(BartConfig(**sizes, **special, forced_eos_token_id=3)).save_pretrained(folder)
    return folder


def test_an_encoder_as_typed(folder_of, tmp_path: Path) -> None:
    folder = folder_of("modernbert", "LacunaForMaskedLM")
    words = [word for text in TEXTS for word in ("--text", text)]
    done = processes.run("recipes/inspect_model.py", "--model", folder, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (folder / "inspection").iterdir()} == ONE | TWO
    data = data_of(folder / "inspection" / "inspection.html")
    assert [each["text"] for each in data["texts"]] == TEXTS
    assert data["kind"] == "masked" and data["head"] == "LacunaForMaskedLM" and data["model"] == folder.name
    assert data["made_with"].startswith("python recipes/inspect_model.py --model ")
    bits = [each["bits"] for each in data["texts"][0]["predictions"]]
    mean, guess = sum(bits) / len(bits), math.log2(320)  # entries of the tokenizer
    assert f"{len(bits)} tokens, {mean:.2f} bits each ({guess:.2f} by a guess): {TEXTS[0]}" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("in a browser; pictures are beside it")


def test_a_decoder_reads_the_default_texts(folder_of, run_recipe, tmp_path: Path) -> None:
    words = ["--model", folder_of("qwen3", "LacunaForCausalLM"), "--output_dir", tmp_path / "new" / "look"]
    code, said = run_recipe("inspect_model", *words)
    assert code == 0, said
    assert {path.name for path in (tmp_path / "new" / "look").iterdir()} == ONE | TWO
    data = data_of(tmp_path / "new" / "look" / "inspection.html")
    assert [each["text"][-10:] for each in data["texts"]] == [" too tired", "s too wide"] and data["kind"] == "causal"


@pytest.mark.parametrize("native", [True, False])
def test_an_encoder_decoder(native: bool, folder_of, run_recipe, tmp_path: Path) -> None:
    folder = folder_of("bart", "LacunaForConditionalGeneration")
    folder = bart(tmp_path / "bart", folder) if native else folder
    code, said = run_recipe("inspect_model", "--model", folder, "--text", TEXTS[0], "--output_dir", tmp_path / "look")
    assert code == 0, said
    pictures = {f"attention_1_{kind}.png" for kind in ("encoder", "cross", "decoder")}
    pictures |= {f"neighbours_1_{side}.png" for side in ("encoder", "decoder")}
    alone = {"attention_1.png", "neighbours_1.png"}
    assert {path.name for path in (tmp_path / "look").iterdir()} == ONE - alone | pictures
    (text,) = data_of(tmp_path / "look" / "inspection.html")["texts"]
    encoder, decoder = text["sides"]
    assert encoder["ids"] == [*decoder["ids"], 3] and decoder["ids"][0] == 2
    assert len(text["predictions"]) == len(decoder["ids"]) and text["predictions"][-1]["token"] == "[SEP]"
    shapes = [(len(each["weights"][0][0]), len(each["weights"][0][0][0])) for each in text["attention"]]
    long, short = len(encoder["ids"]), len(decoder["ids"])
    assert shapes == [(long, long), (short, long), (short, short)]


def test_a_mistake_is_one_line(
    folder_of, run_recipe: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    encoder, labels = (
        folder_of("modernbert", "LacunaForMaskedLM"),
        folder_of("bert", "LacunaForSequenceClassification"),
    )
    paired = bart(tmp_path / "labels", encoder, BartForSequenceClassification)
    look = ["--output_dir", "look"]
    for words, message in (
        ([], "name a pretrained model's folder or Hub id with --model"),
        (["--model", tmp_path / "nothing"], "there is no folder"),
        (["--model", encoder, "--text", ""], "--text 1 ('') is empty"),
        (["--model", encoder, "--text", "a", "--text", "  "], "--text 2 ('  ') is empty"),
        (["--model", encoder, "--text", "dog " * 90], "tokens, and the model takes at most 64: shorten it"),
        (["--model", encoder, "--text", "\ud800"], "which is not a character"),
        (["--model", labels], "a LacunaForSequenceClassification predicts no tokens: name a model with a language"),
        (["--model", paired], "a BartForSequenceClassification predicts no tokens"),
        (["--model", encoder, "--revision", "main"], "--revision main is for a --model of the Hub"),
    ):
        code, said = run_recipe("inspect_model", *words, *look)
        assert code == 2 and message in said and "Traceback" not in said, said
    assert not Path("look").exists()
    Path("look").write_text("a file")
    monkeypatch.setattr("lacuna.evaluation.load_language_model", None)  # it is refused before anything is loaded
    for place in ("look", "look/inside"):
        code, said = run_recipe("inspect_model", "--model", encoder, "--text", TEXTS[0], "--output_dir", place)
        assert code == 2 and "is a file, not a folder; choose another --output_dir" in said, said


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_model_of_the_hub(kind: str, run_recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tokenizer of its family: pieces of words with ##, or bytes."""
    torch.manual_seed(3)
    if kind == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "dog", "fox", "sl", "##eep", "##s", "."]
        tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        model = BertForMaskedLM(BertConfig(vocab_size=len(words), max_position_embeddings=64, **sizes))
        pieces = ["the", "dog", "sl", "##eep", "##s", "."]
    else:
        letters = [*bytes_to_unicode().values(), "<|endoftext|>"]
        tokenizer = GPT2Tokenizer(vocab={letter: number for number, letter in enumerate(letters)}, merges=[])
        ends = {"bos_token_id": 256, "eos_token_id": 256}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_embd=32, n_layer=2, n_head=2, n_positions=64, **ends))
        pieces = list(TEXTS[0])
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    monkeypatch.chdir(tmp_path)
    with HubServer() as hub, hub.environment(monkeypatch, tmp_path / "home"):
        commit = hub.add("me/native", files).branches["main"]
        code, said = run_recipe("inspect_model", "--model", "me/native", *(w for t in TEXTS for w in ("--text", t)))
    assert code == 0, said
    assert {path.name for path in (tmp_path / "inspection").iterdir()} == ONE | TWO
    data = data_of(tmp_path / "inspection" / "inspection.html")
    assert (
        data["model"] == "me/native" and data["head"] == type(model).__name__ and f"revision {commit}" in data["facts"]
    )
    (side,) = data["texts"][0]["sides"]
    shown = [token for token, special in zip(side["tokens"], side["special"], strict=True) if not special]
    assert shown == pieces
