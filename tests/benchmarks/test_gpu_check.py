"""`make gpu-check`: what of it a CPU has, the table, and that it fails where something is wrong."""

from typing import Any

import gpu_check
import pytest
import torch


def answered(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code with these words."""
    monkeypatch.setattr("sys.argv", ["gpu_check.py", *words])
    with pytest.raises(SystemExit) as left:
        gpu_check.main()
    return int(left.value.code or 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch, capsys) -> None:
    assert answered(monkeypatch) == 2
    assert "there is no NVIDIA GPU here" in capsys.readouterr().err


def test_what_a_cpu_has_is_right() -> None:
    names = ["FSDP2, one device", "resume, auto"]
    rows = gpu_check.run_checks(torch.device("cpu"), names)
    assert [(name, verdict) for name, verdict, _ in rows] == [(name, "ok") for name in names], rows


@pytest.mark.slow
def test_all_that_a_cpu_has_is_right() -> None:
    rows = gpu_check.run_checks(torch.device("cpu"))
    assert {verdict for _, verdict, _ in rows} == {"ok", "-"}, rows


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu_check.learn

    def wrong(model: Any, batch: Any, dtype: torch.dtype, **options: Any) -> Any:
        found = right(model, batch, dtype, **options)
        if model.config._attn_implementation == "sdpa":
            found["model.encoder.embeddings.embed_tokens.weight"] *= 1.1
        return found

    monkeypatch.setattr(gpu_check, "learn", wrong)
    ((_, verdict, text),) = gpu_check.run_checks(torch.device("cpu"), ["sdpa, encoder, bfloat16"])
    assert verdict == "WRONG" and "gradients differ by 0.1 of their norm, 0.04 is allowed" in text


def test_the_table_and_its_exit_code(monkeypatch, capsys) -> None:
    def bad(device: torch.device) -> str:
        raise AssertionError("the weights differ")

    def none(device: torch.device) -> str:
        raise gpu_check.Skipped("no such thing here")

    good = {"good": lambda device: f"fine on {device}", "none": none}
    monkeypatch.setattr(gpu_check, "CHECKS", good)
    assert answered(monkeypatch, "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert "good  ok     fine on cpu (0 s)" in said and "none  -      no such thing here" in said
    assert said.endswith("all is well\n")
    monkeypatch.setattr(gpu_check, "CHECKS", {**good, "bad": bad})
    assert answered(monkeypatch, "--device", "cpu") == 1
    said = capsys.readouterr().out
    assert "bad   WRONG  AssertionError: the weights differ" in said and said.endswith("1 of 3 are WRONG\n")


def test_speeds_are_rows_too() -> None:
    part = {
        "contenders": {
            "lacuna": {"tokens_per_second": 300.0, "mfu": 0.4},
            "bert": {"tokens_per_second": 200.0},
            "modernbert": {"error": "no room"},
        }
    }
    slow = {"contenders": {"lacuna": {"tokens_per_second": 90.0}, "bert": {"tokens_per_second": 200.0}}}
    broken = {"contenders": {"lacuna": {"error": "no kernel"}, "bert": {"tokens_per_second": 200.0}}}
    assert gpu_check.speed_rows({"fast": part, "slow": slow, "broken": broken}) == [
        ("fast", "ok", "300 tokens/s, MFU 40.0%; 1.50 times bert"),
        ("slow", "WRONG", "90 tokens/s; 0.45 times bert"),
        ("broken", "WRONG", "no kernel"),
    ]
