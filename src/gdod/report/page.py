"""Write everything into one HTML file that needs no network. All text from run folders is escaped."""

import json
import shlex
from collections.abc import Sequence
from html import escape

from gdod.report import svg
from gdod.report.elements import (
    card,
    counted,
    described_list,
    explanations,
    figure_box,
    short_text,
    table_box,
    whole_page,
)
from gdod.report.explanations import explanation_chapters
from gdod.report.figures import Chapter, calibration_chapter, conflict_chapters, conflict_of, learning_chapters
from gdod.report.numbers import signed, whole, with_spread
from gdod.report.result_tables import method_cell, result_tables, run_table
from gdod.report.runs import RunRecord, part
from gdod.report.study import HIGHER, Setting, Study, as_number, flat
from gdod.report.tables import Cell, Column, TextTable

_STATES = ("failed", "unfinished", "not started")


def page(studies: Sequence[Study], title: str = "gdod report") -> str:
    """Return the page of some studies, whole, with its style and script."""
    many = len(studies) > 1
    body = "".join(_study(study, place, many) for place, study in enumerate(studies))
    names = ", ".join(dict.fromkeys(study.name for study in studies))
    finished = sum(run.status == "finished" for study in studies for run in study.runs)
    runs = sum(len(study.runs) for study in studies)
    text = f"{finished} of {runs} run{'s' if runs != 1 else ''} finished · {_span(studies)}"
    reading = _READING | (_READING_FOLDS if any(study.folds for study in studies) else {})
    return whole_page(title, names, text, _links(studies), f"{body}\n{explanations(reading)}")


def _span(studies: Sequence[Study]) -> str:
    """Return what was varied, in a few words."""
    settings = [setting for study in studies for setting in study.settings if not setting.is_rival]
    rivals = dict.fromkeys(setting.method for study in studies for setting in study.rivals)
    methods = dict.fromkeys(setting.method for setting in settings)
    models = dict.fromkeys(setting.model for setting in settings)
    seeds = {run.seed for study in studies for run in study.runs}
    parts = [counted(len(models), "model"), counted(len(methods), "method"), counted(len(seeds), "seed")]
    parts += [counted(folds, "fold") for folds in dict.fromkeys(study.folds for study in studies) if folds]
    beside = f", beside {counted(len(rivals), 'rival')}" if rivals else ""
    return " × ".join(parts) + beside


def _links(studies: Sequence[Study]) -> str:
    links = []
    for place, study in enumerate(studies):
        before = f"{study.name}: " if len(studies) > 1 else ""
        left_out = set() if _explained(study) else {"explained"}
        for name, title in _SECTIONS.items():
            if name in left_out:
                continue
            links.append(f'<a href="#{name}{place}">{escape(before + title if name == "results" else title)}</a>')
    return "".join([*links, '<a href="#reading">How to read this page</a>'])


_SECTIONS = {
    "results": "Results",
    "curves": "Learning curves",
    "conflict": "Conflict",
    "calibration": "Calibration",
    "explained": "Explanations",
    "how": "What was run",
}


def _study(study: Study, place: int, many: bool) -> str:
    before = f"{study.name}: " if many else ""
    chapters = {
        "curves": {model: learning_chapters(study, model) for model in study.models},
        "conflict": {model: conflict_chapters(study, model) for model in study.models},
        "calibration": {
            model: [chapter] if (chapter := calibration_chapter(study, model)) else [] for model in study.models
        },
    }
    parts = [f'<h2 id="results{place}">{escape(before)}Results</h2>', _cards(study), _notice(study)]
    parts += [table_box(table, pinned=True) for table in result_tables(study)]
    parts.append('<div class="plots">')
    for name, by_model in chapters.items():
        switch = _SWITCH if any(chapter.timed for several in by_model.values() for chapter in several) else ""
        heading = f'<h2 id="{name}{place}">{escape(before)}{_SECTIONS[name]}</h2>'
        parts.append(f'<div class="head">{heading}{switch}</div>')
        shown = {model: several for model, several in by_model.items() if several}
        if not shown:
            parts.append(f'<p class="text">{_ABSENT[name]}</p>')
            continue
        parts.append(_legend(study))
        parts += [_model_plots(model, list(shown), several, name) for model, several in shown.items()]
    parts.append("</div>")
    if explained := _explained(study):
        parts.append(f'<h2 id="explained{place}">{escape(before)}{_SECTIONS["explained"]}</h2>')
        parts += [
            _run_explained(run, chapters, len(explained), at == 0) for at, (run, chapters) in enumerate(explained)
        ]
    parts.append(f'<h2 id="how{place}">{escape(before)}What was run</h2>{_how(study)}')
    return f'<section class="study">{"".join(parts)}</section>'


def _explained(study: Study) -> list[tuple[RunRecord, list[Chapter]]]:
    """Return the runs of which `gdod explain` found something out, and what."""
    return [(run, chapters) for run in study.runs if (chapters := explanation_chapters(run))]


def _run_explained(run: RunRecord, chapters: Sequence[Chapter], runs: int, first: bool) -> str:
    content = "".join(_chapter(chapter, titled=True) for chapter in chapters)
    if runs == 1:
        return f'<p class="text">Of the run {escape(run.name)}, by gdod explain.</p>{content}'
    opened = " open" if first else ""
    return f'<details class="model"{opened}><summary>{escape(run.name)}</summary>{content}</details>'


_ABSENT = {
    "curves": "No evaluation and no training loss was recorded.",
    "conflict": "No cosines were recorded: the runs were made with conflict_every = 0, their methods need none, or "
    "their models share no parameters.",
    "calibration": "No finished run has a binary task with calibration.",
}


def _model_plots(model: str, models: Sequence[str], chapters: Sequence[Chapter], name: str) -> str:
    # The page says "Calibration" once.
    content = "".join(_chapter(chapter, titled=name != "calibration") for chapter in chapters)
    if len(models) == 1:
        return content
    # With many models the page would be endless; printing opens all.
    opened = " open" if len(models) == 2 or model == models[0] else ""
    return f'<details class="model"{opened}><summary>{escape(model)}</summary>{content}</details>'


def _chapter(chapter: Chapter, titled: bool) -> str:
    size = chapter.figures[0].size
    timed = " timed" if chapter.timed else ""
    title = f"<h3>{escape(chapter.title)}</h3>" if titled else ""
    figures = "".join(figure_box(figure) for figure in chapter.figures)
    table = "" if chapter.table is None else table_box(chapter.table, pinned=True)
    return f'{title}<p class="text">{escape(chapter.text)}</p><div class="grid {size}{timed}">{figures}</div>{table}'


def _legend(study: Study) -> str:
    methods = {setting.method: setting.style for setting in study.settings}
    buttons = "".join(
        f'<button type="button" data-series="{style}" aria-pressed="false">{svg.swatch(style)}{escape(method)}</button>'
        for method, style in sorted(methods.items(), key=lambda item: item[1])
    )
    return f'<div class="legend" role="group" aria-label="Single out methods">{buttons}</div>'


_SWITCH = (
    '<span class="switch" role="group" aria-label="Horizontal axis" hidden>'
    '<button type="button" value="steps" aria-pressed="true">by steps</button>'
    '<button type="button" value="time" aria-pressed="false">by time</button></span>'
)


def _cards(study: Study) -> str:
    cards = [best for metric in study.headlines if (best := _best_card(study, metric))]
    if cards:
        cards.append(_against(study))
    if trades := [s.method for s, trade in zip(study.settings, study.trades(), strict=True) if trade is not None]:
        cards.append(
            card("Trades", counted(len(trades), "method"), f"{', '.join(trades)}: better on one task, worse on another")
        )
    if conflict := _conflict_card(study):
        cards.append(conflict)
    finished = sum(run.status == "finished" for run in study.runs)
    rest = [f"{sum(run.status == state for run in study.runs)} {state}" for state in _STATES]
    others = ", ".join(text for text in rest if not text.startswith("0 "))
    cards.append(card("Runs finished", f"{finished} of {len(study.runs)}", others or "none failed, none missing"))
    return f'<div class="cards">{"".join(cards)}</div>'


def _best_card(study: Study, metric: str) -> str | None:
    """Return a card: the best figure of a headline, and whose it is."""
    compared = study.compare(metric)[None]
    known = [(one, s) for one, s in zip(compared, study.settings, strict=True) if one.summary.mean is not None]
    if not known:
        return None
    best, setting = (max if HIGHER[metric] else min)(known, key=lambda item: item[0].summary.mean or 0.0)
    where = f" in {setting.model}" if len(study.models) > 1 else ""
    runs = counted(best.summary.n, "seed" if study.folds is None else "run")
    word = "Highest" if HIGHER[metric] else "Lowest"
    value = with_spread(best.summary.mean, best.summary.sd)
    return card(f"{word} {study.title_of(metric)} ({study.part})", value, f"{setting.method}{where}, {runs}")


def _against(study: Study) -> str:
    """Return a card: how many settings differ from the baseline, and in which direction."""
    metric, _ = study.headline
    tested = [one for one in study.compare(metric)[None] if one.p_holm is not None]
    by = f" in {study.headline_title}" if len(study.headlines) > 1 else ""
    title = f"Differ from {study.baseline}{by}, p < 0.05"
    unit = "seed" if study.folds is None else "fold"
    if not tested:
        return card(title, "not tested", f"a paired test needs two common {unit}s at least")
    clear = [one.difference.mean or 0.0 for one in tested if (one.p_holm or 0) < 0.05 and one.difference]
    better = sum((value > 0) == HIGHER[metric] for value in clear)
    common = max(one.difference.n for one in tested if one.difference)
    text = f"{better} better, {len(clear) - better} worse" if clear else "no difference beyond chance"
    few = "; with so few, only large differences show" if common < 5 and not clear else ""
    return card(title, f"{len(clear)} of {len(tested)}", f"{text} ({counted(common, unit)}{few})")


def _conflict_card(study: Study) -> str | None:
    """Return a card: the pair of tasks that conflicts most under the baseline."""
    names = [name for name, _ in study.tasks]
    order: list[Setting] = sorted(study.settings, key=lambda setting: setting not in study.bases)
    for setting in order:
        matrix = conflict_of(setting, len(names))
        pairs = [
            (value, names[row], names[column])
            for row, values in enumerate(matrix or [])
            for column, value in enumerate(values)
            if column > row and value is not None
        ]
        if pairs:
            lowest, first, second = min(pairs)
            where = f" in {setting.model}" if len(study.models) > 1 else ""
            text = f"mean cosine of {first} and {second}, under {setting.method}{where}"
            return card("Most conflict" if lowest < 0 else "Least agreement", signed(lowest, 3), text)
    return None


def _notice(study: Study) -> str:
    """Return a list of what did not finish, and of damaged files."""
    items = [
        f"<li><strong>{escape(run.name)}</strong> {run.status}: {escape(_sentence(run.reason))}{_reached(run)}</li>"
        for state in _STATES
        for run in study.runs
        if run.status == state
    ]
    items += [
        f"<li><strong>{escape(run.name)}</strong>: {escape('; '.join(run.notes))}.</li>"
        for run in study.runs
        if run.status == "finished" and run.notes
    ]
    items += [
        f"<li><strong>{escape(run.name)}</strong>: {_repetition(run)} of {escape(setting.method)} was run more than "
        "once; the first run counts in the tables.</li>"
        for setting in study.settings
        for run in setting.runs
        if run.result is not None and setting.finished.get(run.repetition) is not run
    ]
    if not items:
        return ""
    listed = f"<ul>{''.join(items)}</ul>"
    if len(items) > 12:
        listed = f"<details><summary>All {len(items)}</summary>{listed}</details>"
    return f'<div class="notice" role="note"><h3>Failed, unfinished or damaged runs</h3>{listed}</div>'


def _repetition(run: RunRecord) -> str:
    seed, fold = run.repetition
    return f"seed {seed}" + ("" if fold is None else f", fold {fold}")


def _sentence(text: str | None) -> str:
    text = (text or "").strip()
    text = text if len(text) <= 600 else text[:600] + " …"
    return text + ("" if text.endswith((".", "…")) or not text else ".")


def _reached(run: RunRecord) -> str:
    return "" if run.last_step is None else f" Last record: step {whole(run.last_step)}."


def _how(study: Study) -> str:
    parts = ['<div class="two">', f"<div><h3>Data</h3>{_data(study)}</div>"]
    parts.append(f"<div><h3>Made with</h3>{_made_with(study)}</div></div>")
    parts.append(_configuration(study))
    parts.append(table_box(run_table(study)))
    parts.append(_commands(study))
    return "".join(parts)


def _data(study: Study) -> str:
    rows = part(study.data, "rows")
    sizes = ", ".join(f"{name} {whole(as_number(size))}" for name, size in rows.items())
    tasks = ", ".join(f"{name} ({kind})" for name, kind in study.tasks)
    examples = "examples" if study.folds is None else "examples of the first fold"
    listed = described_list(
        {
            "name": study.name,
            examples: sizes,
            "tasks": tasks,
            "fingerprint": study.data.get("fingerprint"),
            **_updates(study),
        }
    )
    notes = study.data.get("notes")
    items = "".join(f"<li>{escape(str(note))}</li>" for note in notes) if isinstance(notes, list) else ""
    return listed + (f'<ul class="notes">{items}</ul>' if items else "")


def _updates(study: Study) -> dict[str, str]:
    """Return which runs the runs go on from, and how many rows were seen in all; nothing if they began anew."""
    updates = {run.name: update for run in study.runs if (update := part(run.about, "update"))}
    if not updates:
        return {}
    one = len(updates) == 1
    seen = {name: f"{whole(as_number(update.get('rows_seen')))} rows" for name, update in updates.items()}
    return {
        "goes on from": "; ".join(
            f"{'' if one else f'{name}: '}{update.get('from')} (update {update.get('updates')})"
            for name, update in updates.items()
        ),
        "trained on in all": "; ".join(text if one else f"{name}: {text}" for name, text in seen.items()),
    }


def _made_with(study: Study) -> str:
    """Return versions and machine; where runs differ, all that occur."""
    versions: dict[str, list[str]] = {}
    for run in study.runs:
        told = {**part(run.about, "versions")}
        told |= {name: run.about[name] for name in ("device", "precision", "threads") if name in run.about}
        for name, value in told.items():
            texts = versions.setdefault(str(name), [])
            if str(value) not in texts:
                texts.append(str(value))
    started = sorted(str(run.about["started"]) for run in study.runs if run.about.get("started"))
    if started:
        versions["started"] = [started[0]] if started[0] == started[-1] else [f"{started[0]} to {started[-1]}"]
    sizes = {
        setting.model: as_number(part(run.about, "model").get("parameters"))
        for setting in study.settings
        for run in setting.runs
    }
    known = [f"{model} {whole(size)}" for model, size in sizes.items() if size]
    return described_list(
        {**{name: ", ".join(texts) for name, texts in versions.items()}, "parameters": ", ".join(known)}
    )


def _configuration(study: Study) -> str:
    """Return the settings that all runs share, and a table of those in which they differ."""
    configs = [(setting, flat(run.config)) for setting in study.settings for run in setting.runs if run.config]
    if not configs:
        return ""
    names = list(dict.fromkeys(name for _, config in configs for name in config))
    shared, varied = {}, []
    for name in names:
        values = {json.dumps(config.get(name), default=str, sort_keys=True) for _, config in configs}
        if len(values) == 1:
            shared[name] = configs[0][1].get(name)
        elif name not in ("seed", "data.fold.number", "model.name", "method.name"):
            varied.append(name)
    parts = ["<h3>Configuration</h3>", '<details open><summary>The same in all runs</summary><div class="two">']
    items = list(shared.items())
    half = (len(items) + 1) // 2
    parts += [
        described_list(dict(items[:half]), code=True),
        described_list(dict(items[half:]), code=True),
        "</div></details>",
    ]
    if varied:
        first = dict(reversed(configs))
        columns = [Column(name, numeric=False) for name in ("model", "method", *varied)]
        rows = [
            [
                Cell(setting.model, setting.model),
                method_cell(study, setting),
                *(Cell(short_text(first[setting].get(name)), short_text(first[setting].get(name))) for name in varied),
            ]
            for setting in study.settings
            if setting in first
        ]
        parts.append(table_box(TextTable(columns, rows, "In what they differ")))
    return "".join(parts)


def _commands(study: Study) -> str:
    commands: dict[str, list[str]] = {}
    for run in study.runs:
        command = run.about.get("command")
        if isinstance(command, list) and command:
            commands.setdefault(shlex.join(str(word) for word in command), []).append(run.name)
    if not commands:
        return ""
    blocks = "".join(
        f"<pre>{escape(command)}</pre>" + (f"<p class='caption'>{len(runs)} runs</p>" if len(runs) > 1 else "")
        for command, runs in commands.items()
    )
    opened = " open" if len(commands) <= 2 else ""
    return f"<h3>Commands</h3><details{opened}><summary>{counted(len(commands), 'command')}</summary>{blocks}</details>"


_READING = {
    "±": "Standard deviation over seeds: how much one run may differ from another.",
    "difference": "Seed by seed against the baseline in the same model (of a rival: in the first model), over the "
    "seeds that both finished. In "
    "brackets: the 95 % interval of Student's t for its mean. If it holds 0, the data do not tell which is better. "
    "In the small drawing, strokes are seeds, the disc is the mean, and an arrow means that the interval goes on.",
    "p": "Paired t-test, corrected for the number of comparisons by Holm's method: the chance to see any such "
    "difference in the table if there were none at all.",
    "average rank": "The mean place over all tasks and seeds that every method finished; 1 is best, ties share.",
    "Δm %": "Mean relative gain over single-task models, each task by its main metric; above 0 is better. Shown if "
    "single-task models were run.",
    "trade": "A method that is better than the baseline on one task and worse on another, each with an interval that "
    "does not hold 0. Other task weights do that, too; `gdod front` tells whether a method does more.",
    "rival": "Boosted trees, one model a task, on the same rows in the same parts: early stopping by the same "
    "validation part, and the test part looked at once. Training time is that of all tasks, with making the library's "
    "data sets and without reading the table.",
    "cosine": "Of the angle between the gradients of two tasks over the shared parameters: 1 the same direction, 0 "
    "unrelated, below 0 conflict.",
    "energy kept": "Share of the squared length of the task gradients that the method leaves in the update.",
    "curves": "Mean over seeds, up to the step that all reached. Choose methods in the legend to single them out and "
    "to see their range over seeds. The first evaluations may lie outside the picture. Time is training time, "
    "without evaluation.",
}
_READING_FOLDS = {
    "folds": "The table is cut into folds, as its schema splits it: row by row, or in whole groups. Each run is "
    "trained on all folds but one and tested on that one; its validation part, for early stopping, comes out of the "
    "folds that it is trained on. ± is then the standard deviation over folds (and seeds), differences are taken fold "
    "by fold, means over seeds, and strokes are single runs. Since folds share training rows, intervals and p are "
    "those of the corrected resampled t-test (Nadeau and Bengio, 2003): the variance of the mean over k folds is "
    "1/k + 1/(k - 1) times that of the differences, in place of 1/k.",
}
