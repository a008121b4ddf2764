"""What a student learns from a teacher: answers that are asked once and kept, and a loss that a slow reference agrees
with."""

import json
import math
import pickle
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

from lacuna.common.errors import InputError, StorageError
from lacuna.modeling import LacunaConfig, LacunaForCausalLM, LacunaForMaskedLM
from lacuna.objectives import IGNORED, OBJECTIVES, DistillationArguments, ObjectiveArguments, fingerprint_of
from lacuna.objectives.distillation import DISTILLED, Answers, load_teacher, teacher_nats

VOCAB, CPU = 60, torch.device("cpu")
SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32, "initializer_range": 0.5}
MODELS: dict[str, Any] = {"mlm": (LacunaForMaskedLM, "modernbert"), "clm": (LacunaForCausalLM, "qwen3")}
SIZED = ("ids.bin", "log_probs.bin")  # answers, beside what is about them
KINDS = pytest.mark.parametrize("kind", DISTILLED)


def model_of(kind: str, *, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    head, family = MODELS[kind]
    return head(LacunaConfig.from_family(family, **SMALL)).eval()


@pytest.fixture(scope="module")
def store(store_of):
    generator = np.random.default_rng(3)
    return store_of([[generator.integers(5, VOCAB, size=generator.integers(3, 30)).tolist()] for _ in range(60)])


@pytest.fixture
def make(store, parts, monkeypatch, tmp_path):
    monkeypatch.setenv("LACUNA_CACHE", str(tmp_path))

    def make(kind: str, *, options: dict[str, Any] | None = None, **overrides: Any):
        how = DistillationArguments(teacher="teacher", **{"top_k": 4, **(options or {})})
        return DISTILLED[kind](how=how, **parts(store, objective=kind, **overrides))

    return make


def learned(work: Any, teacher: Any) -> Any:
    work.learn_from(teacher, made_of={"teacher": fingerprint_of(teacher), "corpus": "text"}, device=CPU)
    return work


def files(work: Any) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(work.answers.folder.iterdir())}


# The loss


def soft_loss(logits: Any, ids: Any, log_probs: Any) -> float:
    student = torch.as_tensor(logits, dtype=torch.float32).log_softmax(dim=-1)
    return teacher_nats(student, torch.as_tensor(ids), torch.as_tensor(log_probs)).item()


def test_the_loss_is_that_of_a_reference_in_plain_python() -> None:
    """Of two targets and four tokens, two of which are kept."""
    logits, ids = [[0.5, -1.0, 2.0, 0.25], [0.0, 3.0, 1.0, -1.0]], [[2, 0], [1, 2]]
    log_probs, total = [[-0.1, -3.0], [-1.0, -2.0]], 0.0
    for student, kept, teacher in zip(logits, ids, log_probs, strict=True):
        weights = [math.exp(value) for value in student]
        shares = [math.exp(value) for value in teacher]
        total -= sum(
            share * math.log(weights[token] / sum(weights)) for share, token in zip(shares, kept, strict=True)
        )
        rest = sum(weight for token, weight in enumerate(weights) if token not in kept)
        total -= (1 - sum(shares)) * math.log(rest / sum(weights))
    found = soft_loss(logits, ids, log_probs)
    assert found == pytest.approx(total, rel=1e-6)
    assert found == pytest.approx(2.30252, abs=1e-4)


@pytest.mark.parametrize("top_k", [1, 16, 50])
def test_nobody_is_better_than_the_teacher(top_k: int) -> None:
    """With all tokens kept it is divergence and entropy; with fewer the teacher itself is at the minimum, too."""
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(7, 50, generator=generator) * 3 for _ in range(2))
    shares, logs = teacher.softmax(dim=-1), student.log_softmax(dim=-1)
    best = shares.log().topk(top_k)
    entropy = float(-(shares * shares.log()).sum())
    whole = float(functional.kl_div(logs, shares, reduction="sum")) + entropy
    found = soft_loss(student, best.indices, best.values)
    assert found == pytest.approx(whole, rel=1e-5) if top_k == 50 else found < whole
    own = teacher.clone().requires_grad_()
    nats = teacher_nats(own.log_softmax(dim=-1), best.indices, best.values)
    nats.backward()
    assert own.grad is not None and own.grad.abs().max() < 1e-5 and nats.item() < found
    assert top_k < 50 or nats.item() == pytest.approx(entropy, rel=1e-5)


@KINDS
@pytest.mark.parametrize("packing", ["concatenate", "none"])
def test_a_step_is_the_mixture_over_all_its_targets(make, kind, packing) -> None:
    """Whole, and added up over two micro-batches; target by target from the logits of every row alone."""
    how = {"distill_weight": 0.3, "top_k": 4}
    teacher, student = model_of(kind), model_of(kind, seed=1)
    work = learned(make(kind, packing=packing, options=how), teacher)
    examples = [work.example(row, row) for row in range(8)]
    batch = work.collate(examples)
    count = work.count_targets(batch)
    targets = {name: torch.tensor(value) for name, value in count.items()}
    loss, metrics = work.loss(student, batch, targets)
    hard = soft = 0.0
    for example in examples:
        alone = {
            name: torch.from_numpy(example[name])[None] for name in example if name in ("input_ids", "position_ids")
        }
        with torch.no_grad():
            ours, theirs = (model(**alone).logits[0].double() for model in (student, teacher))
        places = np.flatnonzero(example["labels"] != IGNORED)
        for place, label in zip(places - (kind == "clm"), example["labels"][places], strict=True):
            hard -= float(ours[place].log_softmax(-1)[label])
            best, shares = theirs[place, :VOCAB].softmax(-1).topk(4).indices, theirs[place, :VOCAB].softmax(-1)
            known = ours[place].softmax(-1)
            soft -= float((shares[best] * known[best].log()).sum())
            soft -= float((1 - shares[best].sum()) * (1 - known[best].sum()).log())
        assert len(places) == len(example["teacher_ids"])
    total = count["tokens"]
    assert float(metrics["text_loss"]) == pytest.approx(hard / total, rel=1e-5)
    assert float(metrics["teacher_loss"]) == pytest.approx(soft / total, rel=1e-3)  # float16 on disk
    assert loss.item() == pytest.approx(0.3 * float(metrics["teacher_loss"]) + 0.7 * hard / total, rel=1e-5)
    parts = [
        work.loss(student, work.with_hints(work.collate(part)), targets)[0] for part in (examples[:3], examples[3:])
    ]
    assert sum(parts).item() == pytest.approx(loss.item(), rel=1e-5)


# What the teacher is asked


@KINDS
def test_answers_are_those_of_the_teacher_to_each_document_alone(make, kind) -> None:
    teacher = model_of(kind)
    work = learned(make(kind), teacher)
    several = 0
    for number in range(work.num_examples):
        bounds, example = work.rows[number].bounds, work.example(number, number)
        several += len(bounds) > 2
        expected = []
        for left, right in pairwise(bounds.tolist()):
            with torch.no_grad():
                logits = teacher(input_ids=torch.from_numpy(example["input_ids"][left:right])[None]).logits[0]
            places = np.flatnonzero(example["labels"][left:right] != IGNORED) - (kind == "clm")
            expected.append(logits[places, :VOCAB].log_softmax(dim=-1).topk(4))
        ids = torch.cat([each.indices for each in expected]).numpy()
        values = torch.cat([each.values for each in expected]).numpy()
        np.testing.assert_allclose(example["teacher_log_probs"], values, atol=0.01)
        assert (example["teacher_ids"] == ids).mean() > 0.99  # two that are as likely may change places
    assert several > 5


@KINDS
def test_held_out_examples_and_scores_are_those_of_the_plain_objective(make, parts, store, kind) -> None:
    plain, work, teacher = OBJECTIVES[kind](**parts(store, objective=kind)), make(kind), model_of(kind)
    assert (work.num_examples, work.num_eval_examples) == (plain.num_examples, plain.num_eval_examples)
    rows = range(plain.num_eval_examples)
    for row in rows:
        assert all((plain.eval_example(row)[name] == value).all() for name, value in work.eval_example(row).items())
    with torch.no_grad():
        records = plain.evaluate(teacher, plain.collate([plain.eval_example(row) for row in rows]))
    scores = plain.summarize(records)
    assert work.judge(teacher, device=CPU) == pytest.approx(scores) and scores["loss"] > 0
    assert work.baseline() == plain.baseline()


def test_masks_depend_on_the_row_alone(make, parts, store) -> None:
    work = learned(make("mlm"), model_of("mlm"))
    rows = work.num_examples
    shown = [work.example(7, index) for index in (3, rows - 1, 2 * rows, 3 * rows + 5)]
    for other in shown[1:]:
        assert all((shown[0][name] == other[name]).all() for name in shown[0])
    plain = OBJECTIVES["mlm"](**parts(store, objective="mlm")).example(7, 7)  # as a run without a teacher draws them
    assert all((shown[0][name] == plain[name]).all() for name in plain)
    assert work.answers.about["targets"] == sum(len(work.example(row, 0)["teacher_ids"]) for row in range(rows))


# What is kept


@KINDS
def test_answers_are_found_again_and_asked_anew_for_another_teacher_or_rows(make, kind, capsys) -> None:
    work = learned(make(kind), model_of(kind))
    before, said = files(work), capsys.readouterr().out
    size = work.answers.about["targets"] * 4 * 4
    assert f"{size / 1e6:,.1f} MB" in said and len(before["ids.bin"]) + len(before["log_probs.bin"]) == size
    again = learned(make(kind, max_eval_examples=3, options={"distill_weight": 1.0}), model_of(kind))
    assert files(again) == before and again.answers.folder == work.answers.folder
    assert capsys.readouterr().out == ""
    folders = {work.answers.folder}
    if kind == "mlm":
        folders |= {learned(make(kind, mask_probability=0.4), model_of(kind)).answers.folder}
        assert len(folders) == 2
    for other in (
        learned(make(kind), model_of(kind, seed=1)),
        learned(make(kind, options={"top_k": 5}), model_of(kind)),
        learned(make(kind, seed=1), model_of(kind)),
        learned(make(kind, sequence_length=16), model_of(kind)),
        learned(make(kind, eval_fraction=0.2), model_of(kind)),
        learned(make(kind, packing="none"), model_of(kind)),
    ):
        assert other.answers.folder not in folders
        folders.add(other.answers.folder)
    assert {path.name for path in work.answers.folder.parent.iterdir() if path.is_dir()} == {it.name for it in folders}


def test_a_cache_that_is_not_whole_is_made_again_to_the_bit(make, monkeypatch) -> None:
    work = learned(make("clm"), model_of("clm"))
    before = {name: content for name, content in files(work).items() if name.endswith(".bin")}
    folder: Path = work.answers.folder
    for name, content in (("ids.bin", before["ids.bin"][:-8]), ("about.json", b"{"), ("offsets.bin", b"")):
        (folder / name).write_bytes(content)
        found = files(learned(make("clm"), model_of("clm")))
        assert {name: found[name] for name in before} == before

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lacuna.objectives.distillation.sync", full)
    with pytest.raises(StorageError, match=r"cannot write the teacher's answers to .*No space left"):
        learned(make("clm", seed=9), model_of("clm"))
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_answers_that_do_not_fit_the_disk_are_not_begun(make, monkeypatch) -> None:
    size = sum(len(content) for name, content in files(learned(make("clm"), model_of("clm"))).items() if name in SIZED)
    free = size - 1
    monkeypatch.setattr("lacuna.objectives.distillation.shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(StorageError, match=r"where 0\.0 MB are free: lower --top_k"):
        learned(make("clm"), model_of("clm", seed=1))
    free = size
    learned(make("clm"), model_of("clm", seed=1))


def test_workers_that_do_not_fork_read_the_same_files(make) -> None:
    work = learned(make("mlm"), model_of("mlm"))
    content = pickle.dumps(work.answers)
    assert len(content) < 1000
    copy = pickle.loads(content)  # noqa: S301
    assert isinstance(copy, Answers)
    assert all((copy[5][name] == value).all() for name, value in work.answers[5].items())


def test_a_fingerprint_tells_weights_and_not_places(tmp_path: Path) -> None:
    model = model_of("mlm")
    for name in ("here", "there"):
        model.save_pretrained(tmp_path / name)
    here, there = (LacunaForMaskedLM.from_pretrained(tmp_path / name) for name in ("here", "there"))
    assert fingerprint_of(here) == fingerprint_of(there)
    with torch.no_grad():
        next(there.parameters()).flatten()[0] += 1
    assert fingerprint_of(here) != fingerprint_of(there)


def test_the_page_has_the_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "distillation.md").read_text(encoding="utf-8")
    for name in ("top_k", "distill_weight"):
        assert f"| `--{name}` | {getattr(DistillationArguments, name)} |" in page


# What is refused


def test_options_that_cannot_be_are_refused(make) -> None:
    with pytest.raises(InputError, match=r"--distill_weight 0\.4 means nothing without --teacher"):
        DistillationArguments(distill_weight=0.4)
    for name, value in (("distill_weight", 0), ("distill_weight", 1.1), ("top_k", 0)):
        with pytest.raises(InputError, match=f"--{name} must .*got {value}"):
            DistillationArguments(teacher="x", **{name: value})
    with pytest.raises(InputError, match="--top_k 61 is more than the 60 tokens"):
        make("clm", options={"top_k": 61})


def test_a_teacher_that_reads_across_documents_is_refused(make) -> None:
    teacher = BertForMaskedLM(BertConfig(**SMALL, max_position_embeddings=64)).eval()
    with pytest.raises(InputError, match=r"--teacher teacher: BertForMaskedLM reads across.*--packing none"):
        learned(make("mlm"), teacher)
    work = learned(make("mlm", packing="none"), teacher)
    assert json.loads((work.answers.folder / "about.json").read_text())["made_of"]["packing"] == "none"


def test_a_teacher_reads_rows_as_long_as_its_positions(tmp_path: Path) -> None:
    BertForMaskedLM(BertConfig(**SMALL, max_position_embeddings=32)).save_pretrained(tmp_path)
    goals = [ObjectiveArguments(objective="mlm", sequence_length=length) for length in ("32", "33")]
    teacher = load_teacher(str(tmp_path), goals[0], as_ours=lambda model: model)
    assert not teacher.training and not any(weight.requires_grad for weight in teacher.parameters())
    with pytest.raises(InputError, match="--sequence_length 33 is more than the 32 positions of --teacher"):
        load_teacher(str(tmp_path), goals[1], as_ours=lambda model: model)
