"""Which labels are said to be hardly among the held-out rows; the splits themselves are tested with their tasks."""

from tasks.splits import FEW, scarce_labels


def test_labels_with_few_held_out_rows_are_named_the_rarest_first() -> None:
    train = {"often": 1200, "odd": 12, "rare": 1040, "never learnt": 0, "enough": 9}
    line = scarce_labels(train=train, held_out={"often": 80, "rare": FEW - 1, "enough": FEW})
    assert line == (
        "fewer than 5 rows are held out of 2 of 4 labels, whose own scores say little: odd 0 (12 to learn from), "
        "rare 4 (1,040 to learn from)"
    )
    entities = scarce_labels(train={"place": 7}, held_out={"place": 1, "new": 3}, what="entities")
    assert entities == (
        "fewer than 5 entities are held out of 1 of 1 labels, whose own scores say little: place 1 (7 to learn from)"
    )


def test_nothing_is_said_where_there_is_nothing_to_say() -> None:
    assert scarce_labels(train={"a": 50, "b": 50}, held_out={"a": 5, "b": 6}) is None
    assert scarce_labels(train={}, held_out={}) is None  # numbers
    assert scarce_labels(train={"a": 50}, held_out={"a": 0}) is None  # nothing is held out at all


def test_many_labels_do_not_fill_the_screen() -> None:
    line = scarce_labels(train={f"l{n}": 9 for n in range(90)}, held_out={"l0": 9})
    assert line is not None and line.endswith("l30 0 (9 to learn from) and 59 more") and "of 89 of 90 labels" in line
