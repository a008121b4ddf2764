"""Training: the loop, its options, optimizers, distribution, checkpoints, reports and plans."""

from .arguments import FineTuningArguments, ModelArguments, NewModelArguments, TrainingArguments
from .checkpoints.resuming import claim_output_dir, goes_on, refusal
from .environment import is_main_process, processes, running_on, use_all_cores
from .fine_tuning import fine_tune, outcome
from .loop import train
from .reports.page import ending
from .stages import expected_tokens
from .starting_model import starting_model
