"""Pretrained parts: positions, vocabularies and errors; tests/tasks/test_models.py has what tasks make of them."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from hub_server import READER, TOKEN, HubServer
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, RobertaConfig

from lacuna.common.errors import CorruptCheckpointError, HubError, InputError
from lacuna.common.loading import (
    COUNT_POSITIONS_FROM_PADDING,
    check_vocabulary,
    commit_of,
    file_of,
    load_configuration,
    load_model,
    load_tokenizer,
    longest_input,
    num_positions,
)
from lacuna.modeling import LacunaConfig, LacunaForMaskedLM


@pytest.mark.parametrize("config, expected", [(RobertaConfig(max_position_embeddings=514), 512), (BertConfig(), 512)])
def test_positions_behind_the_padding_id_do_not_count(config: object, expected: int) -> None:
    assert num_positions(config) == expected
    assert longest_input(config=config, tokenizer=SimpleNamespace(model_max_length=10**30)) == expected
    assert longest_input(config=config, tokenizer=SimpleNamespace(model_max_length=128)) == 128


def test_a_roberta_of_514_positions_takes_512_tokens() -> None:
    """The model itself is the reference: its position ids begin behind that of the padding token."""
    from transformers import RobertaModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = RobertaModel(RobertaConfig(vocab_size=20, max_position_embeddings=34, **sizes))
    longest = num_positions(model.config)
    assert longest == 32 and model.config.model_type in COUNT_POSITIONS_FROM_PADDING
    model(input_ids=torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 5))


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_a_decoder_of_tokens_answers_questions_with_the_same_body(tmp_path: Path, kind: str) -> None:
    """Whose head for questions calls the body `transformer`, where that for tokens calls it `model`."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = getattr(transformers, f"{kind}Config")(vocab_size=20, intermediate_size=8, **sizes)
    decoder = getattr(transformers, f"{kind}ForCausalLM")(config)
    decoder.save_pretrained(tmp_path / "decoder")
    loaded, report = load_model(str(tmp_path / "decoder"), auto_class="AutoModelForQuestionAnswering")
    assert {name.partition(".")[0] for name in report["missing_keys"]} == {"qa_outputs"}
    body = loaded.base_model.state_dict()
    assert all(torch.equal(body[name], value) for name, value in decoder.model.state_dict().items())
    loaded.save_pretrained(tmp_path / "reader")
    again, report = load_model(str(tmp_path / "reader"), auto_class="AutoModelForQuestionAnswering")
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in again.state_dict().items())


def test_a_tokenizer_with_more_ids_than_rows_is_refused() -> None:
    embedding = torch.nn.Embedding(10, 2)
    model = SimpleNamespace(get_input_embeddings=lambda: embedding)
    check_vocabulary(tokenizer=range(10), model=model)
    with pytest.raises(InputError, match="has 11 ids"):
        check_vocabulary(tokenizer=range(11), model=model)


def test_a_folder_that_is_not_there_is_told_before_the_hub_is_asked(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(InputError, match=r"there is no folder .*/modle\. Did you mean .*/model\?"):
        load_configuration(str(tmp_path / "modle"))
    with pytest.raises(InputError, match="the folder has no config"):
        load_configuration(str(tmp_path / "model"))
    BertConfig().save_pretrained(tmp_path / "model")
    assert load_configuration(str(tmp_path / "model")).model_type == "bert"
    with pytest.raises(InputError, match="tokenizer"):
        load_tokenizer(str(tmp_path / "model"))
    with pytest.raises(InputError, match=r"AutoModelForSeq2SeqLM: there is no such head for its kind of model; name"):
        load_model(str(tmp_path / "model"), auto_class="AutoModelForSeq2SeqLM")
    with pytest.raises(InputError, match=r"cannot be loaded as AutoModelForMaskedLM: .*safetensors"):
        load_model(str(tmp_path / "model"), auto_class="AutoModelForMaskedLM")
    (tmp_path / "model" / "export.json").write_text('{"export_format": "onnx", "file": "model.onnx"}')
    (tmp_path / "model" / "model.onnx").write_bytes(b"")
    with pytest.raises(InputError, match=r"an ONNX export, for onnxruntime, and for predict"):
        load_model(str(tmp_path / "model"), auto_class="AutoModelForMaskedLM")


def test_a_model_of_the_hub_is_at_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BertConfig().save_pretrained(tmp_path / "model")
    config = (tmp_path / "model" / "config.json").read_bytes()
    with HubServer() as hub, hub.environment(monkeypatch, tmp_path / "home"):
        model = hub.add("me/model", {"config.json": config, "task.json": b"{}"})
        first = model.branches["main"]
        model.tags["v1"] = first
        second = model.commit("main", {"config.json": config.replace(b"12", b"13")})
        assert commit_of("me/model") == commit_of("me/model", revision=second[:40]) == second
        assert commit_of("me/model", revision="v1") == commit_of("me/model", revision=first) == first
        assert load_configuration("me/model", revision=first).num_hidden_layers == 12
        assert load_configuration("me/model", revision=second).num_hidden_layers == 13
        assert file_of("me/model", "task.json", revision=second) is None
        assert (file := file_of("me/model", "task.json", revision=first)) and file.read_text() == "{}"
        asked = len(hub.requests)
        assert commit_of(None) is commit_of(str(tmp_path / "model")) is None
        with pytest.raises(InputError, match="there is no folder runs/nowhere"):
            commit_of("runs/nowhere")
        assert file_of(str(tmp_path / "model"), "config.json") and not file_of(str(tmp_path), "config.json")
        assert len(hub.requests) == asked
        with pytest.raises(InputError, match=r"--revision v1 is for a --model of the Hub, not for .*/model"):
            commit_of(str(tmp_path / "model"), revision="v1")
        hub.fail("", status=503, times=99)
        assert commit_of("me/model") == second  # from the cache
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert commit_of("me/model") == second
        with pytest.raises(HubError, match=r"--model me/other is not in the cache, and HF_HUB_OFFLINE allows no more"):
            commit_of("me/other")


@pytest.mark.parametrize(
    ("name", "revision", "token", "failure", "said"),
    [
        (
            "me/nothing",
            None,
            TOKEN,
            {},
            r"--model me/nothing: the Hub \(HTTP 404\) knows no such model.*no such folder",
        ),
        (
            "me/closed",
            "v9",
            TOKEN,
            {},
            r"--model me/closed --revision v9: the Hub \(HTTP 404\) knows no such model or",
        ),
        ("me/closed", None, None, {}, r"\(HTTP 401\) does not show it to this login.*hf auth login"),
        ("me/gated", None, READER, {}, r"\(HTTP 403\) shows it only to those whom its owner lets in"),
        ("me/closed", None, TOKEN, {"status": 500}, r"\(HTTP 500\) has trouble of its own"),
        ("me/closed", None, TOKEN, {"status": 429}, r"\(HTTP 429\) takes no more requests"),
        ("me/closed", None, TOKEN, {"cut": True}, r"cannot be reached, or the connection broke"),
    ],
)
def test_what_the_hub_does_not_show(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    revision: str | None,
    token: str | None,
    failure: dict,
    said: str,
) -> None:
    with HubServer() as hub, hub.environment(monkeypatch, tmp_path / "home", token=token):
        hub.add("me/closed", {"config.json": b"{}"})
        hub.add("me/gated", {"config.json": b"{}"}, private=False).gated = True
        if failure:
            hub.fail("HEAD", times=99, **failure)
        with pytest.raises(HubError, match=said) as caught:
            commit_of(name, revision=revision)
    assert caught.value.exit_code == 6 and TOKEN not in str(caught.value) and "\n" not in str(caught.value)


def test_a_download_that_breaks_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps({"a": "x" * 5000}).encode()
    with HubServer() as hub, hub.environment(monkeypatch, tmp_path / "home"):
        hub.add("me/model", {"config.json": content})
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
        hub.fail("GET .*config.json", cut=True)
        assert (file := file_of("me/model", "config.json")) and file.read_bytes() == content
        assert hub.ranges and hub.ranges[0].startswith("bytes=")


def test_a_folder_beside_others_is_not_taken_for_a_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    said = r"there is no folder models/onne. Did you mean models/one\?"
    with (
        HubServer() as hub,
        hub.environment(monkeypatch, tmp_path / "home"),
        pytest.raises(InputError, match=said),
    ):
        commit_of("models/onne")


@pytest.mark.parametrize("change", ["one more", "one less", "one less of the head"])
def test_a_tensor_more_or_less_is_what_it_is_to_the_library(change: str, tmp_path: Path) -> None:
    """`from_pretrained` warns; our recipes take one more, and refuse a trunk that is not whole."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ours = LacunaConfig.from_family("bert", vocab_size=30, max_position_embeddings=16, **sizes)
    native = BertConfig(vocab_size=30, max_position_embeddings=16, **sizes)
    reports = []
    for name, model in {"ours": LacunaForMaskedLM(ours), "native": BertForMaskedLM(native)}.items():
        folder = tmp_path / name
        model.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        layer = next(key for key in sorted(tensors) if ".0." in key and "weight" in key)
        head = next(key for key in sorted(tensors) if "dense" in key and "layer" not in key)
        if change == "one more":
            tensors["v_head.weight"] = torch.ones(2)
        else:
            del tensors[layer if change == "one less" else head]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        _, report = type(model).from_pretrained(folder, output_loading_info=True)
        reports.append({key: len(report[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")})
        if change == "one less":
            with pytest.raises(CorruptCheckpointError, match=re.escape(layer)):
                load_model(str(folder), auto_class="AutoModelForMaskedLM")
        else:
            _, report = load_model(str(folder), auto_class="AutoModelForMaskedLM")
            assert sorted(report["missing_keys"]) == ([] if change == "one more" else [head])
    assert reports[0] == reports[1]
