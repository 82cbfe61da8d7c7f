"""The callback in a real GRPO run of TRL, whose loggers average and empty their own metrics."""

import math

import pytest

from driftlab.integrations import DriftCallback
from driftlab.results import ResultsDir

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]
PROMPTS = [{"prompt": f"{a} + {b} ="} for a in range(4) for b in range(4)]


def shorter(completions, **_):
    return [-float(len(completion)) for completion in completions]


@pytest.fixture
def grpo(tmp_path, tiny, tokenizer):
    pytest.importorskip("trl")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def make(folder, steps=8):
        arguments = GRPOConfig(
            str(tmp_path / folder),
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            max_steps=steps,
            logging_steps=4,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=6,
            learning_rate=1e-3,
            seed=3,
        )
        return GRPOTrainer(
            tiny(), shorter, args=arguments, train_dataset=Dataset.from_list(PROMPTS), processing_class=tokenizer
        )

    return make


def rewards(trainer):
    names = ("step", "reward", "loss", "completions/mean_length")
    return [[entry[name] for name in names] for entry in trainer.state.log_history if "reward" in entry]


def test_grpo_is_the_same_with_and_without(grpo, tmp_path):
    plain = grpo("plain")
    plain.train()
    watched = grpo("watched")
    probes = {"prompts": ["1 + 2 =", "2 + 3 ="], "probe_tokens": 4}
    DriftCallback(tmp_path / "drift", every=2, max_overhead=math.inf, **probes).attach(watched)
    watched.train()
    assert rewards(plain) == rewards(watched)
    assert len(rewards(plain)) == 2
    entries = [entry for entry in watched.state.log_history if "drift/nss" in entry]
    assert entries[-1]["drift/step"] == 8
    assert entries[-1]["drift/kl"] > 0
    assert all("reward" not in entry for entry in entries)
    table = ResultsDir.open(tmp_path / "drift").table("spectral")
    last = table[table["step"] == 8]
    now = watched.model.state_dict()
    start = grpo("start").model.state_dict()
    for row in last.itertuples():
        ratio = (now[row.matrix] - start[row.matrix]).double().norm() / start[row.matrix].double().norm()
        assert row.rel_frobenius == pytest.approx(float(ratio), rel=1e-6)


def test_a_limit_stops_grpo(grpo, tmp_path):
    trainer = grpo("stopped", steps=500)
    DriftCallback(tmp_path / "drift", every=1, max_overhead=math.inf, stop={"rel_frobenius": 1e-5}).attach(trainer)
    trainer.train()
    assert 1 <= trainer.state.global_step < 500
