"""``driftlab mmd``: distances between domains."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftlab_cli.options import Csv, Device, Force, Json, Out, Quiet, Resume, Seed
from driftlab_cli.output import Output

if TYPE_CHECKING:
    from driftlab.results import ResultsDir

_SHOWN = ["left", "right", "mmd2_u", "ci_low", "ci_high", "p_value", "p_holm", "null_q95", "mmd", "at_noise_floor"]
_SEEN = ["domain", "n", "truncated_share", "distinct_seen", "duplicates", "empty", "unreadable", "column", "path"]


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
    group_by: Annotated[str, typer.Option(help="Label column (or @window): rows with one label belong together.")] = "",
    encoder: Annotated[
        str, typer.Option(help="Folder of a sentence-transformers model, hf:NAME, or char-ngrams (no model).")
    ] = "char-ngrams",
    prompt: Annotated[str, typer.Option(help="Put before every text.")] = "",
    dtype: Annotated[str, typer.Option(help="Of the encoder: float32, float16, bfloat16.")] = "float32",
    max_tokens: Annotated[int | None, typer.Option(help="Window of the encoder; its own by default.")] = None,
    batch: Annotated[int, typer.Option(help="Texts the encoder takes at once.")] = 32,
    cache: Annotated[Path | None, typer.Option(help="Folder for embeddings; the user's cache by default.")] = None,
    bandwidth: Annotated[str, typer.Option(help="median, a number (gamma), or file:OUT of an earlier run.")] = "median",
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
    """Measure how far apart domains are: MMD with one bandwidth, an interval, a p-value and a noise floor.

    Examples:  driftlab mmd math=math.jsonl science=sci.parquet::question --encoder models/embedder -o out   |
    driftlab mmd Math/AIME=a.jsonl Math/MATH=m.csv GPQA=g.json --limit 2000 -o out   |
    driftlab mmd math=math.npy code=code.npy --bandwidth file:out -o more
    """
    from driftlab.devices import resolve_device
    from driftlab.domains.cache import default_cache
    from driftlab.domains.encoder import open_encoder
    from driftlab.domains.reference import read_heat_map
    from driftlab.domains.settings import Settings
    from driftlab.domains.specs import parse_spec, read_manifest
    from driftlab.domains.study import TABLES, describe, measure_domains
    from driftlab.domains.texts import load_domains
    from driftlab.results import ResultsDir

    say = Output(as_json=as_json, quiet=quiet)
    specs = [*map(parse_spec, domains or []), *(read_manifest(manifest) if manifest else [])]
    wanted = [role.strip() for role in roles.split(",")]
    sets = load_domains(specs, column=column, roles=wanted, limit=limit, group_by=group_by, seed=seed)
    where = str(resolve_device(device))
    engine = None
    if any(one.vectors is None for one in sets):
        engine = open_encoder(encoder, prompt=prompt, dtype=dtype, max_tokens=max_tokens, batch=batch, device=where)
    settings = Settings(bandwidth, permutations, seed, block, precision, where, map_cap, group_by=group_by)
    reference = read_heat_map(compare, [one.name for one in sets]) if compare else None
    config = describe(sets, engine, settings, reference)
    results = ResultsDir.create(
        out, command="mmd", config=config, argv=sys.argv[1:], tables=TABLES, resume=resume, force=force
    )
    if not results.has("mmd"):
        kept = cache or default_cache()
        study = measure_domains(sets, engine, settings, cache=kept, reference=reference, progress=say.progress)
        results.write_json("mmd", study.summary)
        for name in reversed(study.tables):  # "mmd" last: it says that all are there
            results.write_table(name, study.tables[name])
        results.finish(inputs=[one.facts for one in sets])
    if csv:
        for name in filter(results.has, TABLES):
            results.write_csv(name)
    _report(say, results)


def _report(say: Output, results: "ResultsDir") -> None:
    """Print what is stored, so that a run and its ``--resume`` say the same."""
    summary, seen, pairs = results.read_json("mmd"), results.table("mmd_domains"), results.table("mmd")
    for remark in summary["remarks"]:
        say.warn(remark)
    if say.as_json:
        domains = json.loads(seen.to_json(orient="records"))
        say.result(pairs, extra={"out": str(results.path), "domains": domains, "summary": summary})
        return
    say.result(seen[_SEEN], title=f"Encoder: {(summary['encoder'] or {'name': 'given embeddings'})['name']}\n")
    say.result(pairs[_SHOWN], title=f"\nSquared MMD, unbiased; one gamma for all pairs: {summary['gamma']:.6g}\n")
    if "compare" in summary:
        other = summary["compare"]
        print(f"\nAgainst {other['source']}, {other['pairs']} pairs of the same names:")
        print(f"Kendall's tau {other['kendall_tau']}, Spearman's rho {other['spearman_rho']}")
    say.note(f"Tables in {results.path}; driftlab figures {results.path} -o FIGURES draws them")
