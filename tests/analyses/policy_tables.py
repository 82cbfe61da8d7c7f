"""Small stored tables of a policy study: two methods, one of them of two seeds, two stages."""

import pandas as pd

from driftlab.results import ResultsDir

RUNS = {"grpo": ("grpo", 0, 0.2), "ema": ("sdpo-ema", 0, 1.0), "ema 1": ("sdpo-ema", 1, 1.1)}
STOPS = [("base", "base", 0), ("math@5", "math", 5), ("math@10", "math", 10), ("code@10", "code", 20)]


def keys(run, label, stage, order, step):
    method, seed, _ = RUNS[run]
    return {
        "run": run, "method": method, "seed": seed, "label": label, "stage": stage, "order": order,
        "global_step": step, "status": "ok", "reason": "",
    }  # fmt: skip


def rows():
    for run in RUNS:
        for order, (label, stage, step) in enumerate(STOPS):
            yield run, RUNS[run][2], keys(run, label, stage, order, step)


def policy():
    found = []
    for _, size, key in rows():
        for task in ("math", "code", "all"):
            drift, gain = size * key["global_step"] / 10, 0.02 * key["global_step"]
            found.append(
                key
                | {"task": task, "n": 64, "prompts": 16, "kl_new_to_base": drift, "kl_new_to_base_se": 0.1 * drift}
                | {"kl_base_to_new": 2 * drift, "kl_base_to_new_se": 0.2 * drift, "success": 0.5 + gain}
                | {"success_se": 0.05, "success_base": 0.5, "kl_bernoulli": 0.1, "excess_drift": drift - 0.1}
                | {"excess_drift_low": drift - 0.2, "excess_drift_high": drift}
            )
    return pd.DataFrame(found)


def artifacts():
    found = []
    for _, size, key in rows():
        rate = size * key["global_step"] / 25
        gone = rate > 0.6
        found.append(
            key
            | {"task": "all", "n": 640, "prompts": 160, "artifact_rate": rate, "artifact_rate_low": 0.9 * rate}
            | {"artifact_rate_high": min(1.0, 1.1 * rate), "broken_rate": 0.8 * rate}
            | {"verdict": "collapsed" if gone else "none", "first_label": "code@10" if size >= 1 else ""}
            | {"first_step": 12 if size >= 1 else None}
        )
    return pd.DataFrame(found)


def steps():
    found = []
    for run, (method, seed, size) in RUNS.items():
        for step in range(1, 21):
            distilled = method != "grpo"
            found.append(
                {"run": run, "method": method, "seed": seed, "stage": "math" if step <= 10 else "code"}
                | {"global_step": step, "entropy": 0.2 + 0.01 * step, "completions/mean_length": 20.0 + step}
                | {"repeat_rate": size * step / 25, "js_distilled": 0.1 / step if distilled and step != 15 else None}
            )
    return pd.DataFrame(found)


def forgetting():
    found = []
    for _, size, key in rows():
        for task in ("math", "code", "logic"):
            lost = size * key["global_step"]
            found.append(
                {name: key[name] for name in ("run", "method", "seed", "stage", "label", "order")}
                | {"task": task, "score": 50 - lost / 2, "base": 50.0, "points": -lost / 2, "forgetting": lost}
            )
    return pd.DataFrame(found)


def summary():
    return pd.DataFrame(
        [
            {"run": run, "label": key["label"], "group_by": "model", "measure": name, "mean": 1e-3 * size * factor}
            for run, size, key in rows()
            if key["order"]
            for name, factor in (("rel_frobenius", key["order"]), ("mask_overlap", 1.0))
        ]
    )


TABLES = {
    "policy": policy, "artifacts": artifacts, "steps": steps, "forgetting": forgetting, "spectral_summary": summary,
}  # fmt: skip


def stored(folder, *names, **changed):
    results = ResultsDir.create(folder, command="policy", config={})
    for name in names or TABLES:
        results.write_table(name, changed.get(name, TABLES[name]()))
    return results
