"""Push a model to the Hugging Face Hub.

    python recipes/push_model.py --model runs/model --to me/my-model             # private: only you see it
    python recipes/push_model.py --model runs/classifier --to me/my-classifier --public --license apache-2.0

Log in first with `hf auth login`, or set HF_TOKEN. What is pushed is what others need: configuration, weights,
tokenizer, modelling code, results.json and README.md with its pictures, in one commit; checkpoints, logs, run.json and
predictions stay here. A file in which a token, a password or a path of a home folder stands is refused. Where the
connection broke, the same command does the rest. The code in README.md names the repository there, and its head the
--license; the file here stays as it is.
"""

from collections.abc import Sequence
from pathlib import Path

from lacuna.common.command_line import exit_cleanly, parse_arguments
from lacuna.common.errors import InputError
from lacuna.common.hub import PushArguments, check_login, push_model


def main(words: Sequence[str] | None = None) -> str:
    """Parse, check, push; returns the folder of the model."""
    (arguments,) = parse_arguments((PushArguments,), words, description=__doc__)
    if not arguments.model or not arguments.to:
        raise InputError("name the folder of a model with --model, and where it goes with --to OWNER/NAME")
    check_login(arguments.to, asked_with="--to")
    how = {name: getattr(arguments, name) for name in ("public", "revision", "license")}
    print(push_model(folder=Path(arguments.model), name=arguments.to, **how))
    return str(arguments.model)


if __name__ == "__main__":
    exit_cleanly(main)
