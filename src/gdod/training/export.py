"""Export a run as a program that runs without this library, with the encoder beside it, checked on real rows."""

import io
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdod._files import check_writable, make_folder, naming, read_json, whole
from gdod.data.parts.part import MemoryPart, Minibatch
from gdod.data.preparing.stored import examples
from gdod.data.tables.files import find_files
from gdod.data.tables.read import columns_of, read_chunks
from gdod.errors import InputError
from gdod.models import Model, export
from gdod.schema import Batch
from gdod.training.calibration import with_all_negatives
from gdod.training.config import IN_MEMORY
from gdod.training.evaluation import Predictions, predict_batches
from gdod.training.predict import as_predicted
from gdod.training.run import Run
from gdod.training.train_run import load_data

ROWS = 1000
"""The most rows that a program is checked with, and the larger of the two numbers of rows that it is timed with."""
# Sums in another order change the last bits of float32, of which there are 24.
_TOLERANCE = 2e-5
_LAST_BITS = 1e-6  # of a float32
_TIMES = {1: 50, ROWS: 9}  # how often rows are predicted for the median of the times

Arrays = dict[str, NDArray[Any]]
Program = Callable[[Batch], Arrays]
"""Gives the predictions of a batch by task."""


@dataclass(frozen=True)
class Exported:
    """What `export_run` wrote, and how it did in the check."""

    files: dict[str, int]
    """The bytes of each file, by its path."""
    rows: int
    """The number of rows that the program was checked with."""
    difference: float
    """The largest difference from a prediction of the run, relative to the largest prediction of the task if that is
    above 1."""
    milliseconds: dict[int, float]
    """The median time for so many rows, by their number."""


def export_run(run: Run, out: Path, *, table: str | Path | None = None, overwrite: bool = False) -> Exported:
    """Write a run's model as one program, and its encoder beside it, after a check against the run on real rows.

    The program takes ids and numbers as the encoder gives them, and gives probabilities (numbers, for a regression) by
    task.

    Args:
        run: the run, on the CPU.
        out: the file of the program; a name that ends in .onnx or .pt2 (of `torch.export`). The encoder goes into files
            beside it, which have its name and end in .encoder.json and, if there are target statistics,
            .statistics.parquet.
        table: a table with rows for the check; None: the data of the run, if it is still there.
        overwrite: whether files that are there are replaced.
    """
    if out.suffix not in _FORMS:
        raise InputError(f"{out} ends in {out.suffix!r}; expected .onnx or .pt2")
    form = _FORMS[out.suffix]
    form.check(run)
    beside = {out.with_suffix(".encoder.json"): _description(run)}
    if run.folder.statistics.exists():
        beside[out.with_suffix(".statistics.parquet")] = run.folder.statistics.read_bytes()
    places = [out, *beside]
    # The encoder of the same run may be there, beside a program of the other form.
    other = [out, *(place for place, content in beside.items() if place.exists() and place.read_bytes() != content)]
    if there := [str(place) for place in other if place.exists() and not overwrite]:
        raise InputError(f"{there[0]} is there already; take another name, or --overwrite")
    check_writable(out.parent)
    rows = _real_rows(run, table)
    if rows.batch.size < 2:
        raise InputError("the check has a single row; expected a table with at least 2, better 1,000: --data TABLE")
    with ExitStack() as written:
        make_folder(out.parent)
        program, *others = (written.enter_context(whole(place)) for place in places)
        # The ending says what it is, also to those who read it again.
        named = written.enter_context(_renamed(program, out.suffix))
        with naming(out):
            form.write(run, rows.batch, named)
        loaded = form.load(run, named)
        difference = _check(run, rows, loaded)
        milliseconds = {size: _time(loaded, _tiled(rows.batch, size), times) for size, times in _TIMES.items()}
        for place, content in zip(others, beside.values(), strict=True):
            place.write_bytes(content)
    return Exported({str(place): place.stat().st_size for place in places}, rows.batch.size, difference, milliseconds)


@contextmanager
def _renamed(path: Path, suffix: str) -> Iterator[Path]:
    """Give a path with this ending, and put what was written there at ``path`` in the end."""
    named = path.with_name(path.name + suffix)
    try:
        yield named
        named.replace(path)
    finally:
        named.unlink(missing_ok=True)


def _description(run: Run) -> bytes:
    """Return the encoder, and in which order the program takes its fields and what it gives, as JSON."""
    schema = run.encoder.model_schema
    sequences = [{"name": field.name, "input": f"sequence_{at}"} for at, field in enumerate(schema.sequences)]
    stored = read_json(run.folder.encoder, "how the run's tables become ids")
    content = {
        **{name: value for name, value in stored.items() if name != "counts"},  # of use to updates alone
        "inputs": {
            "categorical": [field.name for field in schema.categorical],
            "numeric": [field.name for field in schema.numeric],
            "sequences": sequences,
        },
        "outputs": [
            {"name": task.name, "kind": task.kind, "classes": list(run.encoder.classes.get(task.name, ()))}
            for task in run.tasks
        ],
    }
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _real_rows(run: Run, table: str | Path | None) -> Minibatch:
    """Return some rows of a table, or of the data that the run was trained on."""
    if table is not None:
        files, encoder = find_files(table), run.encoder
        there = columns_of(files, encoder.table_schema.file)
        columns = [name for name in encoder.inputs if name in there]
        if not columns:
            raise InputError(f"{table} has none of the columns of the run")
        for chunk in read_chunks(files, encoder.table_schema.file, columns):
            encoded = encoder.encode_frame(chunk.frame[:ROWS], chunk.origin, labels=False)
            return next(MemoryPart(examples(encoded.frame, encoder), tuple(encoder.table_schema.labels)).batches(ROWS))
        raise InputError(f"{table} has no rows")
    hint = "give a table with rows for the check: --data TABLE"
    if run.config.data.source == IN_MEMORY:
        raise InputError(f"the run was trained on a table in memory; {hint}")
    try:
        dataset = load_data(run.config)
    except InputError as error:
        raise InputError(f"the data of the run cannot be read ({error}); {hint}") from error
    known = read_json(run.folder.about, "a description of the run")["data"]["fingerprint"]
    if dataset.fingerprint != known:
        raise InputError(f"the data of the run has changed since it was trained; {hint}")
    part = next(part for part in (dataset.test, dataset.validation, dataset.train) if len(part))
    return next(part.batches(ROWS))


def _check(run: Run, rows: Minibatch, program: Program) -> float:
    """Return the largest difference between the predictions of the program and the run; raise if it is no rounding.

    A calibration may be steep, and makes much of a probability that rounding has moved a little. So the program may say
    what the run would say if rounding had moved its probabilities before they were calibrated.
    """
    model = predict_batches(run.model, [rows], run.device)
    assert model is not None  # nothing stops it
    down, expected, up = (as_predicted(run, _moved(model, by)).predictions for by in (-_TOLERANCE, 0.0, _TOLERANCE))
    largest, rounding = 0.0, True
    # A program may have taken the number of rows for a constant.
    for size in (rows.batch.size, rows.batch.size - 1, 1):
        ours = program(rows.batch.take(slice(size)))
        for task in run.tasks:
            name, shape = task.name, expected[task.name][:size].shape
            if ours[name].shape != shape:
                raise InputError(
                    f"the exported program gives {list(ours[name].shape)} numbers for {name!r}, and the run "
                    f"{list(shape)}; nothing was written"
                )
            values = torch.from_numpy(ours[name]).double()
            scale = max(1.0, float(expected[name][:size].abs().max()))
            largest = max(largest, float((values - expected[name][:size]).abs().max()) / scale)
            ends = torch.stack([down[name][:size], up[name][:size]])  # a calibration may turn the order around
            low, high = ends.amin(0) - _LAST_BITS * scale, ends.amax(0) + _LAST_BITS * scale
            rounding &= bool(((values >= low) & (values <= high)).all())
    if not rounding:
        raise InputError(
            f"the predictions of the exported program differ from those of the run by up to {largest:.2g}, more than "
            f"rounding ({_TOLERANCE:g}) explains; nothing was written. Is it the same version of torch that trained it?"
        )
    return largest


def _moved(predictions: Predictions, by: float) -> Predictions:
    """Return predictions that are all larger by a number, relative to the largest of the task if that is above 1."""
    moved = {name: one + by * max(1.0, float(one.abs().max())) for name, one in predictions.predictions.items()}
    return replace(predictions, predictions=moved)


def _tiled(batch: Batch, rows: int) -> Batch:
    """Return so many rows, from the first on, over and over if there are fewer."""
    return batch.take(torch.arange(rows) % batch.size)


def _time(program: Program, batch: Batch, times: int) -> float:
    program(batch)
    took = []
    for _ in range(times):
        start = time.perf_counter()
        program(batch)
        took.append(time.perf_counter() - start)
    return 1e3 * median(took)


class _Predicting(nn.Module):
    """A run's model that gives probabilities in place of logits, as `gdod predict` does."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.model, self.tasks = run.model, run.model.tasks
        self.corrections = (run.calibrators, with_all_negatives(run.config.negatives_kept or {}))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.model(batch)
        # In float64, as the run does it: points of a calibration may lie closer to each other than float32 can tell.
        predictions = {task.name: _LAST[task.kind](logits[task.name].double()) for task in self.tasks}
        for correction in self.corrections:
            predictions |= {task: correct(predictions[task]) for task, correct in correction.items()}
        return {name: one.float() for name, one in predictions.items()}


_LAST: Mapping[str, Callable[[Tensor], Tensor]] = {
    "binary": torch.sigmoid,
    "regression": lambda logit: logit,
    "multiclass": lambda logit: logit.softmax(1),
}


def _exported(run: Run, batch: Batch) -> torch.export.ExportedProgram:
    # All that it needs of a model is what any module has.
    return export(cast("Model", _Predicting(run)), batch)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging that packages are not there which nothing here needs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _TorchExport:
    """A program of `torch.export`, which torch runs, also without Python (AOTInductor, ExecuTorch)."""

    def check(self, run: Run) -> None:
        """Nothing but torch is needed."""

    def write(self, run: Run, batch: Batch, path: Path) -> None:
        content = io.BytesIO()  # a disk that is full makes torch end the whole process
        torch.export.save(_exported(run, batch), content)
        path.write_bytes(content.getbuffer())

    def load(self, run: Run, path: Path) -> Program:
        module = torch.export.load(path).module()

        def predict(batch: Batch) -> Arrays:
            with torch.inference_mode():
                return {name: values.numpy() for name, values in module(*batch).items()}

        return predict


def _input_names(sequences: int) -> list[str]:
    return ["categorical", "numeric", *(f"sequence_{at}" for at in range(sequences))]


def _name_apart(graph: Any) -> None:
    """Give values inside an ONNX graph other names if an output has theirs, such as a task that is called "view"."""
    taken = {value.name for value in graph.outputs}
    outputs = {id(value) for value in graph.outputs}
    values = [*graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    inner = [value for value in values if id(value) not in outputs]
    for value in [value for value in inner if value.name in taken]:
        names = taken | {value.name for value in inner}
        value.name = next(name for at in count() if (name := f"{value.name}_{at}") not in names)


class _Onnx:
    """A program in ONNX, run by onnxruntime. Inputs and outputs have names."""

    def check(self, run: Run) -> None:
        inputs = _input_names(len(run.encoder.model_schema.sequences))
        if taken := [task.name for task in run.tasks if task.name in inputs]:
            raise InputError(
                f"the task {taken[0]!r} has the name of an input, and in ONNX inputs and outputs need names of their "
                "own; export to .pt2, or train with another name of the column"
            )
        try:
            import onnxruntime  # type: ignore[import-untyped]  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"an export to ONNX needs {error.name}, which is not installed. Install it with: "
                "pip install 'gdod[onnx]'"
            ) from error

    def write(self, run: Run, batch: Batch, path: Path) -> None:
        names = _input_names(len(batch.sequences))
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")  # torch warns of its own code
            program = torch.onnx.export(
                _exported(run, batch), input_names=names, output_names=[task.name for task in run.tasks], verbose=False
            )
            assert program is not None
            _name_apart(program.model.graph)
            program.save(path, external_data=False)

    def load(self, run: Run, path: Path) -> Program:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        taken = {one.name for one in session.get_inputs()}
        tasks = [task.name for task in run.tasks]

        def predict(batch: Batch) -> Arrays:
            values = {"categorical": batch.categorical, "numeric": batch.numeric}
            values |= {f"sequence_{at}": ids for at, ids in enumerate(batch.sequences)}
            given = {name: one.numpy() for name, one in values.items() if name in taken}
            return dict(zip(tasks, session.run(tasks, given), strict=True))

        return predict


_FORMS: dict[str, _TorchExport | _Onnx] = {".onnx": _Onnx(), ".pt2": _TorchExport()}
