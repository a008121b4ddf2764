"""Native classes, ONNX and GGUF: written beside the tokenizer, run, and compared with the model on real text."""

import contextlib
import inspect
import io
import json
import logging
import math
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
import yaml
from huggingface_hub import ModelCard
from torch import Tensor

from lacuna.common import loading
from lacuna.common.errors import CorruptCheckpointError, InputError
from lacuna.common.files import storage_errors
from lacuna.common.options import REVISION, TRUST_CODE, Arguments, check_range, essential

from .gguf import write_gguf

QUANTIZATIONS = {"native": (), "onnx": ("int8",), "gguf": ("f16", "q8_0", "q4_k")}
LONGEST_TEXT, BATCH_SIZE = 128, 8  # tokens of a text, and texts at once, that models are compared on
PIECE = 1_000  # characters, more than become LONGEST_TEXT tokens
MOST_DIFFERENCE = 1e-3  # of the largest logit: how far float32 logits may be apart


@dataclass
class ExportArguments(Arguments):
    """Which model goes into which form."""

    model: str = essential("runs/model", "Folder or Hub id of the model.", metavar="MODEL")
    format: Literal["native", "onnx", "gguf"] = essential(
        "native",
        "native: a class of transformers, without code; onnx: any head, for onnxruntime; gguf: a decoder, or an "
        "encoder for embeddings, for llama.cpp.",
    )
    output_dir: str = essential("runs/exported", "Where it is written; a new folder.", metavar="DIR")
    quantize: Literal["int8", "f16", "q8_0", "q4_k"] | None = essential(
        None, "Smaller weights: int8 for onnx; f16, q8_0 or q4_k for gguf. Default: float32."
    )
    data: list[str] = essential(
        [], "Text that the export is compared on: files or folders. Default: the built-in text.", metavar="PATH"
    )
    eval_file: str | None = essential(
        None, "Labelled rows that a fine-tuned model answers before and after, for onnx.", metavar="FILE"
    )
    max_examples: int = essential(64, "Most texts to compare on; each is cut to 128 tokens.")
    trust_remote_code: bool = essential(**TRUST_CODE)
    revision: str | None = essential(**REVISION)

    def __post_init__(self) -> None:
        check_range(self, "max_examples", above=0)
        known = QUANTIZATIONS[self.format]
        if self.quantize is not None and self.quantize not in known:
            instead = f"choose {' or '.join(known)}" if known else "its weights are float32"
            raise InputError(f"--quantize {self.quantize} is not for --format {self.format}: {instead}")
        if Path(self.output_dir).exists():
            raise InputError(f"--output_dir {self.output_dir} is there already; name a new folder")


def export_model(arguments: ExportArguments, texts: Iterable[str]) -> dict[str, Any]:
    """Write a model in another form, and compare what it computes with what the model computes.

    `texts`: real text; the first `max_examples` that are not empty are taken. Returns what was compared and found, as
    it is written to `export_check.json`: `largest_difference` of logits, `largest_logit`, `same_answer` (the share of
    tokens or texts whose likeliest answer is the same), and so on.

    Raises InputError: the model cannot have that form; the message names what stands in the way; StorageError: the
    folder cannot be written; CorruptCheckpointError: what was written computes something else; nothing is left of it.
    """
    place = Path(arguments.output_dir)
    commit = loading.commit_of(arguments.model, revision=arguments.revision)
    options: dict[str, Any] = {"trust_remote_code": arguments.trust_remote_code, "revision": commit}
    config = loading.load_configuration(arguments.model, **options)
    model, report = loading.load_model(arguments.model, auto_class=_class_of(config, arguments.model), **options)
    if report["missing_keys"]:
        raise CorruptCheckpointError(f"--model {arguments.model} is incomplete: it has no {report['missing_keys'][0]}")
    model.eval()
    model.config.use_cache = False
    tokenizer = loading.load_tokenizer(arguments.model, **options)
    batches = make_batches(_pieces(texts, most=arguments.max_examples), model=model, tokenizer=tokenizer)
    with contextlib.ExitStack() as stack:
        stack.enter_context(storage_errors(f"--output_dir {place} cannot be written"))
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent))
        folder = Path(temporary, place.name)
        folder.mkdir()
        with _quiet():
            written = WRITERS[arguments.format](
                model=model, tokenizer=tokenizer, folder=folder, quantize=arguments.quantize, example=batches[0]
            )
        loading.save_tokenizer_files(tokenizer, folder)
        for name in ("task.json", "bag_of_words.safetensors"):
            if (beside := loading.file_of(arguments.model, name, revision=commit)) is not None:
                shutil.copy(beside, folder / name)
        found = {
            "model": type(model).__name__,
            "format": arguments.format,
            "quantize": arguments.quantize,
            **compare(model, written, batches),
            "texts": sum(len(batch["input_ids"]) for batch in batches),
            "tokens": sum(int(batch["attention_mask"].sum()) for batch in batches),
            **{name: version(name) for name in ("torch", "transformers")},
        }
        most = math.inf if arguments.quantize else MOST_DIFFERENCE * max(1.0, found["largest_logit"])
        if found["largest_difference"] > most or math.isinf(found["largest_difference"]):
            raise CorruptCheckpointError(
                f"what was written differs from {arguments.model} by up to {found['largest_difference']:.3g} in its "
                f"logits (the largest is {found['largest_logit']:.3g}); it is not kept. Please report it"
            )
        (folder / "export_check.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        _write_card(folder, found, model=arguments.model, commit=commit)
        folder.rename(place)
    return found


def _write_card(folder: Path, found: Mapping[str, Any], *, model: str, commit: str | None) -> None:
    """README.md of an export, with the pictures of the model's own."""
    source = loading.file_of(model, "README.md", revision=commit)
    try:
        about = "" if source is None else source.read_text(encoding="utf-8")
        (folder / "README.md").write_text(make_card(about, found), encoding="utf-8")
    except (ValueError, yaml.YAMLError):
        raise InputError(f"{source}, or its head, cannot be read: mend it") from None
    for name in re.findall(r"!\[[^]]*\]\(([\w-]+\.png)\)", about):
        if (picture := loading.file_of(model, name, revision=commit)) is not None:
            shutil.copy(picture, folder / name)


def make_card(of_model: str, found: Mapping[str, Any]) -> str:
    """The card of an export: its form, how to run it, how far it is from the model, and the card of the model."""
    card = ModelCard(of_model or "---\ntags:\n- lacuna\n---\n")
    form = found["format"]
    if form != "native":
        card.data["library_name"] = {"onnx": "onnx", "gguf": "llama.cpp"}[form]
        card.data["tags"] = [*(card.data.get("tags") or []), form]
    if form == "gguf" and "ForCausalLM" not in found["model"]:
        card.data["pipeline_tag"] = "feature-extraction"  # without its head
    kept = f", weights in {found['quantize']}" if found["quantize"] else ""
    origin = "What follows is the card of the model that it was made of; its code loads that model.\n\n"
    card.text = (
        f"# {found['model']} as {form}{kept}\n\n{_RUN[form]}\n\nOn {found['texts']} texts its outputs were within "
        f"{found['largest_difference']:.2g} of the model's (the largest is {found['largest_logit']:.3g}), and the "
        f"likeliest answer was the same in {found['same_answer']:.1%}: `export_check.json`.\n\n"
        + (origin if of_model else "")
        + card.text.lstrip()
    )
    return str(card)


_RUN = {
    "native": "A class of transformers loads it: `from_pretrained` on this folder or its name on the Hub.",
    "onnx": "`model.onnx` runs in onnxruntime and transformers.js; its inputs are what the tokenizer in this folder "
    "makes of a text.",
    "gguf": "`llama-server -m model.gguf` runs it; an encoder with `--embedding`.",
}


def _class_of(config: Any, model: str) -> str:
    """The class that the weights are of: of transformers, or an Auto class that knows it."""
    head = next(iter(config.architectures or []), "")
    own = {path.rpartition(".")[2]: name for name, path in (getattr(config, "auto_map", None) or {}).items()}
    if head not in own and not hasattr(getattr(transformers, head or "-", None), "from_pretrained"):
        raise InputError(f"--model {model}: its config.json names no class of transformers under architectures")
    return own.get(head, head)


def _pieces(texts: Iterable[str], *, most: int) -> list[str]:
    """The first texts; where there are few (a novel is one), as many pieces of each as make up for it."""
    some = list(islice(filter(str.strip, texts), most))
    of_each = -(-most // max(1, len(some)))
    cuts = (text[start : start + PIECE] for text in some for start in range(0, of_each * PIECE, PIECE))
    return list(islice(filter(str.strip, cuts), most))


def make_batches(texts: Sequence[str], *, model: Any, tokenizer: Any) -> list[dict[str, Tensor]]:
    """Batches of texts as the head of a model takes them: ids and mask [B, T], or [B, 2, T] for multiple choice."""
    if not texts:
        raise InputError("--data has no text to compare on")
    texts = texts if len(texts) > 1 else [*texts, *texts]  # the exporter to ONNX takes a batch of one for a constant
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    length = min(LONGEST_TEXT, loading.longest_input(config=model.config, tokenizer=tokenizer) or LONGEST_TEXT)
    takes = inspect.signature(model.forward).parameters
    names = ("input_ids", "attention_mask", *(["token_type_ids"] if "token_type_ids" in takes else []))
    batches = []
    for start in range(0, len(texts), BATCH_SIZE):
        # The last texts of a batch are cut shorter, so that there is padding, and batches have shapes of their own.
        some = [text[: 40 * (1 + place % 5 + start)] for place, text in enumerate(texts[start : start + BATCH_SIZE])]
        encoded = tokenizer(some, padding=True, truncation=True, max_length=length, return_tensors="pt")
        batch = {name: encoded[name] for name in names if name in encoded}
        if "MultipleChoice" in type(model).__name__:
            batch = {name: torch.stack([tensor, tensor.flip(0)], dim=1) for name, tensor in batch.items()}
        if model.config.is_encoder_decoder and "decoder_input_ids" in takes:
            batch["decoder_input_ids"] = batch["input_ids"].flip(0)[:, : max(2, length // 2)]
        batches.append(batch)
    return batches


@torch.no_grad()
def compare(model: Any, other: Callable[..., Any], batches: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """How far two models are apart where there is no padding."""
    difference = largest = 0.0
    same = answers = 0
    for batch in batches:
        ours, theirs = model(**batch), other(**batch)
        if "prediction_logits" in ours and "logits" in theirs:  # a native model has no place for the sentence head
            ours = {"logits": ours["prediction_logits"]}
        for name in [name for name in ours if name.endswith("logits") and name in theirs] or ["last_hidden_state"]:
            one, two = ours[name].float(), theirs[name].float()
            mask = batch["attention_mask"].bool()
            if one.shape[: mask.ndim] == mask.shape and "decoder_input_ids" not in batch:
                one, two = one[mask], two[mask]
            apart = float((one - two).abs().max())
            difference = max(difference, apart if math.isfinite(apart) else math.inf)
            largest = max(largest, float(one.abs().max()))
            same += int((one.argmax(dim=-1) == two.argmax(dim=-1)).sum())
            answers += one[..., 0].numel()
    return {"largest_difference": difference, "largest_logit": largest, "same_answer": same / answers}


def write_native(*, model: Any, folder: Path, **_: Any) -> Any:
    """The model of transformers that computes the same, without code."""
    if not hasattr(model, "to_native"):
        raise InputError(f"--format native: a {type(model).__name__} is a class of transformers already")
    try:
        native = model.to_native(weights=model.state_dict())
    except ValueError as error:
        raise InputError(f"--format native: {error}; take --format onnx, or --model as it is") from error
    native.save_pretrained(folder)
    loading.add_old_keys(folder / "config.json")
    return type(native).from_pretrained(folder).eval()


def write_onnx(*, model: Any, folder: Path, quantize: str | None, example: dict[str, Tensor], **_: Any) -> Any:
    """model.onnx, through the exporter of transformers: any batch size and length, logits only."""
    try:
        from onnxruntime.quantization import QuantType
        from transformers.exporters import ExportedModel, OnnxConfig, OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer
        from transformers.exporters.exporter_onnx import OnnxExporter

        exporter = OnnxExporter()
    except ImportError as error:
        raise InputError(f"--format onnx: {error}; install what it needs: pip install -e '.[onnx]'") from error
    # Unsigned: with signed weights, sums of two products may saturate in the 16 bits of processors without VNNI.
    unsigned = OnnxRuntimeDynamicConfig(weight_type=QuantType.QUInt8)
    quantizer = OnnxRuntimeQuantizer(unsigned) if quantize else None
    exporter.export(model, example, config=OnnxConfig(dynamic=True, quantizer=quantizer)).save_pretrained(folder)
    return ExportedModel.from_pretrained(folder)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch, onnxruntime and transformers say about each other, which nobody who exports can mend."""
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        warnings.simplefilter("ignore")
        transformers.logging.disable_progress_bar()
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
            transformers.logging.enable_progress_bar()


WRITERS: dict[str, Callable[..., Any]] = {"native": write_native, "onnx": write_onnx, "gguf": write_gguf}
"""Each writes into a folder, and returns what was written, read again and ready to be called like the model."""
