"""A training run: its state in one object, how it starts or resumes, saves checkpoints and ends."""

import contextlib
import copy
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradScalerKwargs, broadcast_object_list
from torch import nn

from lacuna.common.errors import InputError, StorageError
from lacuna.common.files import write_text
from lacuna.common.hub import BackgroundPush
from lacuna.common.private import shown_command
from lacuna.common.work import Work

from .arguments import DTYPES, TrainingArguments
from .checkpoints.resuming import identity_of, resume, schedule_of
from .checkpoints.saving import PATIENCE, Saver, Snapshot, all_finite, native_form
from .compiling import compile_model, should_compile, warm_up
from .distributed import fsdp
from .environment import StopSignals, Watchdog, hardware, keep_memory, processes, resolved_precision, use_all_cores
from .optimizers.adapters import Adapter, fingerprint_of_frozen, prepare
from .optimizers.averages import Average, make_average
from .optimizers.optimizers import OPTIMIZERS
from .optimizers.schedules import with_rate
from .planning.flops import Throughput
from .planning.memory import check_memory
from .progress import Progress, check_skipped, ended_early, share_done, skipped_steps
from .reports.card import choices_of, model_card
from .reports.log import RunLog, Trackers
from .stages import Stage, Works, resolve, skipped

_LIBRARIES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy", "safetensors")


class Probe(Protocol):
    """Asked while a model learns, with it, the step and, on the main process, the output folder."""

    baseline: dict[str, float]  # what a guess reaches, by the names of the scores
    steps: float  # from one time to the next, below 1 a share of the run; 0: with every evaluation

    def __call__(self, model: Any, step: int, folder: Path | None) -> dict[str, float]: ...


@dataclass
class Run:
    """The parts of a run, so that its functions need not pass a dozen of them around."""

    accelerator: Accelerator
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    stages: list[Stage]
    tokenizer: Any
    arguments: TrainingArguments  # resolved: with every default filled in
    progress: Progress
    average: Average | None
    adapter: Adapter | None
    native: nn.Module | None  # what is saved in place of the model, without weights; None: the model itself
    info: dict[str, Any]
    throughput: Throughput
    signals: StopSignals = field(default_factory=StopSignals)
    watchdog: Watchdog = field(default_factory=lambda: Watchdog(0))
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation in this session
    alone: dict[str, float] = field(default_factory=dict)  # of the last run of a soup, before the mean is taken
    evaluated_at: int = -1  # the step of that evaluation
    compile_seconds: float = 0.0
    waited: float = 0.0  # seconds in which checkpoints have kept training waiting, in this session
    copied_step: int = 0  # the step of the newest checkpoint that was begun in this session
    saved_step: int = 0  # the step of the newest whole checkpoint of this session, as the main process knows
    probe: Probe | None = None  # see `train`
    blend: Callable[[nn.Module], bool] | None = None  # the same
    loader: Iterator[Any] | None = None  # of the present stage's micro-batches
    stopping: bool = False  # whether a process was asked to stop, as all of them know

    def __post_init__(self) -> None:
        arguments, is_main = self.arguments, self.accelerator.is_main_process
        output_dir = Path(arguments.output_dir)
        where: dict[str, Any] = {"output_dir": output_dir, "first_step": self.progress.step}
        trackers = None
        if is_main and arguments.report_to:
            trackers = Trackers(names=arguments.report_to, project="lacuna", config=asdict(arguments), **where)
        self.log = RunLog(
            **where,
            enabled=is_main,
            done=self.done,
            metric=self.work.metric,
            title=", ".join(filter(None, [type(self.bare).__name__, self.info.get("objective")])),
            trackers=trackers,
        )
        self.saver = Saver(
            output_dir=output_dir,
            model=self.bare,
            tokenizer=self.tokenizer,
            native=self.native is not None,
            keep=arguments.keep_checkpoints,
            greater_is_better=self.work.greater_is_better,
        )
        self.pushes: BackgroundPush | None = None
        if is_main and arguments.push_to_hub and arguments.push_steps:
            self.pushes = BackgroundPush(name=arguments.push_to_hub, say=self.log.say)
            self.saver.held = self.pushes.held
            self._push(self.progress.step)  # as a session before perhaps could not

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
        return share_done(self.arguments, self.progress)

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by before backward; 1 in any precision but fp16."""
        return self.progress.loss_scale if self.accelerator.mixed_precision == "fp16" else 1.0

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        return self.progress.epochs + self.progress.samples / self.stages[self.progress.stage].work.num_examples

    def averaged(self, wanted: bool = True) -> contextlib.AbstractContextManager[None]:
        """Within this context the model has the weights of `--average`, where there are any."""
        return self.average.applied(self.bare) if self.average is not None and wanted else contextlib.nullcontext()

    def compile(self) -> None:
        """Have everything compiled before the first step, if it is to be compiled at all."""
        if self.arguments.compile != "on":
            return
        ahead = self.stages[self.progress.stage :]
        with self.log.waiting("compiling the model; on a CPU this takes half a minute"):
            where = self.accelerator.device
            self.compile_seconds = warm_up(self.model, ahead, device=where, backward=self.accelerator.backward)
        if self.accelerator.num_processes > 1:  # it counts against --max_minutes: one clock, as in a step
            self.compile_seconds = float(broadcast_object_list([self.compile_seconds])[0])
        self.progress.compile_seconds += self.compile_seconds
        self.log.say(f"compiled in {self.compile_seconds:.0f} s")

    def card(self, metrics: dict[str, float], baseline: dict[str, float] | None = None) -> str:
        """The model card as things stand; `metrics` and `baseline` as in results.json, of a run that is over."""
        facts = {
            "hardware": hardware(self.accelerator.device),
            "minutes of training": f"{self.progress.seconds / 60:.1f}",
        }
        if "text" in self.info:
            facts["text"] = f"{self.info['text']}; fingerprint `{str(self.progress.identity.get('corpus'))[:16]}`"
        return model_card(
            model=self.bare if self.native is None else self.native,
            run_info=self.info,
            step=self.progress.step,
            tokens=self.progress.tokens,
            metrics=metrics,
            baseline=baseline or {},
            choices=choices_of(
                self.arguments,
                epochs=self.epochs,
                precision=str(self.accelerator.mixed_precision),
                ended_early=ended_early(self.arguments, self.progress),
            )
            | facts,
            curves=baseline is not None and Path(self.arguments.output_dir, "curves.png").is_file(),
        )

    def save(self) -> None:
        """Begin to write a checkpoint, once the one before is whole. StorageError: the third in a row that fails."""
        began = time.perf_counter()
        self.await_checkpoint()
        snapshot, self.copied_step = self._snapshot(), self.progress.step
        if self.accelerator.is_main_process and all_finite(snapshot.weights):
            self.saver.begin(snapshot)
            self.watchdog.beat()
        elif self.accelerator.is_main_process:
            self.log.say(f"warning: weights are not finite after step {self.progress.step:,}: no checkpoint")
        self.waited += time.perf_counter() - began

    def await_checkpoint(self) -> None:
        """Wait for the checkpoint that is being written; warn if it could not be."""
        try:
            written = self.saver.wait()
        except StorageError as error:
            if self.saver.failures >= PATIENCE:
                raise
            self.log.say(f"warning: {error}; training continues, older checkpoints are intact")
            return
        if written is not None:
            self.saved_step = written
            self.log.mark("checkpoint", written)
            if not self.stopping:
                self._push(written)

    def _push(self, step: int) -> None:
        """Begin to push the checkpoint of a step, if it is one of `--push_steps`."""
        if self.pushes is not None and step and step % self.arguments.push_steps == 0:
            self.pushes.offer(self.saver.folder / f"step-{step:08d}")

    def _snapshot(self) -> Snapshot:
        """The run as it stands, in memory of its own. All processes must call it; only rank 0 gets the tensors."""
        weights, adapter = fsdp.full_model_state(self.bare), self.adapter
        untied = {id(tensor): name for name, tensor in reversed(weights.items())}
        ours = {} if self.native is None else {name: weights[name] for name in untied.values()}
        return Snapshot(
            weights=weights if adapter is None else adapter.merged(weights),
            learned=ours if adapter is None else adapter.learned(weights),
            optimizer=fsdp.full_optimizer_state(self.bare, self.optimizers),
            average=self.average.state() if self.average is not None else {},
            progress=copy.deepcopy(self.progress),
            card=self.card({}),
        )


def open_run(
    *,
    model: nn.Module,
    works: Works,
    tokenizer: Any,
    arguments: TrainingArguments,
    info: dict[str, Any],
    identity: dict[str, Any],
) -> Run:
    """Join the processes, make the optimizer, and return to the newest checkpoint when resuming."""
    skipped_steps(arguments.skip_steps)  # a mistake is better told now
    if arguments.early_stopping_patience and not works[-1][1].num_eval_examples:
        raise InputError("--early_stopping_patience needs examples that are held out, and there are none")
    accelerator, asked_rate = _join(arguments), arguments.learning_rate
    arguments, stages = resolve(arguments, works, num_processes=accelerator.num_processes)
    if not fsdp.asked_for():  # else each process holds a part
        check_memory(model, stages, arguments, device=accelerator.device, num_processes=accelerator.num_processes)
    native, how = native_form(model, arguments.save_as)
    adapter = prepare(model, arguments)
    arguments = with_rate(arguments, model)
    facts = dict(identity) if adapter is None else {**identity, "frozen_weights": fingerprint_of_frozen(model)}
    throughput = Throughput(model, accelerator)
    model, optimizers = _learners(accelerator, model, arguments)
    bare = accelerator.unwrap_model(model)
    device, is_divided = accelerator.device, fsdp.is_sharded(bare)
    compiles = should_compile(arguments, model=bare, stages=stages, device=device, is_divided=is_divided)
    arguments = replace(arguments, compile="on" if compiles and compile_model(bare) else "off")
    average = make_average(arguments, bare)
    identity = identity_of(arguments=arguments, config=getattr(bare, "config", None), facts=facts)
    progress, changed = Progress(identity=identity, options=schedule_of(arguments)), list[dict[str, Any]]()
    notices = [] if arguments.max_minutes else skipped(stages, arguments.max_steps)
    if asked_rate is None:
        rate, by = f"{arguments.learning_rate:g}", "RMS of the weights" if arguments.fine_tunes else "layers and width"
        notices.append(f"learning rate {rate}, automatic, by {by} (--learning_rate)")
    if arguments.resume:
        progress, changed, resumed = resume(
            arguments, model=bare, optimizers=optimizers, average=average, adapter=adapter, fresh=progress
        )
        notices += resumed
    notices += check_skipped(arguments.skip_steps, done=progress.step, max_steps=arguments.max_steps)
    run = Run(
        accelerator=accelerator,
        model=model,
        optimizers=optimizers,
        stages=stages,
        tokenizer=tokenizer,
        arguments=arguments,
        progress=progress,
        average=average,
        adapter=adapter,
        native=native,
        info=info,
        throughput=throughput,
    )
    _describe(run, changed)
    for notice in filter(None, [*notices, how]):
        run.log.say(notice)
    return run


def _join(arguments: TrainingArguments) -> Accelerator:
    use_all_cores(arguments.threads)
    keep_memory()
    if arguments.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(arguments.deterministic)
    # Without `cpu`, accelerate 1.15 makes each process of `torchrun` a run of its own on a machine without a GPU.
    # Several processes cannot share the GPU of a Mac.
    found = torch.accelerator.current_accelerator(check_available=True)
    on_cpu = (found is None or found.type == "mps") and processes() > 1
    precision = resolved_precision(arguments.mixed_precision)
    AcceleratorState._reset_state()  # a run before this one in the same process may have had another precision
    with fsdp.hidden_from_accelerate() if fsdp.asked_for() else contextlib.nullcontext():
        unscaled = [GradScalerKwargs(enabled=False)]  # the loop has a loss scale of its own, which checkpoints hold
        accelerator = Accelerator(mixed_precision=precision, cpu=on_cpu, kwargs_handlers=unscaled)
    if precision == "fp16":
        accelerator.native_amp = True  # accelerate 1.15 silently computes in float32 on a CPU
    return accelerator


def _learners(accelerator: Accelerator, model: nn.Module, arguments: TrainingArguments) -> tuple[nn.Module, list[Any]]:
    """What forward passes go through, on its device, and the optimizers."""
    if fsdp.asked_for():
        fsdp.shard(model, device=accelerator.device, dtype=DTYPES.get(accelerator.mixed_precision))
    # Autocast, and DDP where nothing else exchanges gradients.
    model = accelerator.prepare_model(model, evaluation_mode=fsdp.asked_for())
    return model, [*OPTIMIZERS[arguments.optimizer].make(accelerator.unwrap_model(model), arguments)]


def _describe(run: Run, changed: list[dict[str, Any]]) -> None:
    """Write run.json: what this session does, and the steps and changes of earlier resumes."""
    if not run.accelerator.is_main_process:
        return
    path = Path(run.arguments.output_dir) / "run.json"
    resumed: list[Any] = []
    if run.arguments.resume and path.is_file():
        with contextlib.suppress(ValueError):  # half of it, of a machine that lost its power
            resumed = json.loads(path.read_text(encoding="utf-8")).get("resumed", [])
    if run.progress.step:
        resumed = [*resumed, {"at_step": run.progress.step, "changes": changed}]
        run.log.mark("resume", run.progress.step, changes=changed)
    device = run.accelerator.device
    facts = {
        "command": shown_command(),
        "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "arguments": asdict(run.arguments),
        **run.info,
        "stages": [
            {name: getattr(stage, name) for name in ("at", "batch_size", "micro_batch_size")} for stage in run.stages
        ],
        "identity": run.progress.identity,
        "resumed": resumed,
        "environment": {
            "python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
            "processes": processes(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "threads": torch.get_num_threads(),
            "mixed_precision": str(run.accelerator.mixed_precision),
        },
    }
    write_text(path, json.dumps(facts, indent=2, default=str) + "\n")


def close_run(run: Run, *, stay_joined: bool = False) -> None:
    """Leave the process group, unless another run follows; DDP's wrapper goes first.

    Its reducer would be the last to hold the group and destroy it with Python's lock held, for which a thread of gloo
    waits: 3 of 20 runs on two processes never returned (torch 2.13).
    """
    run.model = run.bare
    if run.accelerator.num_processes > 1:
        run.accelerator.free_memory()
        gc.collect()
    if not stay_joined:
        run.accelerator.end_training()
