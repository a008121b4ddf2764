"""Labels of new texts."""

import math
from typing import Any

from lacuna.tasks.predict.predictor import PipelinePredictor


class ClassificationPredictor(PipelinePredictor):
    """The label of a text or a pair; where several can hold, these and the probabilities of all; or a number."""

    task, auto_class, takes_pairs = "text-classification", "AutoModelForSequenceClassification", True

    def options(self) -> dict[str, Any]:
        return {**self.cut, "top_k": None}

    def prepare(self) -> None:
        config = self.model.config
        guess = "regression" if config.num_labels == 1 else "single_label_classification"
        # By this the pipeline chooses between softmax, sigmoid and neither.
        config.problem_type = self.settings.get("problem_type") or config.problem_type or guess
        self.problem = config.problem_type
        if self.problem != "regression":
            several = self.problem == "multi_label_classification"
            self.columns = ("prediction", "probability", *(("probabilities",) if several else ()))
        super().prepare()

    def readable(self, given: Any, found: Any) -> dict[str, Any]:
        scores = {each["label"]: each["score"] for each in found}
        if self.problem == "regression":
            numbers = {name: round(score, 6) for name, score in scores.items()}
            return {"prediction": next(iter(numbers.values())) if len(numbers) == 1 else numbers}
        if self.problem != "multi_label_classification":
            return {"prediction": found[0]["label"], "probability": round(found[0]["score"], 6)}
        chances = {name: scores[name] for _, name in sorted(self.model.config.id2label.items())}
        chosen = [name for name, chance in chances.items() if chance > self.settings.get("threshold", 0.5)]
        whole = math.prod(chance if name in chosen else 1 - chance for name, chance in chances.items())
        rounded = {name: round(chance, 6) for name, chance in chances.items()}
        return {"prediction": chosen, "probability": round(whole, 6), "probabilities": rounded}
