"""Fine-tune a pretrained model to mark the answer to a question in a text.

    accelerate launch recipes/finetune_question_answering.py --model runs/model --output_dir runs/answers
    accelerate launch recipes/finetune_question_answering.py --model runs/model \\
        --train_file train-v1.1.json --eval_file dev-v1.1.json --output_dir runs/mine
    torchrun --nproc_per_node 2 recipes/finetune_question_answering.py --model runs/model --max_steps 20

The first runs on a laptop in about a minute: without --train_file the questions ask for the defaults of parameters of
the standard library. Questions are read from SQuAD 1.1 JSON and from .jsonl or .parquet with the columns question,
context and answers ({"text": [...], "answer_start": [...]}). A context longer than --max_length is cut into windows
that share --stride tokens. --model takes a folder made by recipes/pretrain.py or any encoder of the Hub. Beside the
model, --output_dir receives predictions.jsonl: each held-out question, the prediction, its place and the answers.
"""

from dataclasses import asdict
from pathlib import Path

import modeling  # noqa: F401  (makes Lacuna's checkpoints known to the Auto classes)
from corpus import builtin_questions, read_records
from tasks import QuestionAnswering, QuestionAnsweringArguments, load_configuration, load_model, resolve_max_length
from training import (
    FineTuningArguments,
    ModelArguments,
    claim_output_dir,
    exit_cleanly,
    is_main_process,
    parse_arguments,
    processes,
    train,
)


def main() -> None:
    """Parse, build, train."""
    start, data, arguments = parse_arguments(
        (ModelArguments, QuestionAnsweringArguments, FineTuningArguments), description=__doc__
    )
    config, tokenizer = load_configuration(model=start.model, trust_remote_code=start.trust_remote_code)
    if is_main_process():
        claim_output_dir(arguments)
        print(processes().describe(), flush=True)
    work = QuestionAnswering(
        train_rows=list(read_records(Path(data.train_file))) if data.train_file else builtin_questions(),
        eval_rows=list(read_records(Path(data.eval_file))) if data.eval_file else [],
        tokenizer=tokenizer,
        max_length=resolve_max_length(asked=data.max_length, default=384, config=config, tokenizer=tokenizer),
        stride=data.stride,
        max_answer_length=data.max_answer_length,
        seed=arguments.seed,
        eval_fraction=data.eval_fraction,
    )
    model = load_model(
        auto_class="AutoModelForQuestionAnswering",
        model=start.model,
        tokenizer=tokenizer,
        trust_remote_code=start.trust_remote_code,
        seed=arguments.seed,
    )
    if is_main_process():
        print("\n".join(work.notes))
    results = train(
        model=model,
        work=work,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={"objective": "fine-tuning for question answering", "model": start.model, "task": asdict(data)},
        identity={"task": asdict(data), "examples": work.num_examples},
    )
    if is_main_process():
        work.write_predictions(Path(arguments.output_dir, "predictions.jsonl"))
        if work.num_eval_examples:
            print(
                f"exact match {results['eval_exact_match']:.1f}, F1 {results['eval_f1']:.1f}; "
                f"without a model: {results['baseline_exact_match']:.1f}, {results['baseline_f1']:.1f}"
            )
        print(f"the model and predictions.jsonl are in {arguments.output_dir}")


if __name__ == "__main__":
    exit_cleanly(main)
