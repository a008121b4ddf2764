"""Groups are held out whole; and which labels are said to be hardly among the held-out rows."""

from lacuna.tasks.base.rows import FEW, scarce_labels, split_groups


def test_groups_are_held_out_whole() -> None:
    groups = [context for context in "abcdefghij" for _ in range(3)]
    train, held_out = split_groups(groups=groups, fraction=0.2, seed=1)
    assert len(held_out) == 6 and sorted(train + held_out) == list(range(30))
    assert not {groups[i] for i in train} & {groups[i] for i in held_out}
    assert split_groups(groups=groups, fraction=0.2, seed=1) == (train, held_out)
    kept, out = split_groups(groups=["a"] * 4, fraction=0.25, seed=1)  # of one group single rows
    assert (len(kept), len(out)) == (3, 1)


def test_labels_with_few_held_out_rows_are_named_the_rarest_first() -> None:
    train = {"often": 1200, "odd": 12, "rare": 1040, "never learnt": 0, "enough": 9}
    (line,) = scarce_labels(train=train, held_out={"often": 80, "rare": FEW - 1, "enough": FEW})
    assert line == (
        "fewer than 5 rows are held out of 2 of 4 labels, whose own scores say little: odd 0 (12 in training), "
        "rare 4 (1,040 in training)"
    )
    (entities,) = scarce_labels(train={"place": 7}, held_out={"place": 1, "new": 3}, what="entities")
    assert entities == (
        "fewer than 5 entities are held out of 1 of 1 labels, whose own scores say little: place 1 (7 in training)"
    )


def test_nothing_is_said_where_there_is_nothing_to_say() -> None:
    assert scarce_labels(train={"a": 50, "b": 50}, held_out={"a": 5, "b": 6}) == []
    assert scarce_labels(train={}, held_out={}) == []  # numbers
    assert scarce_labels(train={"a": 50}, held_out={"a": 0}) == []  # nothing is held out at all


def test_many_labels_do_not_fill_the_screen() -> None:
    (line,) = scarce_labels(train={f"l{n}": 9 for n in range(90)}, held_out={"l0": 9})
    assert line.endswith("l30 0 (9 in training) and 59 more") and "of 89 of 90 labels" in line
