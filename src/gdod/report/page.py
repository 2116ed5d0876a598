"""Write everything into one HTML file that needs no network. All text from run folders is escaped."""

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Any

from gdod.report import svg
from gdod.report.figures import Chapter, Figure, calibration_chapter, conflict_chapters, conflict_of, learning_chapters
from gdod.report.numbers import signed, whole, with_spread
from gdod.report.result_tables import method_cell, result_tables, run_table
from gdod.report.runs import RunRecord, part
from gdod.report.study import HIGHER, Setting, Study, as_number, flat
from gdod.report.tables import Cell, Column, TextTable, as_html

_STATES = ("failed", "unfinished", "not started")


def page(studies: Sequence[Study], title: str = "gdod report") -> str:
    """Return the page of some studies, whole, with its style and script."""
    style, script = _file("page.css"), _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only our script may run, and nothing may be loaded, whatever a run folder holds.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    many = len(studies) > 1
    body = "".join(_study(study, place, many) for place, study in enumerate(studies))
    names = ", ".join(dict.fromkeys(study.name for study in studies))
    finished = sum(run.status == "finished" for study in studies for run in study.runs)
    runs = sum(len(study.runs) for study in studies)
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<title>{escape(title)}: {escape(names)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<div class="wrap">
<header class="top"><div><p class="over">gdod report</p><h1>{escape(names)}</h1>
<p>{finished} of {runs} run{"s" if runs != 1 else ""} finished · {escape(_span(studies))}</p></div>
<button class="theme" id="theme" type="button" hidden>Theme: auto</button></header>
<nav aria-label="Sections">{_links(studies)}</nav>
<main id="main">
{body}
{_help()}
</main>
<footer>Written by <code>gdod report</code>, {written}. The page is complete in itself and needs no network.</footer>
</div>
<script>{script}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return files("gdod.report").joinpath(name).read_text(encoding="utf-8")


def _span(studies: Sequence[Study]) -> str:
    """Return what was varied, in a few words."""
    settings = [setting for study in studies for setting in study.settings if not setting.is_rival]
    rivals = dict.fromkeys(setting.method for study in studies for setting in study.rivals)
    methods = dict.fromkeys(setting.method for setting in settings)
    models = dict.fromkeys(setting.model for setting in settings)
    seeds = {run.seed for study in studies for run in study.runs}
    parts = [_counted(len(models), "model"), _counted(len(methods), "method"), _counted(len(seeds), "seed")]
    beside = f", beside {_counted(len(rivals), 'rival')}" if rivals else ""
    return " × ".join(parts) + beside


def _counted(many: int, what: str) -> str:
    return f"{many} {what}{'' if many == 1 else 's'}"


def _links(studies: Sequence[Study]) -> str:
    links = []
    for place, study in enumerate(studies):
        before = f"{study.name}: " if len(studies) > 1 else ""
        for name, title in _SECTIONS.items():
            links.append(f'<a href="#{name}{place}">{escape(before + title if name == "results" else title)}</a>')
    return "".join([*links, '<a href="#reading">How to read this page</a>'])


_SECTIONS = {
    "results": "Results",
    "curves": "Learning curves",
    "conflict": "Conflict",
    "calibration": "Calibration",
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
    parts += [_table(table, pinned=True) for table in result_tables(study)]
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
    parts.append(f'<h2 id="how{place}">{escape(before)}What was run</h2>{_how(study)}')
    return f'<section class="study">{"".join(parts)}</section>'


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
    figures = "".join(_figure(figure) for figure in chapter.figures)
    return f'{title}<p class="text">{escape(chapter.text)}</p><div class="grid {size}{timed}">{figures}</div>'


def _figure(figure: Figure) -> str:
    numbers = as_html(figure.numbers, sortable=False)
    return (
        f"<figure><figcaption>{escape(figure.title)}</figcaption>{''.join(figure.drawings)}"
        f'<details class="figure-data"><summary>Numbers</summary><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(figure.title)}: numbers">{numbers}</div></details></figure>'
    )


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
    cards = [card for metric in study.headlines if (card := _best_card(study, metric))]
    if cards:
        cards.append(_against(study))
    if conflict := _conflict_card(study):
        cards.append(conflict)
    finished = sum(run.status == "finished" for run in study.runs)
    rest = [f"{sum(run.status == state for run in study.runs)} {state}" for state in _STATES]
    others = ", ".join(text for text in rest if not text.startswith("0 "))
    cards.append(_card("Runs finished", f"{finished} of {len(study.runs)}", others or "none failed, none missing"))
    return f'<div class="cards">{"".join(cards)}</div>'


def _best_card(study: Study, metric: str) -> str | None:
    """Return a card: the best figure of a headline, and whose it is."""
    compared = study.compare(metric)[None]
    known = [(one, s) for one, s in zip(compared, study.settings, strict=True) if one.summary.mean is not None]
    if not known:
        return None
    best, setting = (max if HIGHER[metric] else min)(known, key=lambda item: item[0].summary.mean or 0.0)
    where = f" in {setting.model}" if len(study.models) > 1 else ""
    seeds = _counted(best.summary.n, "seed")
    word = "Highest" if HIGHER[metric] else "Lowest"
    value = with_spread(best.summary.mean, best.summary.sd)
    return _card(f"{word} {study.title_of(metric)} ({study.part})", value, f"{setting.method}{where}, {seeds}")


def _card(title: str, big: str, text: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3><div class="big">{escape(big)}</div><p>{escape(text)}</p></div>'


def _against(study: Study) -> str:
    """Return a card: how many settings differ from the baseline, and in which direction."""
    metric, _ = study.headline
    tested = [one for one in study.compare(metric)[None] if one.p_holm is not None]
    by = f" in {study.headline_title}" if len(study.headlines) > 1 else ""
    title = f"Differ from {study.baseline}{by}, p < 0.05"
    if not tested:
        return _card(title, "not tested", "a paired test needs two common seeds at least")
    clear = [one.difference.mean or 0.0 for one in tested if (one.p_holm or 0) < 0.05 and one.difference]
    better = sum((value > 0) == HIGHER[metric] for value in clear)
    seeds = max(one.difference.n for one in tested if one.difference)
    text = f"{better} better, {len(clear) - better} worse" if clear else "no difference beyond chance"
    few = "; with so few, only large differences show" if seeds < 5 and not clear else ""
    return _card(title, f"{len(clear)} of {len(tested)}", f"{text} ({_counted(seeds, 'seed')}{few})")


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
            return _card("Most conflict" if lowest < 0 else "Least agreement", signed(lowest, 3), text)
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
        f"<li><strong>{escape(run.name)}</strong>: seed {run.seed} of {escape(setting.method)} was run more than once; "
        "the first run counts in the tables.</li>"
        for setting in study.settings
        for run in setting.runs
        if run.result is not None and setting.finished.get(run.seed) is not run
    ]
    if not items:
        return ""
    listed = f"<ul>{''.join(items)}</ul>"
    if len(items) > 12:
        listed = f"<details><summary>All {len(items)}</summary>{listed}</details>"
    return f'<div class="notice" role="note"><h3>Failed, unfinished or damaged runs</h3>{listed}</div>'


def _sentence(text: str | None) -> str:
    text = (text or "").strip()
    text = text if len(text) <= 600 else text[:600] + " …"
    return text + ("" if text.endswith((".", "…")) or not text else ".")


def _reached(run: RunRecord) -> str:
    return "" if run.last_step is None else f" Last record: step {whole(run.last_step)}."


def _table(table: TextTable, *, pinned: bool = False) -> str:
    """Return the table below its title, in a box that scrolls sideways; pinned: its first column stays."""
    caption = f'<p class="caption">{escape(table.caption)}</p>' if table.caption else ""
    return (
        f"<h3>{escape(table.title)}</h3>"
        f'<div class="{"scroll pinned" if pinned else "scroll"}" tabindex="0" role="region" '
        f'aria-label="{escape(table.title)}">{as_html(table)}</div>{caption}'
    )


def _how(study: Study) -> str:
    parts = ['<div class="two">', f"<div><h3>Data</h3>{_data(study)}</div>"]
    parts.append(f"<div><h3>Made with</h3>{_made_with(study)}</div></div>")
    parts.append(_configuration(study))
    parts.append(_table(run_table(study)))
    parts.append(_commands(study))
    return "".join(parts)


def _data(study: Study) -> str:
    rows = part(study.data, "rows")
    sizes = ", ".join(f"{name} {whole(as_number(size))}" for name, size in rows.items())
    tasks = ", ".join(f"{name} ({kind})" for name, kind in study.tasks)
    listed = _list(
        {"name": study.name, "examples": sizes, "tasks": tasks, "fingerprint": study.data.get("fingerprint")}
    )
    notes = study.data.get("notes")
    items = "".join(f"<li>{escape(str(note))}</li>" for note in notes) if isinstance(notes, list) else ""
    return listed + (f'<ul class="notes">{items}</ul>' if items else "")


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
    return _list({**{name: ", ".join(texts) for name, texts in versions.items()}, "parameters": ", ".join(known)})


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
        elif name not in ("seed", "model.name", "method.name"):
            varied.append(name)
    parts = ["<h3>Configuration</h3>", '<details open><summary>The same in all runs</summary><div class="two">']
    items = list(shared.items())
    half = (len(items) + 1) // 2
    parts += [_list(dict(items[:half]), code=True), _list(dict(items[half:]), code=True), "</div></details>"]
    if varied:
        first = dict(reversed(configs))
        columns = [Column(name, numeric=False) for name in ("model", "method", *varied)]
        rows = [
            [
                Cell(setting.model, setting.model),
                method_cell(study, setting),
                *(Cell(_short(first[setting].get(name)), _short(first[setting].get(name))) for name in varied),
            ]
            for setting in study.settings
            if setting in first
        ]
        parts.append(_table(TextTable(columns, rows, "In what they differ")))
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
    return (
        f"<h3>Commands</h3><details{opened}><summary>{_counted(len(commands), 'command')}</summary>{blocks}</details>"
    )


def _list(items: Mapping[str, Any], *, code: bool = False) -> str:
    rows = []
    for name, value in items.items():
        if value not in (None, "") or code:
            text = escape(_short(value))
            rows.append(f"<dt>{escape(name)}</dt><dd>{f'<code>{text}</code>' if code else text}</dd>")
    return f"<dl>{''.join(rows)}</dl>"


def _short(value: object) -> str:
    if value is None:
        return "–"
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 400 else text[:400] + " …"


def _help() -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _READING.items())
    return f'<h2 id="reading">How to read this page</h2><dl>{items}</dl>'


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
