"""What `gdod explain` found out about a run, as chapters of its page: columns, experts, conflict by layer.

All of it comes from `explanation.json`. What cannot be read there is left out.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from gdod.report import svg
from gdod.report.figures import Chapter, Figure, in_twos
from gdod.report.numbers import number, short, whole
from gdod.report.runs import Json, RunRecord, part
from gdod.report.study import TITLES, as_number
from gdod.report.tables import Cell, Column, TextTable

_BARS = 15
_NARROW = 8  # columns of a picture beside which another one fits
_PAIRS = 15  # of tasks; of more, each task with all others together


class _Entry(NamedTuple):
    """An entry of a part of the file: its texts and its numbers, in the order in which they were asked for."""

    texts: tuple[str, ...]
    numbers: tuple[float, ...]


def explanation_chapters(run: RunRecord) -> list[Chapter]:
    """Return what is known of a run: the columns that matter, the experts of its tasks, the conflict by layer."""
    parts = {"importance": _columns, "experts": _experts, "conflict": _conflict}
    best = as_number((run.result or {}).get("best_step"))
    chapters = []
    for name, chapter_of in parts.items():
        found = part(run.explanation, name)
        if isinstance(found.get("entries"), list) and (chapter := chapter_of({**found, "best": best})) is not None:
            chapters.append(chapter)
    return chapters


def _entries(found: Json, texts: Sequence[str], numbers: Sequence[str]) -> list[_Entry]:
    """Return the entries that have all of these texts and numbers."""
    entries = []
    for item in found["entries"]:
        if isinstance(item, dict):
            values = [as_number(item.get(name)) for name in numbers]
            known = tuple(value for value in values if value is not None)
            if len(known) == len(numbers) and all(name in item for name in texts):
                entries.append(_Entry(tuple(str(item[name]) for name in texts), known))
    return entries


def _columns(found: Json) -> Chapter | None:
    entries = _entries(found, ("task", "column", "metric"), ("importance", "low", "high", "value"))
    tasks, figures = _each(entry.texts[0] for entry in entries), []
    size = "broad" if in_twos(tasks) else "usual"
    for task in tasks:
        own = [entry for entry in entries if entry.texts[0] == task]
        metric = TITLES.get(own[0].texts[2], own[0].texts[2])
        label = f"{metric} lost" if metric == "AUC" else f"rise of the {metric}"
        shown = own[:_BARS]
        words = "; ".join(f"{entry.texts[1]} {number(entry.numbers[0])}" for entry in shown)
        drawing = svg.bar_chart(
            f"{task}: {label} when a column is shuffled",
            f"{label}, the largest first: {words}.",
            [entry.texts[1] for entry in shown],
            [(mean, low, high) for mean, low, high, _ in (entry.numbers for entry in shown)],
            f"{label} when shuffled",
        )
        rows = [
            (entry.texts[1], number(entry.numbers[0]), f"{number(entry.numbers[1])} to {number(entry.numbers[2])}")
            for entry in own
        ]
        titles = ("column", label, "95 % interval")
        more = f", the first {_BARS} of {len(own)} columns" if len(own) > _BARS else ""
        title = f"{task} ({metric} {number(own[0].numbers[3])}{more})"
        figures.append(Figure(title, (drawing,), TextTable.of_texts(titles, rows), size))
    if not figures:
        return None
    text = (
        "How much worse predictions are when the values of a column are shuffled among the rows, with the 95 % "
        f"interval of the mean over {_counted(found, 'repeats', 'shuffle')}. Around 0 a column does not help. "
        f"{_made_from(found)}"
    )
    return Chapter("Which columns matter", text, tuple(figures))


def _experts(found: Json) -> Chapter | None:
    entries = _entries(found, ("branch", "expert"), ("level", "weight", "deviation"))
    if not entries:
        return None
    levels = _each(entry.numbers[0] for entry in entries)
    figures = [_level(level, [one for one in entries if one.numbers[0] == level], len(levels)) for level in levels]
    members = as_number(found.get("members")) or 1
    of_members = (
        f" The weight of a row is the mean over the ensemble's {whole(members)} members." if members > 1 else ""
    )
    text = (
        "The weight that each task gives to each expert, the mean over the rows. The numbers below each picture have "
        f"their standard deviation over the rows, too: 0 where all rows are treated alike.{of_members} "
        f"{_made_from(found)}"
    )
    return Chapter("Which experts the tasks use", text, tuple(figures))


def _level(level: float, entries: Sequence[_Entry], levels: int) -> Figure:
    branches = _each(entry.texts[0] for entry in entries)
    named = [entry.texts[1] for entry in entries]
    experts = sorted(_each(named), key=named.count)  # those that all branches share last
    weights: dict[tuple[str, ...], float] = {entry.texts: entry.numbers[1] for entry in entries}
    values = [[weights.get((branch, expert)) for expert in experts] for branch in branches]
    most = [
        max((entry for entry in entries if entry.texts[0] == branch), key=lambda one: one.numbers[1])
        for branch in branches
    ]
    words = "; ".join(f"{one.texts[0]} uses {one.texts[1]} most, {number(one.numbers[1], 2)}" for one in most)
    title = "Weights of experts" if levels == 1 else f"Level {whole(level)}"
    top = max(1.0, *(abs(weight) for weight in weights.values()))
    drawing = svg.number_grid(f"{title}: weights of experts", f"{words}.", branches, experts, values, top)
    rows = [(*one.texts, number(one.numbers[1]), number(one.numbers[2])) for one in entries]
    numbers = TextTable.of_texts(("branch", "expert", "mean weight", "deviation over rows"), rows)
    return Figure(title, (drawing,), numbers, "broad" if len(experts) <= _NARROW else "alone")


def _conflict(found: Json) -> Chapter | None:
    measured = ("cosine", "low", "high", "energy_kept", "directions_kept", "parameters")
    entries = _entries(found, ("layer", "task", "other"), measured)
    if not entries:
        return None
    layers = _each(entry.texts[0] for entry in entries)
    pairs = _each(entry.texts[1:] for entry in entries)
    cosines: dict[tuple[str, ...], float] = {entry.texts: entry.numbers[0] for entry in entries}
    if len(pairs) <= _PAIRS:
        columns = [f"{task}, {other}" for task, other in pairs]
        values = [[cosines.get((layer, *pair)) for pair in pairs] for layer in layers]
        title = "Mean cosine between the gradients of two tasks"
    else:
        columns = _each(chain.from_iterable(pairs))
        values = [[_with_others(entries, layer, task) for task in columns] for layer in layers]
        title = "Mean cosine between the gradient of a task and those of the others"
    top = max([0.05, *(abs(value) for line in values for value in line if value is not None)])
    lowest = min(entries, key=lambda entry: entry.numbers[0])
    words = "{}: lowest for {} and {}, {}.".format(*lowest.texts, number(lowest.numbers[0], 2))
    drawing = svg.number_grid(title, words, layers, columns, values, top)
    rows = [
        (*one.texts, number(one.numbers[0]), f"{number(one.numbers[1])} to {number(one.numbers[2])}") for one in entries
    ]
    numbers = TextTable.of_texts(("layer", "task", "task", "mean cosine", "95 % interval"), rows)
    text = (
        "Cosines between the tasks' gradients with respect to the parameters of each shared layer, the mean over "
        f"{_counted(found, 'batches', 'batch')} of {whole(as_number(found.get('batch')))} rows. Orange: conflict; "
        f"blue: agreement; full colour is ±{short(float(f'{top:.2g}'))}. {_made_from(found)}"
    )
    return Chapter(
        "Where the tasks conflict", text, (Figure(title, (drawing,), numbers, "alone"),), table=_kept(entries, layers)
    )


def _kept(entries: Sequence[_Entry], layers: Sequence[str]) -> TextTable:
    """Return what GDOD would keep in each layer, and the pair of tasks that conflicts most there."""
    columns = [Column("layer", numeric=False), Column("parameters"), Column("energy kept"), Column("directions kept")]
    columns += [Column("lowest cosine", "lower: more conflict"), Column("between", numeric=False)]
    rows = []
    for layer in layers:
        one = min((entry for entry in entries if entry.texts[0] == layer), key=lambda entry: entry.numbers[0])
        cosine, _, _, energy, directions, parameters = one.numbers
        cells = [Cell(layer, layer), Cell(whole(parameters), parameters), Cell(number(energy, 3), energy)]
        cells += [Cell(number(directions, 3), directions), Cell(number(cosine, 3), cosine)]
        rows.append([*cells, Cell(f"{one.texts[1]} and {one.texts[2]}", f"{one.texts[1]} and {one.texts[2]}")])
    caption = (
        "Energy kept: the share of the squared lengths of the tasks' gradients in that layer that GDOD (16 groups) "
        "would keep, if the layer alone were shared. Directions kept: the share of the basis vectors on which all "
        "tasks agree."
    )
    return TextTable(columns, rows, "What GDOD would keep, by layer", caption)


def _with_others(entries: Sequence[_Entry], layer: str, task: str) -> float | None:
    own = [entry.numbers[0] for entry in entries if entry.texts[0] == layer and task in entry.texts[1:]]
    return math.fsum(own) / len(own) if own else None


def _made_from(found: Json) -> str:
    rows, table = as_number(found.get("rows")), found.get("table")
    of = f" of {table}" if isinstance(table, str) else ""
    step, best = as_number(found.get("step")), found["best"]
    old = (
        ""
        if best in (None, step)
        else f" The run has trained on since then, and its best weights are those of step {whole(best)}."
    )
    return f"From {whole(rows)} rows{of}.{old}"


def _counted(found: Json, name: str, what: str) -> str:
    many = as_number(found.get(name))
    plural = "es" if what.endswith("ch") else "s"
    return f"{whole(many)} {what}{'' if many == 1 else plural}"


def _each(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
