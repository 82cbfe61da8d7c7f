"""How far apart the tasks of a study are: the prompts of each, written as data files and measured as any other."""

import json
from dataclasses import replace
from pathlib import Path

from driftlab.domains.encoder import open_encoder
from driftlab.domains.settings import Settings
from driftlab.domains.specs import parse_spec
from driftlab.domains.study import measure_domains
from driftlab.domains.texts import load_domains
from driftlab.files import write_text
from driftlab.results import ResultsDir
from driftlab.study.plan import StudyPlan
from driftlab.training.evaluate import evaluation_questions
from driftlab.training.trainer import all_tasks


def measure_study_domains(plan: StudyPlan, results: ResultsDir, device: str) -> None:
    """Fill the tables of ``driftlab mmd`` and ``mmd.json`` from the prompts of all tasks, table ``mmd`` last."""
    files = _write_prompts(plan, results.path / "domains")
    sets = load_domains([parse_spec(f"{name}={file}::text") for name, file in files.items()])
    encoder = open_encoder(plan.measure.encoder, device=device)
    settings = Settings(permutations=plan.measure.permutations, device=device)
    study = measure_domains(sets, encoder, settings)
    results.write_json("mmd", study.summary)
    for name in reversed(study.tables):
        results.write_table(name, study.tables[name])


def _write_prompts(plan: StudyPlan, folder: Path) -> dict[str, Path]:
    """Write the evaluation prompts of each task, as many as the plan asks for and the task has."""
    folder.mkdir(parents=True, exist_ok=True)
    config = replace(plan.methods[0].config(plan.seeds[0]), eval_samples=plan.measure.domain_texts)
    files = {}
    for task in all_tasks(config):
        prompts = [question.prompt for question in evaluation_questions(task, config)]
        text = "".join(json.dumps({"text": prompt}, ensure_ascii=False) + "\n" for prompt in prompts)
        files[task.name] = write_text(folder / f"{task.name}.jsonl", text)
    return files
