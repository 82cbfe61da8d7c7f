"""``driftlab mmd``: distances between domains."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from driftlab_cli.options import Csv, Device, Force, Json, Out, Quiet, Resume, Seed
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from driftlab.results import ResultsDir

_EPILOG = """
Examples:

driftlab mmd math=math.jsonl science=science.parquet::question tools=tools/::test -o out

driftlab mmd Math/Math500=m.jsonl Math/AIME=a.jsonl GPQA=g.csv --encoder models/embedder -o out

driftlab mmd math=math.npy code=code.npy --bandwidth file:out -o more
"""

_SHOWN = ["left", "right", "mmd2_u", "ci_low", "ci_high", "p_value", "p_holm", "null_q95", "mmd", "at_noise_floor"]
_SEEN = ["domain", "n", "truncated_share", "duplicates", "empty", "unreadable", "column", "path"]


def mmd(
    out: Out,
    domains: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GROUP/]NAME=PATH[::split][::column]...", help="Texts, or embeddings (.npy, .npz)."),
    ] = None,
    manifest: Annotated[Path | None, typer.Option(help="TOML or JSON file with tables [domains.NAME].")] = None,
    column: Annotated[str, typer.Option(help="Column of the texts where none is named; guessed by default.")] = "",
    roles: Annotated[str, typer.Option(help="Whose turns of a chat are read, by commas.")] = "user",
    limit: Annotated[int | None, typer.Option(help="At most so many texts a domain, drawn at random.")] = None,
    group_by: Annotated[str, typer.Option(help="Column of a label: rows with the same one belong together.")] = "",
    encoder: Annotated[
        str, typer.Option(help="Folder of a sentence-transformers model, hf:NAME, or char-ngrams (no model).")
    ] = "char-ngrams",
    prompt: Annotated[str, typer.Option(help="Put before every text.")] = "",
    dtype: Annotated[str, typer.Option(help="Of the encoder: float32, float16, bfloat16.")] = "float32",
    max_tokens: Annotated[int | None, typer.Option(help="Window of the encoder; its own by default.")] = None,
    batch: Annotated[int, typer.Option(help="Texts the encoder takes at once.")] = 32,
    cache: Annotated[Path | None, typer.Option(help="Folder for embeddings; the user's cache by default.")] = None,
    bandwidth: Annotated[str, typer.Option(help="median, a number (gamma), or file:PATH of an earlier run.")] = "median",
    permutations: Annotated[int, typer.Option(help="Relabellings of each pair; 0 for no p-values.", min=0)] = 1999,
    block: Annotated[int, typer.Option(help="Rows of a tile: bounds the memory, not the result.", min=1)] = 1024,
    precision: Annotated[str, typer.Option(help="Arithmetic of the products: float32 or float64.")] = "float32",
    map_cap: Annotated[int, typer.Option(help="Texts of each domain on the map.", min=2)] = 300,
    compare: Annotated[Path | None, typer.Option(help="Another heat map (JSON, or a results folder).")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    resume: Resume = False,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
    csv: Csv = False,
) -> None:
    """Measure how far apart domains are: MMD with one bandwidth, an interval and a noise floor."""
    from driftlab.devices import resolve_device
    from driftlab.domains.cache import default_cache
    from driftlab.domains.encoder import open_encoder
    from driftlab.domains.reference import read_heat_map
    from driftlab.domains.study import TABLES, Settings, measure_domains
    from driftlab.domains.texts import load_domains, parse_spec, read_manifest
    from driftlab.results import ResultsDir

    output = Output(as_json=as_json, quiet=quiet)
    specs = [*map(parse_spec, domains or []), *(read_manifest(manifest) if manifest else [])]
    wanted = [role.strip() for role in roles.split(",")]
    sets = load_domains(specs, column=column, roles=wanted, limit=limit, group_by=group_by, seed=seed)
    where = str(resolve_device(device))
    texts = any(domain.vectors is None for domain in sets)
    options: dict[str, Any] = {"prompt": prompt, "dtype": dtype, "max_tokens": max_tokens, "batch": batch}
    engine = open_encoder(encoder, device=where, **options) if texts else None
    settings = Settings(bandwidth, permutations, seed, block, precision, where, map_cap)
    reference = read_heat_map(compare) if compare else None
    config = {
        "domains": [{"name": d.name, "group": d.group, "content": d.digest()} for d in sets],
        "encoder": engine.key if engine else "given embeddings",
        "settings": vars(settings) | {"device": where.split(":")[0]},
        "compare": str(compare or ""),
    }
    results = ResultsDir.create(
        out, command="mmd", config=config, argv=sys.argv[1:], tables=TABLES, resume=resume, force=force
    )
    if not results.has("mmd"):
        folder = cache or default_cache()
        study = measure_domains(sets, engine, settings, cache=folder, reference=reference, progress=output.progress)
        results.write_json("mmd", study.summary)
        for name in reversed(TABLES):
            if name in study.tables:
                results.write_table(name, study.tables[name])
        results.finish(inputs=[domain.facts for domain in sets])
    _report(output, results, TABLES if csv else ())


def _report(output: Output, results: "ResultsDir", exported: "Sequence[str]") -> None:
    """Print the stored result: the same after a run and after ``--resume``."""
    summary = results.json("mmd")
    for name in exported:
        if results.has(name):
            results.write_csv(name)
    for remark in summary["remarks"]:
        output.warn(remark)
    seen, pairs = results.table("mmd_domains"), results.table("mmd")
    if output.as_json:
        output.result(pairs, extra={"summary": summary, "domains": seen.astype(object).to_dict("records")})
        return
    name = (summary["encoder"] or {"name": "given embeddings"})["name"]
    output.result(seen[_SEEN], title=f"Encoder: {name}")
    output.result(pairs[_SHOWN], title=f"\nSquared MMD, unbiased; one gamma = {summary['gamma']:.6g} for all pairs")
    if "compare" in summary:
        other = summary["compare"]
        print(
            f"\nAgainst {other['source']}: Kendall's tau {other['kendall_tau']:.2f}, Spearman's rho "
            f"{other['spearman_rho']:.2f} over {other['pairs']} pairs of the same name"
        )
    output.note(f"Tables in {results.path}; draw them with: driftlab figures {results.path} -o FIGURES")
