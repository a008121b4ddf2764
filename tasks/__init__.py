"""Tasks to fine-tune on: a folder for each, and what all share in `base` and `predict`.

A task has a `reader` (its options, and rows to what is learned from) and a `task` (batches, loss, metrics, reports,
and the predictor of new rows), which `predict.inference.PREDICTORS` registers.
"""
