"""Rows and scores that time_to_loss.py goes by, against independent computations."""

import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from contenders import IGNORED, Trainee
from examples import fast
from held_out import (
    HEADS,
    Kind,
    Material,
    encode,
    find_split,
    group_texts,
    make_masker,
    open_material,
    run_and_score,
    score,
)
from time_to_loss import PEERS, Budget, batches, kind_of, train_peer

from lacuna import modeling


def test_texts_are_joined_and_cut() -> None:
    rows = group_texts([[2, 7, 3], [2, 3], [2, 8, 9, 10, 3]], 4)
    assert rows.tolist() == [[2, 7, 3, 2], [3, 2, 8, 9]]  # 10 and 3 fill no row
    with pytest.raises(SystemExit, match="the text has 3 tokens, and a row 4"):
        group_texts([[2, 7, 3]], 4)


def test_the_files_of_a_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "wiki.valid.tokens").write_text("a")
    assert find_split(tmp_path, "valid").name == "wiki.valid.tokens"
    with pytest.raises(SystemExit, match="'train' in its name; there is: none"):
        find_split(tmp_path, "train")


@pytest.fixture(scope="module")
def materials(two_texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Material]:
    return {kind: opened(kind, two_texts, tmp_path_factory.mktemp("work")) for kind in get_args(Kind)}


@pytest.fixture(params=get_args(Kind))
def material(request: pytest.FixtureRequest, materials: dict[Kind, Material]) -> Material:
    return materials[request.param]


def opened(kind: Kind, data: Path, work_dir: Path, length: int = 32) -> Material:
    return open_material(kind, Namespace(data=data, work_dir=work_dir, length=length, vocab_size=400))


def test_the_same_is_made_again(material, two_texts: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    other = opened(material.kind, two_texts, tmp_path)
    assert other.fingerprint == material.fingerprint
    assert torch.equal(other.labels, material.labels)
    shorter = opened(material.kind, two_texts, tmp_path, 16)
    assert shorter.fingerprint != material.fingerprint


def test_rows_hold_the_text(material, two_texts: Path) -> None:  # type: ignore[no-untyped-def]
    held_out, tokenizer = material, material.tokenizer
    text = (two_texts / "valid.txt").read_text()
    originals = torch.where(held_out.labels == IGNORED, held_out.inputs, held_out.labels)
    if material.kind == "causal":
        assert text.startswith(tokenizer.decode(originals.flatten()))
        assert (held_out.labels[:, 0] == IGNORED).all() and torch.equal(held_out.labels[:, 1:], held_out.inputs[:, 1:])
        return
    lines = tokenizer.decode(originals.flatten()).removeprefix("[CLS]").split("[SEP][CLS]")
    assert lines[:-1] == text.split("\n")[: len(lines) - 1]
    assert encode("a\n\nb\n", tokenizer, "masked")[1] == [tokenizer.cls_token_id, tokenizer.sep_token_id]
    chosen = held_out.labels != IGNORED
    special = torch.zeros(len(tokenizer), dtype=torch.bool)
    special[tokenizer.all_special_ids] = True
    assert not special[held_out.labels[chosen]].any()
    assert 0.10 < chosen[~special[originals]].float().mean() < 0.20
    hidden = (held_out.inputs == tokenizer.mask_token_id)[chosen].float().mean()
    assert 0.7 < hidden < 0.9


def test_scores_are_those_of_a_plain_computation(material) -> None:  # type: ignore[no-untyped-def]
    held_out, tokenizer = replace(material, inputs=material.inputs[:5], labels=material.labels[:5]), material.tokenizer
    torch.manual_seed(0)
    sizes = {"vocab_size": 448, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    family, head = ("modernbert", modeling.LacunaForMaskedLM), ("qwen3", modeling.LacunaForCausalLM)
    family, head = family if material.kind == "masked" else head
    sizes |= {} if material.kind == "masked" else {"num_key_value_heads": 1}
    model = head(modeling.LacunaConfig.from_family(family, "tiny", initializer_range=0.5, **sizes)).train()
    found = score(model, held_out)
    assert model.training
    model.eval()
    bits, size, count, nats = 0.0, 0, 0, 0.0
    for row, labels in zip(held_out.inputs, held_out.labels, strict=True):
        with torch.no_grad():
            chances = model(input_ids=row[None]).logits[0].double().softmax(-1)
        for place, label in enumerate(labels.tolist()):
            if label == IGNORED:
                continue
            chance = float(chances[place - (material.kind == "causal"), label])
            bits, nats, count = bits - math.log2(chance), nats - math.log(chance), count + 1
            size += len(tokenizer.convert_ids_to_tokens(label))  # byte-level: a character for each byte
    assert found["targets"] == count > 0
    assert found["loss"] == pytest.approx(nats / count, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(bits / size, rel=1e-5)


def test_positions_begin_anew_with_each_line() -> None:
    labels = torch.tensor([[IGNORED, IGNORED, IGNORED, IGNORED, 8, IGNORED]])
    inputs = torch.tensor([[7, 3, 2, 5, 2, 3]])  # the second 2 is no beginning: it hides an 8
    tokenizer, none = SimpleNamespace(cls_token_id=2), torch.ones(10, dtype=torch.long)
    held_out = Material("masked", Path(), tokenizer, Path(), inputs, inputs, labels, none, "")
    assert held_out.positions().tolist() == [[0, 1, 0, 1, 2, 3]]


def test_batches_of_peers_hold_every_row_once_an_epoch(material) -> None:  # type: ignore[no-untyped-def]
    rows = len(material.train)
    stream = batches(material, batch_size=rows - 1, seed=0, masked=0.5)
    made = [next(stream) for _ in range(3)]
    assert {len(batch["labels"]) for batch in made} == {rows - 1}  # compiled models want one shape
    labels, inputs = (torch.cat([batch[name] for batch in made]) for name in ("labels", "input_ids"))
    originals = torch.where(labels == IGNORED, inputs, labels)
    epochs = [originals[:rows], originals[rows : 2 * rows]]
    for each in epochs:
        assert sorted(each.tolist()) == sorted(material.train.tolist())
    assert not torch.equal(*epochs)  # another order
    if material.kind == "masked":
        special = torch.isin(originals, torch.tensor(material.tokenizer.all_special_ids))
        assert 0.45 < (labels != IGNORED)[~special].float().mean() < 0.55


def test_masks_are_drawn_anew(materials: dict[Kind, Material]) -> None:
    material = materials["masked"]
    mask = make_masker(material.tokenizer, torch.Generator().manual_seed(1))
    assert not torch.equal(mask(material.train[:8])[1], mask(material.train[:8])[1])


@pytest.mark.parametrize("name", fast(PEERS, "bert", "qwen3_muon"))
def test_peers_learn_the_same_twice(
    name: str, materials: dict[Kind, Material], monkeypatch: pytest.MonkeyPatch
) -> None:
    material = materials[kind_of(name)]
    monkeypatch.setattr("time_to_loss.LAYERS", 2)
    monkeypatch.setattr("time_to_loss.WIDTH", 64)
    monkeypatch.setattr("contenders.compiler_of", lambda device: None)
    settings = {key: value[0] if isinstance(value, tuple) else value for key, value in PEERS[name][1].items()}
    settings |= {"batch_size": 2, "dropout": 0.25, "warmup": 0.0, "decay": 0.5}
    rates, drops, untrained = [], [], []

    class Watched(Trainee):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            drops.append(options["dropout"])
            super().__init__(*arguments, **options)
            untrained.append(score(self.model, material)["loss"])

        def step(self, *arguments: Any, **options: Any) -> torch.Tensor:
            rates.append({group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups})
            return super().step(*arguments, **options)

    monkeypatch.setattr("time_to_loss.Trainee", Watched)
    options = {"material": material, "budget": Budget(steps=4), "settings": settings}
    runs = [train_peer(name, **options, seed=0) for _ in range(2)]
    assert drops == [0.25, 0.25]
    assert rates == 2 * [{settings["learning_rate"] * share} for share in (1, 1, 1, 0.5)]
    assert runs[0]["loss"] == runs[1]["loss"] < untrained[0] == untrained[1]
    assert runs[0]["steps"] == 4 and runs[0]["tokens"] == 4 * 2 * 32
    assert runs[0]["seconds"] > 0


def test_our_seconds_begin_with_the_warm_start(material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def run_recipe(name: str, options: dict[str, Any]) -> dict[str, int]:
        Path(options["output_dir"]).mkdir()
        Path(options["output_dir"], "run.json").write_text('{"warm_start_seconds": 3}')
        return {"steps": 1, "train_tokens": 2, "train_seconds": 5}

    model = SimpleNamespace(to=lambda device: None, num_parameters=lambda: 1)
    monkeypatch.setattr("held_out.run_recipe", run_recipe)
    monkeypatch.setattr("held_out.score", lambda *words, **options: {})
    monkeypatch.setattr(f"transformers.{HEADS[material.kind]}.from_pretrained", lambda *words, **options: model)
    assert run_and_score({}, material, Namespace(work_dir=tmp_path))["seconds"] == 5 + 3
