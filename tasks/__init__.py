"""Tasks to fine-tune on: a folder for each, and what all share in `base` and `predict`.

A task is its options, its reading of rows, batches, loss, metrics and reports, and a predictor of new rows, which
`predict.inference.PREDICTORS` registers. All is in its `task.py`; where that grows too long, `reader.py` has the rows.
"""
