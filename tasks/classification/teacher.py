"""Labels for texts that have none: what a classifier and the bag of words of its training rows expect together."""

from collections.abc import Sequence

import numpy as np
import transformers

from lacuna.common.errors import InputError, called, progress_bar
from lacuna.common.loading import load_model
from lacuna.tasks.base.bag_of_words import log_probabilities, tfidf
from lacuna.tasks.base.models import load_base, resolve_max_length

Texts = Sequence[tuple[str, ...]]
TRUST = 3  # in the bag of words: its probabilities are timid, those of a model that learned few rows bold


def label_texts(
    texts: Texts, *, teacher: str, label_names: Sequence[str], labelled: Texts, targets: Sequence[int]
) -> np.ndarray:
    """The label of each text, or pair of texts, as a number: int64 [texts].

    It is the one of the highest product of two probabilities, of the teacher and, to the power of `TRUST`, of logistic
    regression on TF-IDF of the `labelled` texts; they are wrong in different places (Blum and Mitchell, 1998,
    https://doi.org/10.1145/279943.279962). Where there are no words, the teacher decides alone. Raises InputError: the
    teacher cannot be loaded, or is no classifier with these labels.
    """
    with called({"--model": "--teacher"}):
        config, tokenizer = load_base(model=teacher)
        model, report = load_model(teacher, auto_class="AutoModelForSequenceClassification")
    theirs = [str(name) for _, name in sorted(config.id2label.items())]
    if sorted(theirs) != sorted(label_names):
        raise InputError(
            f"--teacher {teacher} has the labels {', '.join(theirs)}, and the training rows have "
            f"{', '.join(label_names)}: name a classifier that was fine-tuned on these rows"
        )
    if report["missing_keys"] or config.problem_type not in (None, "single_label_classification"):
        raise InputError(f"--teacher {teacher} was not fine-tuned to give one label a text: fine-tune it so first")
    length = resolve_max_length(asked=None, default=256, config=config, tokenizer=tokenizer)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
    order = sorted(range(len(texts)), key=lambda number: -sum(map(len, texts[number])))  # of like length together
    given = (dict(zip(("text", "text_pair"), texts[number], strict=False)) for number in order)
    found = pipeline(given, batch_size=32, truncation=True, max_length=length, function_to_apply="softmax")
    scores = np.empty((len(texts), len(label_names)))
    answers = zip(order, found, strict=True)
    for number, answer in progress_bar(answers, doing="labels of --teacher", unit="text", total=len(texts)):
        by_name = {each["label"]: each["score"] for each in answer}
        scores[number] = np.log([max(by_name[name], 1e-9) for name in label_names])
    if (features := tfidf(labelled, texts)) is not None:
        scores += TRUST * log_probabilities(*features, targets=targets, num_labels=len(label_names))
    return scores.argmax(axis=1)
