"""Where the time of a training step goes: torch's profiler over some steps of a tiny encoder, as a table.

    python benchmarks/profile_step.py --name after                    # compiled where there is a compiler
    python benchmarks/profile_step.py --name eager --compile off
    python benchmarks/profile_step.py --name decoder --family qwen3

Steps are forward, backward and fused AdamW on 32 random rows of 128 tokens in bf16 where the processor is fast at it.
Operators are added up by name over `--steps` steps; a compiled block's loops stand under the names the compiler gives.
"""

import torch
from contenders import IGNORED, Contender, Trainee
from report import Report, make_parser

from lacuna import modeling
from lacuna.training.environment import keep_memory, use_all_cores

VOCAB = 8192


def main() -> None:
    """Parse, warm up, profile, write."""
    parser = make_parser(
        __doc__,
        ("name", "step", "of the file: DATE-profile-NAME.txt"),
        ("batch_size", 32, "rows"),
        ("length", 128, "tokens of a row"),
        ("steps", 5, "profiled"),
    )
    families = ("bert", "modernbert", "lacuna", "gpt2", "llama", "qwen3")
    parser.add_argument("--family", default="lacuna", choices=families, help="of the model (lacuna)")
    sizes = ("tiny", "mini", "small", "base", "large")
    parser.add_argument("--size", default="tiny", choices=sizes, help="of the model (tiny)")
    parser.add_argument(
        "--compile", choices=["on", "off"], default="on", help="the blocks (where there is a compiler)"
    )
    options = parser.parse_args()
    use_all_cores()
    keep_memory()
    report = Report(__file__, options, "torch", "transformers", threads=torch.get_num_threads())
    config = modeling.LacunaConfig.from_family(options.family, options.size, vocab_size=VOCAB)
    is_decoder = config.shape == "decoder"
    head = modeling.LacunaForCausalLM if is_decoder else modeling.LacunaForMaskedLM
    trainee = Trainee(Contender(lambda shape, dropout: head(config), "blocks"), None, compiles=options.compile == "on")
    ids = torch.randint(5, VOCAB, (options.batch_size, options.length))
    labels = ids if is_decoder else ids.masked_fill(torch.rand(ids.shape) > 0.15, IGNORED)
    trainee.use([{"input_ids": ids, "labels": labels}])
    trainee.options = {"skip_logits": True}
    trainee.run(3)
    timed = trainee.run(options.steps)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trainee.run(options.steps)
    path = report.path("").with_name(f"{report.body['date']}-profile-{options.name}.txt")
    rows = profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=40, max_name_column_width=80)
    head_line = f"{1e3 * timed['seconds'] / options.steps:.0f} ms a step without the profiler, "
    head_line += f"{timed['tokens_per_second']:,.0f} tokens/s; {options.steps} steps:"
    text = f"{report.body['settings']}\n{report.facts()}\n{head_line}\n\n{rows}\n"
    path.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
