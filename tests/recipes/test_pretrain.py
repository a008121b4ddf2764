"""The pretraining recipe as people run it: the same samples on any number of processes, and what bad input gets."""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from lacuna import modeling
from lacuna.common.errors import InputError
from lacuna.common.loading import load_tokenizer
from lacuna.modeling import (
    SIZES,
    LacunaConfig,
    LacunaForCausalLM,
    LacunaForMaskedLM,
    LacunaModel,
    LacunaPreTrainedModel,
)
from lacuna.objectives import OBJECTIVES
from lacuna.tokenization import save_tokenizer, train_bpe
from lacuna.training.arguments import NewModelArguments
from lacuna.training.starting_model import starting_model

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = REPOSITORY / "recipes" / "pretrain.py"
OBSERVED = Path(__file__).with_name("observed_pretrain.py")
TEXT = "the a cat dog bird sat ran sang on under over mat tree house and but then when it was so very old new"
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small text of forty documents, a tokenizer of 300 ids, and a cache."""
    folder = tmp_path_factory.mktemp("home")
    chance = random.Random(0)
    rows = []
    for _ in range(40):
        sentences = [
            " ".join(chance.choices(TEXT.split(), k=chance.randint(3, 12))) for _ in range(chance.randint(2, 12))
        ]
        rows.append({"text": " ".join(f"{sentence.capitalize()}." for sentence in sentences)})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = train_bpe(documents=[row["text"] for row in rows], vocab_size=300)
    save_tokenizer(tokenizer=tokenizer, output_dir=folder / "tokenizer")
    return folder


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "LACUNA_CACHE": str(home / "cache")}


def run(home: Path, *words: object, num_processes: int = 1) -> subprocess.CompletedProcess[str]:
    return processes.run(*words, env=environment(home), num_processes=num_processes)


def options_of(home: Path, output: Path, *more: object) -> list[object]:
    return [
        *("--data", home / "rows.jsonl", "--tokenizer", home / "tokenizer", "--output_dir", output),
        *("--sequence_length", 32, "--batch_size", 8, "--max_steps", 5, "--mixed_precision", "no"),
        *("--logging_steps", 1, "--save_steps", 0, "--eval_steps", 0),
        *(() if "--model" in more else ("--num_hidden_layers", 1)),
        *("--optimizer", "adamw", *more),  # Muon's products in bf16 would hide what rounding in float32 shows
    ]


def losses(output: Path) -> list[float]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def rows_by_step(folder: Path, number: int, num_processes: int = 1) -> list[list[str]]:
    """For each of the five steps the hashes of its eight rows, those of the first process first."""
    ranks = [(folder / f"{number}-{rank}.txt").read_text().split() for rank in range(num_processes)]
    share = 8 // num_processes
    return [[line for rank in ranks for line in rank[step * share : (step + 1) * share]] for step in range(5)]


def test_samples_masks_and_loss_do_not_depend_on_how_a_step_is_divided(home, tmp_path) -> None:
    """One process with 8 rows at once, one with 4 twice, two with 4 each: the same rows, masks and loss."""
    alone, both, others = (tmp_path / name for name in ("alone", "both", "others"))
    alone.mkdir(), both.mkdir(), others.mkdir()
    kinds = ["mlm_nsp", "mlm", "clm", "spans"]
    words: list[object] = []
    for kind in kinds:
        for micro in (8, 4):
            more = ["--objective", kind, "--micro_batch_size", micro]
            more += [] if kind == "mlm_nsp" else ["--eval_fraction", 0]  # saves the time of evaluating
            words += ["--then", *options_of(home, tmp_path / f"{kind}-{micro}", *more)]
    one = run(home, OBSERVED, alone, *words[1:])
    assert one.returncode == 0, one.stderr
    assert "running on 1 process\n" in one.stdout
    said = [line.split("objective: ")[1] for line in one.stdout.splitlines() if "objective: " in line][::2]
    default = "mlm, the default, which takes any text; for a classifier of topics with few labels "
    default += "--objective mlm_contrastive is a better start"
    assert said == ["mlm_nsp", default, "clm", "spans"]
    more = ["--objective", "mlm_nsp", "--micro_batch_size", 4]
    two = run(home, OBSERVED, both, *options_of(home, tmp_path / "two", *more), num_processes=2)
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("running on 2 processes\n") == 1
    spans = options_of(home, tmp_path / "two-spans", "--objective", "spans", "--eval_fraction", 0)
    again = run(home, OBSERVED, others, *spans, num_processes=2)
    assert again.returncode == 0, again.stderr

    for number, kind in enumerate(kinds):
        whole, halves = rows_by_step(alone, 2 * number), rows_by_step(alone, 2 * number + 1)
        assert whole == halves and all(len(step) == 8 for step in whole)
        assert len({line for step in whole for line in step}) == 40  # fresh rows or fresh masks in every step
        assert losses(tmp_path / f"{kind}-4") == pytest.approx(losses(tmp_path / f"{kind}-8"), rel=1e-5)
    assert rows_by_step(both, 0, num_processes=2) == rows_by_step(alone, 0)
    assert rows_by_step(others, 0, num_processes=2) == rows_by_step(alone, 6)
    assert losses(tmp_path / "two-spans") == pytest.approx(losses(tmp_path / "spans-8"), rel=1e-5)
    assert len(losses(tmp_path / "two")) == 5
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "mlm_nsp-8"), rel=1e-5)
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("two", "mlm_nsp-8")]
    for name in ("eval_mlm_loss", "eval_nsp_accuracy", "baseline_mlm_loss", "train_tokens", "steps"):
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-3), name
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "two")
    assert type(model).__name__ == "ModernBertForMaskedLM" and (tmp_path / "two" / "tokenizer.json").is_file()


def test_stages_and_hybrid_rows_on_two_processes(home, tmp_path) -> None:
    """Rows and batches that grow, and a process whose micro-batch holds one kind of row only."""
    more = ["--objective", "hybrid", "--sequence_length", "16,32", "--sequence_length_at", "0,0.4"]
    more += ["--batch_size", "4,8", "--batch_size_at", "0,0.6", "--eval_fraction", 0]
    for number in (1, 2):
        options = options_of(home, tmp_path / str(number))
        del options[options.index("--sequence_length") : options.index("--max_steps")]
        micro = ["--micro_batch_size", 2 // number]
        done = run(home, OBSERVED, tmp_path, *options, *more, *micro, num_processes=number)
        assert done.returncode == 0, done.stderr
        lines = sorted(line for path in tmp_path.glob("0-*.txt") for line in path.read_text().split())
        (tmp_path / f"rows-{number}").write_text("\n".join(lines))
        for path in tmp_path.glob("0-*.txt"):
            path.unlink()
    rows = [(tmp_path / f"rows-{number}").read_text().split() for number in (1, 2)]
    assert rows[0] == rows[1] and len(rows[0]) == 4 + 4 + 4 + 8 + 8
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), rel=1e-5)
    stages = json.loads((tmp_path / "2" / "run.json").read_text())["stages"]
    assert [(stage["at"], stage["batch_size"]) for stage in stages] == [(0, 4), (0.4, 4), (0.6, 8)]


@pytest.fixture
def recipe(home, monkeypatch, run_recipe) -> Callable[..., tuple[int, str]]:
    """Runs the recipe in this process with a cache and few threads."""
    for name, value in environment(home).items():
        monkeypatch.setenv(name, value)
    return lambda *words: run_recipe("pretrain", *words)


def contents(folder: Path) -> set[Path]:
    """All that is there, apart from locks, which are meant to stay."""
    return {path for path in folder.rglob("*") if path.suffix != ".lock"}


@pytest.fixture(scope="module")
def bad(home) -> Path:
    """Files and models that cannot be used."""
    folder = home / "bad"
    folder.mkdir()
    (folder / "empty.txt").write_text("")
    (folder / "empty.jsonl").write_text("")
    (folder / "corrupt.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\n{"text": "Thr\n{"text": "Four."}\n')
    (folder / "latin1.txt").write_bytes(b"A line.\nCaf\xe9 au lait.\n")
    (folder / "no_column.jsonl").write_text('{"body": "One."}\n')
    (folder / "short.txt").write_text("A single document. It has two sentences.")
    (folder / "options.yaml").write_text("seed: 3\nlerning_rate: 1e-3\n")
    (folder / "value.yaml").write_text("seed: 3\n\nmax_steps: many\n")
    torch.manual_seed(0)
    encoder = LacunaForMaskedLM(LacunaConfig.from_family("bert", vocab_size=64, max_position_embeddings=32, **SMALL))
    encoder.save_pretrained(folder / "encoder")
    wide = LacunaForMaskedLM(LacunaConfig.from_family("bert", vocab_size=320, max_position_embeddings=32, **SMALL))
    wide.save_pretrained(folder / "wide")
    LacunaForCausalLM(LacunaConfig.from_family("qwen3", vocab_size=320, **SMALL)).save_pretrained(folder / "decoder")
    return folder


MISTAKES: dict[str, tuple[list[str], str]] = {
    "an empty file": (["--data", "{bad}/empty.txt"], "{bad}/empty.txt is empty"),
    "an empty table": (["--data", "{bad}/empty.jsonl"], "{bad}/empty.jsonl is empty"),
    "a missing file": (["--data", "{bad}/emty.txt"], "no file or folder {bad}/emty.txt. Did you mean {bad}/empty.txt"),
    "a corrupt line": (["--data", "{bad}/corrupt.jsonl"], "{bad}/corrupt.jsonl:3: not valid JSON"),
    "invalid UTF-8": (["--data", "{bad}/latin1.txt"], "{bad}/latin1.txt:2: not valid UTF-8 (0xe9), at byte 11"),
    "a missing column": (["--data", "{bad}/no_column.jsonl"], "{bad}/no_column.jsonl:1: there is no column 'text'"),
    "one document for pairs": (["--objective", "mlm_nsp", "--data", "{bad}/short.txt"], "--objective mlm"),
    "a small model": (
        ["--model", "{bad}/encoder", "--objective", "mlm"],
        "the tokenizer has 300 ids but the model embeds only 64",
    ),
    "a model with short rows": (["--model", "{bad}/wide", "--objective", "mlm"], "--sequence_length 64"),
    "a decoder for masks": (["--model", "{bad}/decoder", "--objective", "mlm"], "--model {bad}/decoder"),
    "no model": (["--model", "{bad}/nowhere", "--objective", "mlm"], "{bad}/nowhere"),
    "an unknown option": (["--lerning_rate", "1"], "unknown option '--lerning_rate' (did you mean '--learning_rate'"),
    "a misspelt key": (["--config", "{bad}/options.yaml"], "{bad}/options.yaml:2: unknown option '--lerning_rate'"),
    "a wrong value in a file": (["--config", "{bad}/value.yaml"], "{bad}/value.yaml:3: "),
    "a family of another shape": (
        ["--objective", "clm", "--family", "bert"],
        "--objective clm trains models of shape decoder",
    ),
    "an unknown family": (["--family", "brt"], "'bert'"),
    "an unknown size": (
        ["--size", "huge"],
        f"--size: invalid choice: 'huge' (choose from {', '.join(map(repr, SIZES))})",
    ),
    "an unknown objective": (["--objective", "gpt"], "'gpt'"),
    "too many processes' worth": (["--batch_size", "9", "--micro_batch_size", "2"], "--micro_batch_size 2 does not"),
    "a probability of two": (["--mask_probability", "2"], "--mask_probability"),
    "a store without its tokenizer": (
        ["--data", "", "--corpus", "{bad}/store", "--tokenizer", "{bad}/nowhere"],
        "{bad}/nowhere",
    ),
    "no store": (["--data", "", "--corpus", "{bad}/store"], "{bad}/store is not a token store"),
    "a store beside text": (["--corpus", "{bad}/store"], "--corpus goes without --data"),
    "a seed that is too large": (["--seed", "5000000000"], "--seed must be at least 0 and below"),
    "a vocabulary beside a tokenizer": (
        ["--vocab_size", "500"],
        "--vocab_size cannot be combined with --tokenizer, whose tokenizer reads the text; leave it out",
    ),
    "small letters beside a tokenizer": (["--normalizer", "lowercase"], "--normalizer cannot be combined with --tok"),
    "a small vocabulary": (["--vocab_size", "100", "--tokenizer", ""], "--vocab_size 100 is too small"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_message_and_leaves_nothing(recipe, home, bad, tmp_path, mistake) -> None:
    words, message = MISTAKES[mistake]
    defaults = {"--data": f"{home}/rows.jsonl", "--tokenizer": f"{home}/tokenizer", "--sequence_length": "64"}
    given = [word.format(bad=bad) for word in words]
    defaults = {option: value for option, value in defaults.items() if option not in given}
    for option, value in zip(given[::2], given[1::2], strict=True):
        if value:
            defaults[option] = value
    before = contents(home)
    rest = [word for pair in defaults.items() for word in pair]
    code, said = recipe(*rest, "--max_steps", 1, "--mixed_precision", "no", "--output_dir", tmp_path / "out")
    assert code == 2, said
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message.format(bad=bad) in said
    assert "Traceback" not in said and len(said) < 700
    assert not (tmp_path / "out").exists()
    halves = [path for path in contents(home) - before if ".tmp" in path.name or ".building" in path.name]
    assert not halves


def test_a_used_folder_is_refused_before_any_work(recipe, home, tmp_path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text("{}")
    code, said = recipe(*options_of(home, tmp_path / "out"))
    assert code == 2 and "already holds a run; add --resume" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.json"]


def test_a_run_is_resumed_with_the_same_model_only(recipe, home, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("lacuna.training.run.use_all_cores", lambda threads: torch.set_num_threads(1))
    options = options_of(home, tmp_path / "out", "--objective", "clm", "--eval_fraction", 0, "--save_steps", 1)
    options[options.index("--max_steps") + 1] = 1
    code, said = recipe(*options)
    assert code == 0, said
    others = {"objective": "hybrid", "packing": "none", "sequence_length": 16, "size": "mini", "num_hidden_layers": 2}
    for name, value in others.items():
        given = list(options)
        if f"--{name}" in given:
            del given[given.index(f"--{name}") : given.index(f"--{name}") + 2]
        code, said = recipe(*given, f"--{name}", value, "--resume")
        assert code == 2 and "error: --resume: " in said and "--allow_change" in said and "Traceback" not in said
        given[given.index("--data") + 1] = tmp_path / "gone"  # found before the text is read, which may take minutes
        assert "error: --resume: this is another run" in recipe(*given, f"--{name}", value, "--resume")[1]
    options += ["--max_eval_examples", 10]
    options[options.index("--max_steps") + 1] = 2
    code, said = recipe(*options, "--resume")
    assert code == 0 and "at step 1" in said and len(losses(tmp_path / "out")) == 2


def test_a_run_is_not_taken_up_on_a_text_of_which_one_byte_has_changed(recipe, home, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("lacuna.training.run.use_all_cores", lambda threads: torch.set_num_threads(1))
    text = tmp_path / "text.jsonl"
    content = (home / "rows.jsonl").read_bytes()
    text.write_bytes(content)
    options = options_of(home, tmp_path / "out", "--eval_fraction", 0, "--save_steps", 1)
    options[options.index("--data") + 1] = text
    options[options.index("--max_steps") + 1] = 1
    code, said = recipe(*options)
    assert code == 0, said
    options[options.index("--max_steps") + 1] = 2
    text.write_bytes(content.replace(b"cat", b"cot", 1))
    code, said = recipe(*options, "--resume")
    assert code == 2 and "error: --resume: " in said and "corpus is " in said and "--allow_change corpus" in said
    assert "Traceback" not in said and len(losses(tmp_path / "out")) == 1
    code, said = recipe(*options, "--resume", "--allow_change", "corpus")
    assert code == 0 and "  corpus was " in said and len(losses(tmp_path / "out")) == 2


@pytest.mark.slow
def test_two_minutes_are_two_minutes_with_the_learning_rate_decayed(tmp_path) -> None:
    """The built-in text and a tiny model; on a machine that does something else besides, too."""
    done = processes.run(RECIPE, "--max_minutes", 2, "--objective", "mlm", "--output_dir", tmp_path, timeout=400)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["train_seconds"] == pytest.approx(120, rel=0.03)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if "loss" in line]
    assert max(rates) == 6e-3 and rates[-1] < 0.02 * 6e-3


def test_a_native_model_goes_on_and_stays_native(recipe, home, tmp_path, monkeypatch) -> None:
    """Trained as ours, saved as it came or, if asked for, as ours; its first loss is that of the native class."""
    monkeypatch.setattr("lacuna.training.run.use_all_cores", lambda threads: torch.set_num_threads(1))
    torch.manual_seed(0)
    config = BertConfig(vocab_size=320, max_position_embeddings=32, hidden_dropout_prob=0.0, **SMALL)
    config.attention_probs_dropout_prob = 0.0
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")

    found, kinds = [], []
    for name, more in (("saved as it came", []), ("saved as ours", ["--save_as", "lacuna"]), ("native", [])):
        if name == "native":
            monkeypatch.setattr("lacuna.modeling.as_ours", lambda model: model)
        model = ["--model", tmp_path / "bert"]
        options = options_of(home, tmp_path / name, "--objective", "mlm", "--packing", "none", *model)
        options[options.index("--max_steps") + 1] = 1
        code, said = recipe(*options, *more)
        assert code == 0, said
        found.append(losses(tmp_path / name))
        kinds.append(json.loads((tmp_path / name / "config.json").read_text())["model_type"])
    assert found[0] == found[1] == pytest.approx(found[2], rel=1e-5) and len(found[0]) == 1
    assert kinds == ["bert", "lacuna", "bert"]
    first, last = (load_file(tmp_path / name / "model.safetensors") for name in ("saved as it came", "native"))
    assert first.keys() == last.keys()
    assert all(torch.allclose(first[name], last[name], atol=1e-4) for name in first)
    results = json.loads((tmp_path / "saved as it came" / "results.json").read_text())
    assert 0 <= results["native_difference"] < 1e-4


@pytest.fixture
def other_precision() -> Iterator[None]:
    """Other tests of this process train without bf16, and accelerate keeps what it was told first."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(
    ("objective", "read"),
    [("mlm", "mean"), ("mlm_contrastive", "mean"), ("hybrid", "mean"), ("mlm_nsp", "first"), ("mlm_sop", "first")],
)
def test_a_classifier_reads_what_the_objective_trains(home, objective, read) -> None:
    """Nothing asks of [CLS] but the objectives of sentence pairs."""
    rest = {"modeling": modeling, "tokenizer": load_tokenizer(f"{home}/tokenizer"), "length": 32, "seed": 0}
    model = starting_model(NewModelArguments(num_hidden_layers=1), objective=OBJECTIVES[objective], **rest)
    assert model.config.classifier_pooling == read


@pytest.mark.parametrize(
    ("family", "objective", "said"),
    [
        (
            "qwen3",
            "spans",
            "of shape decoder, and --objective spans trains models of shape encoder: .* --objective clm",
        ),
        ("bart", "spans", "of shape encoder-decoder, and --objective spans .* --objective denoising"),
        ("modernbert", "clm", "of shape encoder, and --objective clm trains models of shape decoder: .* mlm"),
    ],
)
@pytest.mark.parametrize("native", [False, True])
def test_a_model_of_another_shape_than_the_objective_trains_is_refused(
    home, tmp_path, family, objective, said, native
):
    config = LacunaConfig.from_family(family, "tiny", vocab_size=300)
    (LacunaModel(config).to_native().config if native else config).save_pretrained(tmp_path)
    rest = {"modeling": modeling, "tokenizer": load_tokenizer(f"{home}/tokenizer"), "length": 32, "seed": 0}
    with pytest.raises(InputError, match=said):
        starting_model(NewModelArguments(model=str(tmp_path)), objective=OBJECTIVES[objective], **rest)


@pytest.mark.parametrize("new", [{"family": "bert"}, {"size": "tiny"}])
def test_what_is_asked_of_a_new_model_is_refused_beside_another(new) -> None:
    with pytest.raises(InputError, match=f"--{next(iter(new))} is for a new model, and --model m has its own: leave"):
        starting_model(
            NewModelArguments(model="m", **new), modeling=None, objective=None, tokenizer=None, length=8, seed=0
        )


@pytest.mark.usefixtures("other_precision")
@pytest.mark.parametrize(
    ("objective", "kind"),
    [("clm", "Qwen3ForCausalLM"), ("denoising", "BartForConditionalGeneration"), ("mlm_nsp", "ModernBertForMaskedLM")],
)
def test_a_model_with_a_native_twin_is_saved_as_it_and_resumed_to_the_bit(recipe, home, tmp_path, objective, kind):
    """Checkpoints too: without code or foreign keys, loaded as it is, and our own weights beside it to go on from."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    options = options_of(home, whole, "--objective", objective, "--save_steps", 1)
    options[options.index("--max_steps") + 1] = 2
    options[options.index("--mixed_precision") + 1] = "bf16"  # the two are compared without
    code, said = recipe(*options)
    assert code == 0 and f"the model is saved as a {kind} of transformers, without code" in said, said
    checkpoint = whole / "checkpoints" / "step-00000001"
    for folder in (whole, checkpoint):
        loaded, report = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
        assert not any(report.values()) and not list(folder.glob("*.py"))
        size = f"with {loaded.num_parameters() / 1e6:.1f} M parameters"
        assert size in (folder / "README.md").read_text(encoding="utf-8"), "tied weights count once"
        config = json.loads((folder / "config.json").read_text())
        assert (
            config["architectures"] == [kind]
            and "auto_map" not in config
            and "trust_remote_code" not in (folder / "README.md").read_text(encoding="utf-8")
        )
        if objective == "clm":  # where transformers 4 looks for it
            assert (
                config["rope_theta"]
                == config["rope_parameters"]["rope_theta"]
                == loaded.config.rope_parameters["rope_theta"]
            )
    assert json.loads((whole / "results.json").read_text())["native_difference"] < 1e-4

    shutil.copytree(checkpoint, halves / "checkpoints" / "step-00000001")
    shutil.copy(whole / "run.json", halves)
    options[options.index(whole)] = halves
    code, said = recipe(*options, "--resume")
    assert code == 0 and "at step 1" in said
    if objective == "mlm_nsp":  # goes on with the weights of the native model and a new sentence head
        further = options_of(home, tmp_path / "further", "--objective", "mlm_nsp", "--model", whole)
        further[further.index("--max_steps") + 1] = 1
        further[further.index("--mixed_precision") + 1] = "bf16"
        assert "it has no place for the sentence head, which stays in checkpoints" in said
        code, said = recipe(*further)
        assert code == 0 and losses(tmp_path / "further")[0] < losses(whole)[0], said
    assert (halves / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_spans_go_on_from_masked_tokens_and_are_resumed_to_the_bit(recipe, home, tmp_path) -> None:
    first, whole, halves = (tmp_path / name for name in ("first", "whole", "halves"))
    code, said = recipe(*options_of(home, first))
    assert code == 0, said
    options = options_of(home, whole, "--objective", "spans", "--model", first, "--save_steps", 3)
    code, said = recipe(*options)
    assert code == 0 and "the model is saved with its own code" in said and "question_aware=True" in said, said
    assert json.loads((whole / "config.json").read_text())["question_aware"] and list(whole.glob("modeling_*.py"))
    _, report = transformers.AutoModelForQuestionAnswering.from_pretrained(whole, output_loading_info=True)
    assert not any(report.values())
    results = json.loads((whole / "results.json").read_text())
    assert 3 < results["baseline_loss"] < 3.5 and 0 < results["baseline_accuracy"] < 0.1 and results["eval_loss"] > 0

    shutil.copytree(whole / "checkpoints" / "step-00000003", halves / "checkpoints" / "step-00000003")
    shutil.copy(whole / "run.json", halves)
    options[options.index(whole)] = halves
    code, said = recipe(*options, "--resume")
    assert code == 0 and "at step 3" in said
    refused = options_of(home, tmp_path / "refused", "--objective", "spans", "--family", "qwen3")
    code, said = recipe(*refused)
    assert (
        code == 2 and "--objective spans trains models of shape encoder, and --family qwen3 has shape decoder" in said
    )
    assert (halves / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()

    rest = {"modeling": modeling, "tokenizer": load_tokenizer(f"{home}/tokenizer"), "length": 32, "seed": 0}
    masked = modeling.as_ours(AutoModelForMaskedLM.from_pretrained(first)).state_dict()
    for model, is_new in ((first, True), (whole, False)):
        begun = starting_model(NewModelArguments(model=str(model)), objective=OBJECTIVES["spans"], **rest)
        assert type(begun).__name__ == "LacunaForQuestionAnswering" and begun.config.question_aware
        body = [name for name in begun.state_dict() if name.startswith("model.")]
        assert all((begun.state_dict()[name] == masked[name]).all() for name in body) is is_new
    code, said = recipe(*options_of(home, tmp_path / "masked", "--model", whole))
    assert code == 0 and not list((tmp_path / "masked").glob("*.py")), said
    assert "question_aware" not in (tmp_path / "masked" / "config.json").read_text(), "it is native again"


def test_a_new_vocabulary_is_as_the_objective_wants_it_or_as_asked(recipe, home, typed, tmp_path) -> None:
    usual = OBJECTIVES["mlm_contrastive"].vocabulary
    assert usual == {"vocab_size": 16384, "normalizer": "lowercase"}, "and the help of both options says so"
    cases: dict[str, tuple[list[object], dict[str, object]]] = {
        "usual": ([], dict(usual)),
        "asked": (["--normalizer", "none", "--vocab_size", 290], {"vocab_size": 290, "normalizer": "none"}),
    }
    for name, (asked, expected) in cases.items():
        words = options_of(home, tmp_path / name, "--objective", "mlm_contrastive", "--eval_fraction", 0, *asked)
        del words[words.index("--tokenizer") : words.index("--tokenizer") + 2]
        words[words.index("--batch_size") + 1], words[words.index("--max_steps") + 1] = 16, 1
        code, said, errors = typed("pretrain", *words)
        assert code == 0, errors
        made = json.loads((tmp_path / name / "tokenizer.json").read_text())
        size = len(made["model"]["vocab"])
        assert f"vocabulary: {size:,} tokens, --normalizer {expected['normalizer']}\n" in said
        assert (made["normalizer"] == {"type": "Lowercase"}) == (name == "usual")
        assert size == 290 if name == "asked" else 290 < size < 16384  # so many as there is text for
        facts = json.loads((tmp_path / name / "run.json").read_text())
        assert {each: facts[each] for each in expected} == expected
    arguments = NewModelArguments()  # a run with a tokenizer of its own is resumed as ever
    assert arguments.identity(arguments.vocabulary({})) == {
        "new_model": {"family": None, "size": "micro", "vocab_size": 8192}
    }
    assert NewModelArguments.known_options() >= {*usual}


def test_passages_are_compared_in_the_same_groups_on_two_processes_and_after_a_stop(recipe, home, tmp_path) -> None:
    """And the model is a native one, whose classifiers read the means that were trained."""

    def options(name: str, *more: object) -> list[object]:
        found = options_of(home, tmp_path / name, "--objective", "mlm_contrastive", "--save_steps", 1, *more)
        found[found.index("--batch_size") + 1], found[found.index("--max_steps") + 1] = 32, 3
        return found

    code, said = recipe(*options("one", "--micro_batch_size", 16))
    assert code == 0, said
    two = run(home, RECIPE, *options("two"), num_processes=2)
    assert two.returncode == 0, two.stderr
    assert len(losses(tmp_path / "one")) == 3
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    for line in (line for line in lines if "loss" in line):
        assert line["loss"] == pytest.approx(line["mlm_loss"] + line["passage_loss"], rel=1e-6)
        assert 0 <= line["passage_accuracy"] <= 1
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert config["architectures"] == ["ModernBertForMaskedLM"] and config["classifier_pooling"] == "mean"
    one, on = tmp_path / "one", tmp_path / "on"
    shutil.copytree(one / "checkpoints" / "step-00000002", on / "checkpoints" / "step-00000002")
    shutil.copy(one / "run.json", on)
    code, said = recipe(*options("on", "--micro_batch_size", 16, "--resume"))
    assert code == 0 and "at step 2" in said, said
    assert (on / "model.safetensors").read_bytes() == (one / "model.safetensors").read_bytes()
    code, said = recipe(*options("bert", "--family", "bert", "--objective", "mlm_contrastive", "--max_steps", 1))
    assert code == 0 and "BertForMaskedLM of transformers, without code" in said, said
    code, said = recipe(*options("refused", "--micro_batch_size", 8))
    assert code == 2 and "rows are compared in groups of 16, and a process reads 8 at once: --batch_size and" in said
    assert not (tmp_path / "refused" / "config.json").exists()


def test_a_native_model_that_computes_something_else_is_told(recipe, home, tmp_path, monkeypatch) -> None:
    """And a model that has no twin says what stands in the way."""
    options = options_of(home, tmp_path / "hybrid", "--objective", "hybrid")
    options[options.index("--max_steps") + 1] = 1
    code, said = recipe(*options)
    assert code == 0
    reason = "no native family can express this configuration; qwen3 cannot express hybrid=True, only False"
    assert f"the model is saved with its own code: {reason}\n" in said
    causal = {"hybrid": False, "classifier_pooling": "last"}  # what docs/models.md says makes it a native decoder
    decoder = LacunaForCausalLM.from_pretrained(tmp_path / "hybrid", **causal)
    assert type(decoder.to_native()) is transformers.Qwen3ForCausalLM

    options = options_of(home, tmp_path / "broken", "--objective", "clm")
    options[options.index("--max_steps") + 1] = 1
    convert = LacunaPreTrainedModel.to_native

    def wrong(model: LacunaForCausalLM, *, weights: dict[str, torch.Tensor]) -> transformers.PreTrainedModel:
        native = convert(model, weights=weights)
        native.config.rms_norm_eps = 10.0
        return native

    monkeypatch.setattr(LacunaPreTrainedModel, "to_native", wrong)
    code, said = recipe(*options)
    assert code == 3 and "error: the Qwen3ForCausalLM in " in said and "differs from the trained model" in said


def test_a_mistake_in_a_process_of_its_own(home, tmp_path) -> None:
    done = run(home, RECIPE, "--data", home / "nowhere.jsonl", "--output_dir", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no file or folder") and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_probes_change_nothing_but_the_log(home, recipe) -> None:
    pairs = [
        {"sentence_good": "A cat sat.", "sentence_bad": "Cat a sat."},
        {"sentence_good": "A dog ran.", "sentence_bad": "Dog a ran."},
    ]
    (home / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (home / "prompts.txt").write_text("The [MASK] sat.\n")
    asked = ("--probe", home / "pairs.jsonl", "--probe_prompts", home / "prompts.txt")
    for name, more in (("plain", ()), ("probed", asked)):
        options = options_of(home, home / name, "--size", "micro", "--compile", "off", *more)
        options[options.index("--eval_steps") + 1] = 2
        code, said = recipe(*options)
        assert code == 0, said
    weights = [load_file(home / name / "model.safetensors") for name in ("plain", "probed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    lines = [json.loads(line) for line in (home / "probed" / "metrics.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["eval_minimal_pairs"] for line in lines if "eval_loss" in line}
    assert set(scores) == {2, 4, 5} and set(scores.values()) <= {0.0, 0.5, 1.0}
    results = json.loads((home / "probed" / "results.json").read_text())
    assert results["eval_minimal_pairs"] == scores[5] and results["baseline_minimal_pairs"] == 0.5
    said = [json.loads(line) for line in (home / "probed" / "samples.jsonl").read_text().splitlines()]
    assert [line["step"] for line in said] == [2, 4, 5] and all("[MASK]" not in line["text"] for line in said)
    code, said = recipe(*options_of(home, home / "none", "--objective", "denoising", *asked))
    assert code == 2 and "only encoders and decoders can be evaluated" in said and "first embeddings" not in said

    options = options_of(home, home / "often", "--size", "micro", "--compile", "off", *asked, "--probe_steps", 2)
    options[options.index("--eval_steps") + 1], options[options.index("--save_steps") + 1] = 3, 3
    code, said = recipe(*options)
    assert code == 0, said
    shutil.copytree(home / "often" / "checkpoints" / "step-00000003", home / "again" / "checkpoints" / "step-00000003")
    for name in ("run.json", "metrics.jsonl", "samples.jsonl"):
        shutil.copy(home / "often" / name, home / "again")
    options[options.index(home / "often")] = home / "again"
    code, said = recipe(*options, "--resume")
    assert code == 0 and "at step 3" in said, said
    for name in ("often", "again"):
        lines = [json.loads(line) for line in (home / name / "metrics.jsonl").read_text().splitlines()]
        asked_at = {line["step"]: line["eval_minimal_pairs"] for line in lines if "eval_minimal_pairs" in line}
        assert asked_at == {2: scores[2], 4: scores[4], 5: scores[5]}
        assert [line["step"] for line in lines if "eval_loss" in line] == [3, 5]
        found = load_file(home / name / "model.safetensors")
        assert all(torch.equal(weights[0][each], found[each]) for each in found)
    assert (home / "again" / "samples.jsonl").read_text() == (home / "probed" / "samples.jsonl").read_text()
    for words, message in (
        (["--probe_steps", 2], "asked: give one of them"),
        ([*asked, "--probe_steps", 2.5], "2.5"),
    ):
        code, said = recipe(*options_of(home, home / "none", *words))
        assert code == 2 and message in said and not (home / "none").exists(), said
