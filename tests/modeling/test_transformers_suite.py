"""Our models under the tests that the transformers library holds its own models to.

The tests are the library's and are not kept here. They come out of the source distribution of the installed version,
which pip fetches once into `~/.cache/lacuna` (or the folder that LACUNA_CACHE names). That distribution has the common
tests and lacks a few files that they import: those are filled in below with stubs. Generation is one of them, so its
tests run only with a checkout of the library of the same version:

    LACUNA_TRANSFORMERS_CHECKOUT=~/src/transformers python -m pytest -m slow tests/modeling/test_transformers_suite.py

The library's tests of pipelines are not among them: each loads its model from the Hub.

A new shape or family is an entry in `MODELS`; a new head is tested as soon as it is in `HEADS`.
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from lacuna.modeling import HEADS, LacunaConfig, LacunaModel, LacunaPreTrainedModel, modeling_lacuna

pytestmark = pytest.mark.slow

MODELS: dict[str, dict[str, Any]] = {
    "bert": {"family": "bert"},
    "modernbert": {
        "family": "modernbert", "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3,
    },
    "gpt2": {"family": "gpt2"},
    "qwen3": {"family": "qwen3", "num_key_value_heads": 2},
    "bart": {"family": "bart"},
    "vaswani": {"family": "vaswani"},
}  # fmt: skip

# 99 tokens: a number that two processes cannot share evenly. No dropout: whole and split models are compared while
# they train.
TINY: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 36,
    "max_position_embeddings": 512, "embedding_dropout": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip

GROUPS = {
    "common": ("test_modeling_common", "ModelTesterMixin"),
    "generation": ("generation.test_utils", "GenerationTesterMixin"),
    "training": ("test_training_mixin", "TrainingTesterMixin"),
    "fsdp": ("test_fsdp_mixin", "FSDPTesterMixin"),
    "tensor_parallel": ("test_tensor_parallel_mixin", "TensorParallelTesterMixin"),
}
# Which mixins fit which models. That of training ends with a prompt to be continued, and an encoder-decoder answers;
# that of FSDP makes its models with AutoModelForCausalLM.
FITS: dict[str, Callable[[LacunaConfig], bool]] = {
    "generation": lambda config: config.shape != "encoder",
    "training": lambda config: config.shape != "encoder-decoder",
    "fsdp": lambda config: config.shape == "decoder",
    "tensor_parallel": lambda config: config.shape != "encoder",
}


@dataclass(frozen=True)
class Exemption:
    """Tests that say nothing about a model, and why."""

    name: str
    reason: str
    applies: Callable[[LacunaConfig], bool] = lambda config: True


CANNOT_APPLY = (
    Exemption(
        "test_model_rope_",
        "takes every configuration with the field rope_parameters for one with rotary positions",
        lambda config: config.position_type != "rotary",
    ),
    Exemption(
        "_padding_matches_padding_free_with_position_ids",
        "pads on the left without positions, which shifts positions that are not relative; GPT2LMHeadModel fails too",
        lambda config: config.position_type != "rotary",
    ),
    Exemption(
        "test_generate_with_and_without_position_ids",
        "expects positions counted without the padding on the left; generate gives those to decoders only",
        lambda config: config.is_encoder_decoder,
    ),
    Exemption(
        "test_model_weights_reload_no_missing_tied_weights",
        "loads a checkpoint of which one tensor is left, and ours is refused as damaged",
    ),
)

# ------------------------------------------------------------------------------------------------ the library's tests

TESTING_UTILS = Path(transformers.__file__).with_name("testing_utils.py")
STUBS = {
    "__init__.py": "",
    "exporters/__init__.py": "",
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/__init__.py": "",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/__init__.py": "",
    "utils/test_configuration_utils.py": (
        'config_common_kwargs = {"return_dict": False, "output_hidden_states": True, "dtype": "float16"}\n'
    ),
}


def cache_folder() -> Path:
    return Path(os.environ.get("LACUNA_CACHE", Path.home() / ".cache" / "lacuna")) / "transformers_suite"


def fetch_distribution(folder: Path) -> Path:
    """The source distribution of the installed transformers, fetched with pip unless it is there already."""
    version = transformers.__version__
    archive = folder / f"transformers-{version}.tar.gz"
    if not archive.is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        pip += ["--no-deps", "--no-binary", "transformers", "--dest", str(folder), f"transformers=={version}"]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode or not archive.is_file():
            pytest.skip(f"pip cannot fetch the source distribution of transformers {version}: {done.stderr[-300:]}")
    return archive


def unpack_tests(archive: Path, folder: Path) -> None:
    """Unpack the files of `tests/`, and put stubs where one that they import is missing."""
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            if member.isfile() and path.suffix == ".py" and path.parts[1:-1] == ("tests",):
                content = tar.extractfile(member)
                assert content is not None
                (folder / path.name).write_bytes(content.read())
    for name, text in STUBS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if not (folder / name).exists():
            (folder / name).write_text(text, encoding="utf-8")
    shutil.copy(Path(__file__).with_name("rank_processes.py"), folder / "distributed_testing_utils.py")


def checkout_tests() -> Path | None:
    """The tests of the checkout that LACUNA_TRANSFORMERS_CHECKOUT names, or None."""
    if "LACUNA_TRANSFORMERS_CHECKOUT" not in os.environ:
        return None
    checkout = Path(os.environ["LACUNA_TRANSFORMERS_CHECKOUT"]).expanduser()
    version = f'__version__ = "{transformers.__version__}"'
    if version not in (checkout / "src" / "transformers" / "__init__.py").read_text(encoding="utf-8"):
        pytest.fail(f"LACUNA_TRANSFORMERS_CHECKOUT={checkout} is not of version {transformers.__version__}")
    return checkout / "tests"


@pytest.fixture(scope="session")
def suite(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of the library's tests by its name below `tests/`."""
    pytest.importorskip("parameterized", reason="the library's tests import it; it is in the extra `dev`")
    # Under a name of their own, since `tests` is ours. They import each other relatively, so any name will do.
    parent = tmp_path_factory.mktemp("suite")
    package = f"transformers_{transformers.__version__.replace('.', '_')}_tests"
    checkout = checkout_tests()
    if checkout is None:
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        unpack_tests(fetch_distribution(cache), parent / package)
    else:
        (parent / package).symlink_to(checkout)
    for path in (*(parent / package).glob("*.py"), *(parent / package / "generation").glob("*.py"), TESTING_UTILS):
        for marker in set(re.findall(r"\bmark\.(\w+)", path.read_text(encoding="utf-8"))) - {"parametrize"}:
            pytestconfig.addinivalue_line("markers", f"{marker}: a mark of the library's tests")  # ours are strict
    sys.path.insert(0, str(parent))  # multiprocessing hands it on to the processes of the distributed tests
    yield lambda name: importlib.import_module(f"{package}.{name}")
    sys.path.remove(str(parent))


@pytest.fixture
def adapted(suite: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """The library's tests, told about our models where they know models by name."""
    for shape, heads in HEADS.items():
        for auto_name, head in heads.items():
            names = getattr(transformers, auto_name)._model_mapping._model_mapping
            monkeypatch.setitem(names, f"lacuna-{shape}", head)  # how they tell what labels a head takes
    common, generation = suite("test_modeling_common"), suite("generation.test_utils")
    for module in (common, generation):
        # The original writes seven fields for this one, and a configuration with unknown fields cannot be loaded.
        monkeypatch.setattr(
            module, "set_config_for_less_flaky_test", lambda config: setattr(config, "norm_eps", 1.0), raising=False
        )
    # None stands for all: otherwise the expensive tests run for a few of the library's own models only.
    monkeypatch.setattr(suite("test_fsdp_mixin"), "FSDP_DISTRIBUTED_TEST_MODEL_TYPES", None)
    monkeypatch.setattr(suite("test_tensor_parallel_mixin"), "TP_DISTRIBUTED_TEST_MODEL_TYPES", None)
    return suite


# ------------------------------------------------------------------------------ what the tests ask a model for


def heads_of(config: LacunaConfig) -> dict[str, type[LacunaPreTrainedModel]]:
    return {auto: getattr(modeling_lacuna, name) for auto, name in HEADS[config.shape].items()}


class ModelTester:
    """Sizes and inputs, under the names that the library's tests look for."""

    batch_size, is_training = 13, True
    seq_length = encoder_seq_length = decoder_seq_length = 7
    num_labels, type_sequence_label_size, num_choices = 3, 2, 4
    base_model_class = LacunaModel

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        config = self.get_config()
        heads = heads_of(config)
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.num_hidden_layers, self.num_attention_heads = config.num_hidden_layers, config.num_attention_heads
        self.causal_lm_class = heads.get("AutoModelForCausalLM")
        self.conditional_generation_class = heads.get("AutoModelForSeq2SeqLM")

    def get_config(self) -> LacunaConfig:
        return LacunaConfig.from_family(**self.fields)

    def prepare_config_and_inputs_for_common(self) -> tuple[LacunaConfig, dict[str, Tensor]]:
        """A configuration, and token ids [13, 7] in rows of 1, 2, ... 7, 7, ... real tokens."""
        config = self.get_config()
        shape = (self.batch_size, self.seq_length)
        real = torch.ones(shape, dtype=torch.long).tril()
        inputs = {"input_ids": torch.randint(0, self.vocab_size, shape), "attention_mask": real}
        if config.type_vocab_size:
            inputs["token_type_ids"] = torch.randint(0, config.type_vocab_size, shape)
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.randint(0, self.vocab_size, shape)
            inputs["decoder_attention_mask"] = torch.ones_like(real)
        return config, inputs


class ModelTest:
    """What stands before the library's mixins in a test case of ours."""

    fields: dict[str, Any]
    all_model_classes: tuple[type[LacunaPreTrainedModel], ...]
    model_tester: Any = None
    # The library spares models of before 2023 this test; ours shall pass it.
    test_can_init_all_missing_weights_before_2023 = True

    def setUp(self) -> None:
        torch.manual_seed(0)
        self.model_tester = ModelTester(self.fields)

    def _prepare_for_class(
        self, inputs_dict: dict[str, Tensor], model_class: type, return_labels: bool = False
    ) -> dict[str, Tensor]:
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels=return_labels)  # type: ignore[misc]
        if return_labels and model_class.__name__ == "LacunaForPreTraining":
            inputs["labels"] = torch.zeros_like(inputs["input_ids"])
            inputs["next_sentence_label"] = torch.zeros(self.model_tester.batch_size, dtype=torch.long)
        return inputs

    def _get_trainable_model_class(self) -> type[LacunaPreTrainedModel]:
        """A head with a label for every token: that is what the test of over-fitting makes."""
        heads = heads_of(self.model_tester.get_config())
        names = ("AutoModelForCausalLM", "AutoModelForMaskedLM")
        return next(heads[name] for name in names if name in heads)


def fits(group: str, config: LacunaConfig) -> bool:
    return group not in FITS or FITS[group](config)


def build_case(name: str, suite: Callable[[str], ModuleType]) -> type[unittest.TestCase]:
    """The test case of one model, with all mixins that fit it."""
    fields = TINY | MODELS[name]
    config = LacunaConfig.from_family(**fields)
    classes = tuple(heads_of(config).values())
    mixins = [getattr(suite(module), mixin) for group, (module, mixin) in GROUPS.items() if fits(group, config)]
    attributes = {
        "fields": fields, "all_model_classes": classes, "is_encoder_decoder": config.is_encoder_decoder,
    }  # fmt: skip
    return type(f"Lacuna_{name}", (ModelTest, *mixins, unittest.TestCase), attributes)


CASES = [
    (name, group)
    for name in MODELS
    for group in GROUPS
    if fits(group, LacunaConfig.from_family(**TINY | MODELS[name]))
]


@pytest.mark.parametrize(("name", "group"), CASES)
def test_model_passes_the_tests_of_the_library(name: str, group: str, adapted: Callable[[str], ModuleType]) -> None:
    case = build_case(name, adapted)
    config = LacunaConfig.from_family(**TINY | MODELS[name])
    module, mixin = GROUPS[group]
    exempt = [exemption.name for exemption in CANNOT_APPLY if exemption.applies(config)]
    names = [
        test
        for test in sorted(dir(getattr(adapted(module), mixin)))
        if test.startswith("test_") and callable(getattr(case, test)) and not any(part in test for part in exempt)
    ]
    if not names:
        pytest.skip(f"no test of {mixin} for {name} here; those of generation need LACUNA_TRANSFORMERS_CHECKOUT")

    transformers.logging.set_verbosity_warning()  # they look for warnings, which a test before may have turned off
    result = unittest.TestResult()
    unittest.TestSuite(case(test) for test in names).run(result)

    failed = [f"{test.id()}\n{trace}" for test, trace in result.failures + result.errors]
    assert not failed, f"{len(failed)} of {result.testsRun} failed\n\n" + "\n".join(failed)
    assert len(result.skipped) < result.testsRun


@pytest.mark.parametrize("name", MODELS)
def test_configuration_passes_the_tests_of_the_library(name: str, adapted: Callable[[str], ModuleType]) -> None:
    config = LacunaConfig.from_family(**TINY | MODELS[name])
    fields = {field: value for field, value in config.to_dict().items() if field in LacunaConfig.__annotations__}
    case = unittest.TestCase()
    adapted("test_configuration_common").ConfigTester(case, config_class=LacunaConfig, **fields).run_common_tests()
