"""A run: its parts, how it is opened or taken up again, and how it ends."""

import contextlib
import gc
import json
import os
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from lacuna.common.errors import CorruptCheckpointError, InputError
from lacuna.common.files import hold, write_text
from lacuna.common.work import Work

from . import sharding, zero
from .adapters import Adapter, fingerprint_of_frozen, prepare
from .arguments import TrainingArguments
from .averaging import Average, make_average
from .checkpoints import Saver, Snapshot, load_state, load_weights, newest_checkpoint, read_progress
from .compiling import compile_model, should_compile, warm_up
from .environment import bf16_is_fast, keep_memory, processes, use_all_cores
from .flops import Throughput
from .identity import changes, check_identity, check_skipped, identity_of, schedule_of, skipped_steps
from .memory import StepPlan, choose_micro_batch
from .model_card import choices_of, model_card
from .optimizers import OPTIMIZERS
from .progress import Progress, ended_early, share_done
from .rates import with_rate
from .run_log import RunLog, describe_run
from .signals import StopSignals, Watchdog
from .stages import Stage, epochs_per_step, plan_stages, skipped, tokens_per_step
from .trackers import Trackers


@dataclass
class Run:
    """The parts of a run, so that its functions need not pass a dozen of them around."""

    accelerator: Accelerator
    model: nn.Module
    optimizers: list[Any]
    """Of torch, or one `ZeroOptimizer` that stands for it."""
    stages: list[Stage]
    tokenizer: Any
    plan: TrainingArguments
    progress: Progress
    log: RunLog
    saver: Saver
    average: Average | None
    adapter: Adapter | None
    info: dict[str, Any]
    throughput: Throughput
    signals: StopSignals = field(default_factory=StopSignals)
    watchdog: Watchdog = field(default_factory=lambda: Watchdog(0))
    compile_seconds: float = 0.0
    """Seconds that compiling took, in this session, before the first step."""
    waited: float = 0.0
    """Seconds in which checkpoints have kept training waiting, in this session."""
    copied_step: int = 0
    """The step of the newest checkpoint that was begun in this session."""
    saved_step: int = 0
    """The step of the newest whole checkpoint of this session, as the main process knows."""
    stopping: bool = False
    """Whether a process was asked to stop, as all of them know."""

    @property
    def bare(self) -> nn.Module:
        """The model without the wrapper of DDP."""
        return self.accelerator.unwrap_model(self.model)

    @property
    def work(self) -> Work:
        """What the model is judged by: the work of the last stage."""
        return self.stages[-1].work

    @property
    def done(self) -> float:
        """The share of the run that is done: by steps or by the clock, whichever is further."""
        return share_done(self.plan, self.progress)

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.progress.epochs + self.progress.samples / self.stages[self.progress.stage].work.num_examples

    def compile(self) -> None:
        """Have everything compiled before the clock of the run starts, if it is to be compiled at all."""
        if self.plan.compile != "on":
            return
        self.log.say("compiling the model; on a CPU this takes half a minute")
        backward = partial(sharding.backward, self.accelerator, self.model)
        ahead = self.stages[self.progress.stage :]
        self.compile_seconds = warm_up(self.model, ahead, device=self.accelerator.device, backward=backward)
        self.log.say(f"compiled in {self.compile_seconds:.0f} s")

    def card(self, metrics: dict[str, float], baseline: dict[str, float] | None = None) -> str:
        """The model card as things stand; `metrics` and `baseline` as in results.json."""
        return model_card(
            model=self.bare,
            run_info=self.info,
            step=self.progress.step,
            tokens=self.progress.tokens,
            metrics=metrics,
            baseline=baseline or {},
            choices=choices_of(
                self.plan,
                epochs=self.epochs,
                precision=str(self.accelerator.mixed_precision),
                ended_early=ended_early(self.plan, self.progress),
            ),
        )

    def snapshot(self) -> Snapshot:
        """The run as it stands, in memory of its own. All processes must call it; only rank 0 gets the tensors."""
        weights, adapter = sharding.full_model_state(self.bare), self.adapter
        return Snapshot(
            weights=weights if adapter is None else adapter.merged(weights),
            learned={} if adapter is None else adapter.learned(weights),
            optimizer=sharding.full_optimizer_state(self.bare, self.optimizers),
            average=self.average.state() if self.average is not None else {},
            progress=Progress(**json.loads(json.dumps(vars(self.progress)))),
            card=self.card({}),
        )


def open_run(
    *,
    model: nn.Module,
    works: list[tuple[float, Work]],
    tokenizer: Any,
    arguments: TrainingArguments,
    info: dict[str, Any],
    identity: dict[str, Any],
) -> Run:
    """Join the processes, make the optimizer, and go back to the newest checkpoint when resuming."""
    skipped_steps(arguments.skip_steps)  # a mistake is better told now
    if arguments.early_stopping_patience and not works[-1][1].num_eval_examples:
        raise InputError("--early_stopping_patience needs examples that are held out, and there are none")
    accelerator = _join(arguments)
    if accelerator.is_main_process:
        hold(Path(arguments.output_dir))
    stages = plan_stages(arguments=arguments, works=works, num_processes=accelerator.num_processes)
    tokens = tokens_per_step(stages) if arguments.max_tokens else 1.0
    plan = arguments.resolved(epochs_per_step=epochs_per_step(stages), tokens_per_step=tokens)
    adapter = prepare(model, plan)
    plan = with_rate(plan, model)
    facts = dict(identity) if adapter is None else {**identity, "frozen_weights": fingerprint_of_frozen(model)}
    throughput = Throughput(model, accelerator)
    model, optimizers = _learners(accelerator, model, plan)
    bare = accelerator.unwrap_model(model)
    plan = _compiled(plan, bare, stages, device=accelerator.device)
    average = make_average(plan, bare)
    progress = Progress(
        identity=identity_of(arguments=plan, config=getattr(bare, "config", None), facts=facts),
        options=schedule_of(plan),
    )
    notices = _skipped_stages(plan, stages)
    if arguments.learning_rate is None:
        notices.append(f"learning rate {plan.learning_rate:g}, in proportion to the weights (--learning_rate)")
    changed: list[dict[str, Any]] = []
    if plan.resume:
        progress, changed, resumed = _restore(plan, bare, optimizers, average, adapter, progress)
        notices += resumed
    if plan.micro_batch_size == 0:
        stages = _fitted(stages, accelerator, bare, optimizers, plan, progress)
    progress.micro_batch_sizes = [stage.micro_batch_size for stage in stages]
    progress.num_processes = accelerator.num_processes
    notices += check_skipped(plan.skip_steps, done=progress.step, max_steps=plan.max_steps)
    output_dir = Path(plan.output_dir)
    title = ", ".join(filter(None, [type(bare).__name__, info.get("objective")]))
    log = _open_log(plan, progress, title=title, is_main=accelerator.is_main_process)
    run = Run(
        accelerator=accelerator,
        model=model,
        optimizers=optimizers,
        stages=stages,
        tokenizer=tokenizer,
        plan=plan,
        progress=progress,
        log=log,
        saver=Saver(
            output_dir=output_dir,
            model=bare,
            tokenizer=tokenizer,
            keep=plan.keep_checkpoints,
            greater_is_better=works[-1][1].greater_is_better,
        ),
        average=average,
        adapter=adapter,
        info=info,
        throughput=throughput,
    )
    _describe(run, changed)
    for notice in notices:
        log.say(notice)
    return run


def _join(arguments: TrainingArguments) -> Accelerator:
    precision = arguments.mixed_precision
    if precision == "auto":
        precision = "bf16" if bf16_is_fast() else "no"
    use_all_cores()
    keep_memory()
    if arguments.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    # Without `cpu`, accelerate 1.15 makes each process of `torchrun` a run of its own on a machine without a GPU.
    on_cpu = not torch.accelerator.is_available() and processes().count > 1
    is_divided = sharding.asked_for() or zero.asked_for()
    with sharding.hidden_from_accelerate() if is_divided else contextlib.nullcontext():
        return Accelerator(mixed_precision=precision, cpu=on_cpu)


def _learners(accelerator: Accelerator, model: nn.Module, plan: TrainingArguments) -> tuple[nn.Module, list[Any]]:
    """What forward passes go through, and the optimizers; with DeepSpeed, one that stands for them."""
    config = zero.check(optimizer=plan.optimizer, max_grad_norm=plan.max_grad_norm) if zero.asked_for() else None
    model = _place(accelerator, model, plan)
    bare = accelerator.unwrap_model(model)
    optimizers = OPTIMIZERS[plan.optimizer](bare, plan)
    if config is None:
        return model, [*optimizers]
    model, divided = zero.divide(bare, optimizers[0], config, device=accelerator.device)
    return model, [divided]


def _compiled(
    plan: TrainingArguments, model: nn.Module, stages: list[Stage], *, device: torch.device
) -> TrainingArguments:
    """The same options with `--compile` decided, and the model told to be compiled where they say so."""
    is_divided = sharding.is_sharded(model) or zero.asked_for()
    on = should_compile(plan, model=model, stages=stages, device=device, is_divided=is_divided)
    on = on and compile_model(model) > 0
    return replace(plan, compile="on" if on else "off")


def _place(accelerator: Accelerator, model: nn.Module, plan: TrainingArguments) -> nn.Module:
    """The model on its device: divided among the processes where that was asked for, else whole in each of them."""
    sharded = sharding.asked_for()
    if sharded:
        sharding.check_optimizer(plan.optimizer)
        dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else None
        sharding.shard(model, device=accelerator.device, dtype=dtype)
    # Autocast, and DDP where nothing else exchanges gradients.
    return accelerator.prepare_model(model, evaluation_mode=sharded or zero.asked_for())


def _fitted(
    stages: list[Stage],
    accelerator: Accelerator,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    plan: TrainingArguments,
    progress: Progress,
) -> list[Stage]:
    """The same stages with the largest micro-batches that every process has memory for; those of the checkpoint where
    there is one of as many processes, so that what follows is the same to the bit.

    Raises:
        InputError: on all processes, though one row fits on all but one.
    """
    if sharding.is_sharded(model) or zero.asked_for():
        raise InputError("--micro_batch_size auto knows nothing of sharded weights and states; give it a number")
    sizes, trouble = progress.micro_batch_sizes, ""
    if len(sizes) != len(stages) or progress.num_processes != accelerator.num_processes:
        sizes = []
        try:
            for stage in stages:
                step = StepPlan(
                    model,
                    stage.work,
                    plan,
                    share=stage.batch_size // accelerator.num_processes,
                    precision=str(accelerator.mixed_precision),
                    device_type=accelerator.device.type,
                    num_processes=accelerator.num_processes,
                )
                count = processes().local_count
                size = choose_micro_batch(step, accelerator.device, local_count=count, optimizers=optimizers)
                sizes.append(size)
        except InputError as error:
            trouble = str(error)
    answers = gather_object([(trouble, sizes)])
    for rank, (refusal, _) in enumerate(answers):
        if refusal:
            raise InputError(refusal if len(answers) == 1 else f"process {rank}: {refusal}")
    smallest = [min(each) for each in zip(*(found for _, found in answers), strict=True)]
    return [replace(stage, micro_batch_size=size) for stage, size in zip(stages, smallest, strict=True)]


def _skipped_stages(plan: TrainingArguments, stages: list[Stage]) -> list[str]:
    """A warning for each stage that the run is too short for."""
    return [
        f"warning: of {plan.max_steps} steps none is in the stage that begins at {stage.at} of the run"
        for stage in (skipped(stages, plan.max_steps) if plan.max_steps and not plan.max_minutes else [])
    ]


def _open_log(plan: TrainingArguments, progress: Progress, *, title: str, is_main: bool) -> RunLog:
    return RunLog(
        output_dir=Path(plan.output_dir),
        enabled=is_main,
        first_step=progress.step,
        done=share_done(plan, progress),
        title=title,
        peak_rate=plan.learning_rate,
        trackers=_trackers(plan, progress.step) if is_main else None,
    )


def _trackers(plan: TrainingArguments, first_step: int) -> Trackers | None:
    if not plan.report_to:
        return None
    return Trackers(
        names=plan.report_to,
        project="lacuna",
        config=asdict(plan),
        output_dir=Path(plan.output_dir),
        first_step=first_step,
    )


def _restore(
    plan: TrainingArguments,
    model: nn.Module,
    optimizers: list[Any],
    average: Average | None,
    adapter: Adapter | None,
    fresh: Progress,
) -> tuple[Progress, list[dict[str, Any]], list[str]]:
    """Where the newest checkpoint stands, what has changed since, and what people are told."""
    output_dir = Path(plan.output_dir)
    checkpoint, notices = newest_checkpoint(output_dir)
    if checkpoint is None and (output_dir / "config.json").exists():
        raise InputError(f"--resume: the run in {output_dir} is finished, with no checkpoint to continue from")
    if checkpoint is None:
        return fresh, [], [*notices, f"no checkpoint in {output_dir}: starting from the beginning"]
    progress = read_progress(checkpoint)
    if plan.max_steps and progress.step > plan.max_steps:
        raise InputError(
            f"--resume: the run in {output_dir} has made {progress.step:,} steps, and only {plan.max_steps:,} are "
            "asked for; give --max_steps, or whatever limits the run, more"
        )
    changed = check_identity(
        ours=fresh.identity, theirs=progress.identity, allowed=plan.allow_change, checkpoint=checkpoint
    )
    changed += changes(progress.options, fresh.options)
    renewed = {change["option"] for change in changed} & {"optimizer", "average"}
    try:
        if adapter is None:
            sharding.load_model_state(model, load_weights(checkpoint))
        else:
            learned = load_state(checkpoint, "learned")
            sharding.load_model_state(model, learned, names=adapter.learned(model.state_dict()).keys())
        state = {} if "optimizer" in renewed else load_state(checkpoint, "optimizer")
        sharding.load_optimizer_state(model, optimizers, state)
    except (KeyError, ValueError) as error:
        raise CorruptCheckpointError(f"checkpoint {checkpoint} is not of this model: {error.args[0]}") from error
    if average is not None and "average" not in renewed:
        average.load(load_state(checkpoint, "average"))
    if "average" in renewed:  # the weights that were best so far are not there
        progress.best_metric, progress.best_step, progress.best_loss = None, -1, None
    notices.append(f"resuming from {checkpoint} at step {progress.step:,}")
    notices += [f"  {change['option']} was {change['before']} and is {change['after']} now" for change in changed]
    notices += [f"  nothing of the {name} there was is taken over" for name in sorted(renewed)]
    progress.identity, progress.options = fresh.identity, fresh.options
    return progress, changed, notices


def _describe(run: Run, changed: list[dict[str, Any]]) -> None:
    """Write run.json: what this session does, and when earlier ones were taken up with which changes."""
    if not run.accelerator.is_main_process:
        return
    path = Path(run.plan.output_dir) / "run.json"
    resumed: list[Any] = []
    if run.plan.resume and path.is_file():
        try:
            resumed = json.loads(path.read_text(encoding="utf-8")).get("resumed", [])
        except ValueError:  # half of it, of a machine that lost its power
            resumed = []
    if run.progress.step:
        resumed = [*resumed, {"at_step": run.progress.step, "changes": changed}]
        run.log.mark("resume", run.progress.step, changes=changed)
    facts = describe_run(
        arguments=run.plan,
        launched=processes(),
        device=run.accelerator.device,
        precision=str(run.accelerator.mixed_precision),
        run_info={
            **run.info,
            "stages": [
                {name: getattr(stage, name) for name in ("at", "batch_size", "micro_batch_size")}
                for stage in run.stages
            ],
            "identity": run.progress.identity,
            "resumed": resumed,
        },
    )
    write_text(path, json.dumps(facts, indent=2, default=str) + "\n")


def close_run(run: Run, *, stay_joined: bool = False) -> None:
    """Part from the other processes, unless another run of theirs follows; DDP's wrapper goes first.

    Its reducer would be the last to hold the process group and take it down with Python's lock held, for which a
    thread of gloo waits: 3 of 20 runs on two processes never returned (torch 2.13).
    """
    run.model = run.bare
    if run.accelerator.num_processes > 1:
        run.accelerator.free_memory()
        gc.collect()
    if not stay_joined:
        run.accelerator.end_training()
