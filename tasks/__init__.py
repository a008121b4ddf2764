"""Labelled data to features, metrics and readable predictions: a folder a task, and what all tasks share in `base`.

A task has a `reader` (its options, and rows to what is learned from), a `task` (batches, loss, metrics, what people
are shown) and a `predictor` (answers to new rows), which `predict.inference.PREDICTORS` registers.
"""
