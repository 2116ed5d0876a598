"""The command line as `python -m gdod`, for instance: `torchrun --nproc-per-node 4 -m gdod train ...`."""

from gdod.cli import app

if __name__ == "__main__":
    app(prog_name="gdod")
