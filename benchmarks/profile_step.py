"""Where the time of a training step goes: torch's profiler over some steps of a tiny encoder, as a table.

    python benchmarks/profile_step.py --name after                    # compiled where there is a compiler
    python benchmarks/profile_step.py --name eager --compile off
    python benchmarks/profile_step.py --name decoder --family qwen3

Steps are forward, backward and fused AdamW on 32 random rows of 128 tokens in bf16 where the processor is fast at it.
Operators are added up by name over `--steps` steps; a compiled block's loops stand under the names the compiler gives.
"""

import argparse
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from reports import RESULTS, describe_machine, positive

from lacuna import modeling
from lacuna.training.compiling import compile_model, compiler_of
from lacuna.training.environment import bf16_is_fast, keep_memory, use_all_cores


def make_step(options: argparse.Namespace) -> Any:
    """A function that takes one optimizer step, and what it is a step of."""
    torch.manual_seed(0)
    config = modeling.LacunaConfig.from_family(options.family, options.size, vocab_size=8192)
    is_decoder = config.shape == "decoder"
    model = (modeling.LacunaForCausalLM if is_decoder else modeling.LacunaForMaskedLM)(config).train()
    if options.compile == "on":
        compile_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(5, 8192, (options.batch_size, options.length))
    labels = ids if is_decoder else ids.masked_fill(torch.rand(ids.shape) > 0.15, -100)
    batch = {"input_ids": ids, "labels": labels, "skip_logits": True}

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16) if bf16_is_fast() else nullcontext():
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    """Parse, warm up, profile, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="step", help="of the file: DATE-profile-NAME.txt (step)")
    families = ("bert", "modernbert", "lacuna", "gpt2", "llama", "qwen3")
    parser.add_argument("--family", default="lacuna", choices=families, help="of the model (lacuna)")
    sizes = ("tiny", "mini", "small", "base", "large")
    parser.add_argument("--size", default="tiny", choices=sizes, help="of the model (tiny)")
    default = "on" if compiler_of(torch.device("cpu")) else "off"
    parser.add_argument("--compile", choices=["on", "off"], default=default, help=f"the blocks ({default})")
    for name, value, text in (
        ("batch_size", 32, "rows"),
        ("length", 128, "tokens of a row"),
        ("steps", 5, "profiled"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=value, help=f"{text} ({value})")
    parser.add_argument("--output_dir", default=str(RESULTS), help="folder of the table")
    options = parser.parse_args()
    use_all_cores()
    keep_memory()
    machine = describe_machine("torch", "transformers", threads=torch.get_num_threads())
    step = make_step(options)
    for _ in range(3):
        step()
    started = time.perf_counter()
    for _ in range(options.steps):
        step()
    seconds = (time.perf_counter() - started) / options.steps
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(options.steps):
            step()
    table = profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=40, max_name_column_width=80)
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items())
    tokens = options.batch_size * options.length
    head = (
        f"{1e3 * seconds:.0f} ms a step without the profiler, {tokens / seconds:,.0f} tokens/s; {options.steps} steps:"
    )
    path = Path(options.output_dir, f"{datetime.now(UTC):%Y-%m-%d}-profile-{options.name}.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: value for name, value in vars(options).items() if name != "output_dir"}
    path.write_text(f"{settings}\n{facts}\n{head}\n\n{table}\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
