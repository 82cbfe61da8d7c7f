"""Options that several commands share, each defined once."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("--out", "-o", help="Results folder to write.", show_default=False)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0 or mps.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn at random.", min=0)]
Include = Annotated[
    list[str] | None, typer.Option(help="Only names that match this regular expression.", metavar="REGEX")
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(help="Leave out names that match this regular expression.", metavar="REGEX"),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue in --out, skipping what is done.")]
Force = Annotated[bool, typer.Option("--force", help="Start again in --out, replacing this command's tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no remarks; errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Export the tables as CSV beside the Parquet files.")]

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, globs, checkpoints in order, addresses (s3://...), or hf:org/name@revision. NAME=PATH "
        "names a run; paths of one NAME are its stages.",
        show_default=False,
    ),
]
Base = Annotated[
    Path | None,
    typer.Option(help="Checkpoint the runs started from; by default the run's own base or first checkpoint."),
]
Every = Annotated[int, typer.Option(help="Take every n-th checkpoint, and the last.", min=1)]

Workers = Annotated[
    int | None,
    typer.Option(
        help="Processes that share the work, one GPU each where there are several.", min=1, show_default=False
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="Threads of each worker; default: the cores divided.", min=1, show_default=False),
]
EngineName = Annotated[str, typer.Option("--engine", help="local or ray.")]
Address = Annotated[
    str | None,
    typer.Option(help="Ray cluster, as ray.init takes it; default RAY_ADDRESS, else this machine.", show_default=False),
]
BasisCache = Annotated[
    Path | None,
    typer.Option(help="Folder of the base's decompositions, used and filled: later runs need no new ones."),
]
BasisCacheSize = Annotated[float, typer.Option(help="Its largest size in GB.", min=0)]
Io = Annotated[str, typer.Option(help="read, or mmap: workers on one machine then share what is in memory.")]
Prefetch = Annotated[float, typer.Option(help="GB each worker may read ahead beyond the next tensor.", min=0)]
