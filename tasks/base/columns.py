"""Finding the columns of a table that a task reads: as options name them, else by name, type and content."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lacuna.common.errors import InputError
from lacuna.tasks.base.rows import Row, all_of

SAMPLE = 200
Found = dict[str, Any]  # column of each thing that is read: a name, several names, or None
Free = Callable[[str], list[str]]  # columns that may still be something, by their type


@dataclass(frozen=True, slots=True)
class Column:
    """One thing that a task reads."""

    what: str  # as messages call it
    names: str = ""  # that public data sets give it, best guess first, with blanks between
    kinds: tuple[type, ...] = (object,)  # types of its values
    optional: bool = False
    instead: str = ""  # it is not needed where this one was found, and not guessed where somebody named this one


@dataclass(frozen=True, slots=True)
class Layout:
    """What a task reads of a row: by the option that names its column, such as `text_column`."""

    columns: Mapping[str, Column]
    pairs: str = ""  # names of the first column, each with those that the second has beside it, and commas between
    by_content: Callable[[Sequence[Row], Found, Free], None] = lambda rows, found, free: None
    """Finds what no name tells, by what is in the columns."""

    def find(self, rows: Sequence[Row], **given: Any) -> Found:
        """The columns by their options, None where one was not found; those not given are guessed.

        InputError where one that is given or needed is not there.
        """
        found: Found = {name: given.get(name) for name in self.columns}
        for name, value in found.items():
            for one in names_in(value):
                rows[0].value(one, option=f"--{name}")

        def free(name: str) -> list[str]:
            taken = {one for value in found.values() for one in names_in(value)}
            seen, kinds = rows[:SAMPLE], self.columns[name].kinds
            # Most values are of the type; a row whose value is not is named when it is read.
            fits = {one: sum(isinstance(row.fields.get(one), kinds) for row in seen) for one in rows[0].fields}
            return [one for one, count in fits.items() if one not in taken and 2 * count > len(seen)]

        for name, column in self.columns.items():
            if not found[name] and not given.get(column.instead):
                fitting = free(name)
                found[name] = next((one for one in self._names(name, found, fitting) if one in fitting), None)
        by_name = {**found}
        self.by_content(rows, found, free)
        _check_names(rows, {name: names_in(one) for name, one in found.items() if one and not by_name[name]})
        missing = {
            f"--{name}": column.what
            for name, column in self.columns.items()
            if not (found[name] or column.optional or found.get(column.instead))
        }
        if missing:
            whats, options = all_of([*missing.values()]), all_of([*missing])
            columns, hold, them = ("columns", "hold", "them") if len(missing) > 1 else ("column", "holds", "it")
            there = rows[0].shown(rows[0].fields)
            raise InputError(f"{rows[0].where}: which {columns} of {there} {hold} {whats}? Name {them} with {options}")
        return found

    def only(self, *names: str, **changes: Any) -> "Layout":
        """The layout of some of the columns."""
        return replace(self, columns={name: self.columns[name] for name in names}, **changes)

    def _names(self, name: str, found: Found, fitting: Sequence[str]) -> list[str]:
        """What a column may be called, beside those that were found."""
        first, second, *_ = [*self.columns, ""]
        names = self.columns[name].names.split()
        pairs = {one: others for one, *others in map(str.split, filter(None, self.pairs.split(",")))}
        if name == second:
            return pairs.get(found[first], names)
        if name == first:
            return [*(one for one, others in pairs.items() if found.get(second) or {*others} & {*fitting}), *names]
        return names


def _check_names(rows: Sequence[Row], guessed: Mapping[str, Sequence[str]]) -> None:
    """Refuse a table whose first line is a row: a column that no name told is called as one of its values, or long."""
    columns = [one for names in guessed.values() for one in names]
    again = any(row.fields.get(one) == one for row in rows[:SAMPLE] for one in columns)
    if guessed and rows[0].below_names and (again or rows[0].unnamed(columns)):
        ours = " ".join(f"--{name} {' '.join(map(repr, names))}" for name, names in guessed.items())
        raise InputError(
            f"{rows[0].where}: the first line looks like data and not like names: {[*rows[0].fields]}. Name the "
            f"columns with --column_names; or, if these are their names, say {ours}"
        )


def names_in(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def only_ones(rows: Sequence[Row], found: Found, free: Free) -> None:
    """Of the first two what is missing, where just as many columns are left for it."""
    missing = [name for name in [*found][:2] if found[name] is None]
    left = free(missing[0]) if missing else []
    if len(left) == len(missing):
        found.update(zip(missing, left, strict=True))


TEXT = (str,)
