"""The paper's experiments, and those that ask when GDOD helps: declared, run, and laid beside the printed figures.

`gdod reproduce` is the way in. One way for everything to flow:

    sets -> cases -> runs on disk -> values by seed -> tables, pictures and verdicts -> pages

- `sets`: the four data sets, where their files are, and what the paper leaves open (epochs).
- `cases`: one training: a data set, a model, a method, a few settings.
- `store`: the runs of cases on disk. A finished run is never repeated, and several results share it.
- `printed`: the figures of the paper. `verdicts`: what ours say about them.
- `results`: the paper's tables and figures. `study`: when does it help. `reproduce`: what is run and written.
"""
