"""What all fine-tuning recipes do: load a model, read rows, train, and write the results."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lacuna.tasks.base.arguments import used
from lacuna.tasks.base.models import load_base, load_model
from lacuna.tasks.base.report import write_results
from lacuna.tasks.base.task import Task


def fine_tune_task(
    kind: type[Task],
    start: Any,
    data: Any,
    arguments: Any,
    *,
    fine_tune: Callable[..., object],
    read: Callable[..., Sequence[Any]],
    builtin: Callable[[], Sequence[Any]] | None = None,
    add: Callable[[Path], object] = lambda folder: None,
) -> None:
    """Fine-tune a pretrained model on a task.

    Args:
        start, data, arguments: `ModelArguments`, the options of the task's data, `FineTuningArguments`.
        fine_tune: `lacuna.training.fine_tune`.
        read, builtin: see `Task.from_arguments`.
        add: called with the folder of each model, to put more into it.
    """
    config, tokenizer = load_base(model=start.model, trust_remote_code=start.trust_remote_code, writes=kind.writes)
    work = kind.from_arguments(
        data, tokenizer=tokenizer, config=config, seed=arguments.seed, read=read, builtin=builtin
    )

    def make_model(seed: int) -> Any:
        return load_model(
            auto_class=work.auto_class,
            model=start.model,
            tokenizer=tokenizer,
            trust_remote_code=start.trust_remote_code,
            seed=seed,
            **work.head_options(),
        )

    def finish(results: dict[str, float], folder: Path) -> None:
        write_results(work, results, folder)
        add(folder)

    labels = {} if work.label_names is None else {"labels": work.label_names}
    fine_tune(
        work=work,
        make_model=make_model,
        tokenizer=tokenizer,
        arguments=arguments,
        run_info={"objective": work.objective, "model": start.model, "task": used(data)},
        identity={"task": asdict(data), **labels, "examples": work.num_examples},
        finish=finish,
        describe=work.describe,
    )
