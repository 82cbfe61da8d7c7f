"""A causal language model with its tokenizer: loading, rendering prompts, one set of stop tokens, scoring."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from driftlab.errors import CheckpointError, UsageError
from driftlab.training.cache import cache_argument, is_plain, new_cache, repeat_rows
from driftlab.training.distributed import GATHERED_JUDGE, GATHERED_READ, Ranks, whole
from driftlab.training.masks import opens_thought
from driftlab.training.tasks import Question


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt: its text, its ids, and whether it ends inside a think tag."""

    text: str
    ids: list[int]
    in_thought: bool


class Language:
    """A model in float32 master weights, its tokenizer, and how both are used everywhere in training.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model; moved to ``device``, in float32, dropout off.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    device : torch.device
        Where to compute.
    bf16 : bool
        Autocast the transformer blocks to bfloat16; weights, logits and losses stay float32.

    Raises
    ------
    UsageError
        If there is no end-of-sequence token, or if the model's logits are not its output layer applied to its last
        hidden state (soft caps, logit scaling).
    """

    def __init__(self, model: Any, tokenizer: Any, device: torch.device, *, bf16: bool = False) -> None:
        self.model = model.to(device=device, dtype=torch.float32).eval()
        self.tokenizer = tokenizer
        self.device = device
        self.bf16 = bf16
        self.ranks = Ranks()  # the processes that share the weights, where several do
        self.stop_ids = _stop_ids(model, tokenizer)
        self.eos_id: int = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else min(self.stop_ids)
        _no_dropout(self.model)
        self._check_head()
        self.shares = self._reads_once()

    def render(self, question: Question, content: str | None = None) -> Prompt:
        """Render a question (or other user text for it) as the prompt of a generation.

        A tokenizer without chat template gets the plain text and whatever special tokens it adds by itself.
        """
        text = question.prompt if content is None else content
        if self.tokenizer.chat_template is None:
            plain = f"{question.system}\n\n{text}" if question.system else text
            return Prompt(plain, self.tokenizer(plain)["input_ids"], opens_thought(plain))
        system = [{"role": "system", "content": question.system}] if question.system else []
        messages = [*system, {"role": "user", "content": text}]
        rendered = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        # The template has written every special token: adding them again would give two openings.
        return Prompt(rendered, self.encode(rendered), opens_thought(rendered))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without adding special tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens kept."""
        text: str = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return text

    def response_text(self, ids: Sequence[int]) -> str:
        """Return the text of a response without special tokens: what verifiers read."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    @contextmanager
    def precision(self) -> Iterator[None]:
        """Compute the blocks in the precision of this run, whatever the surrounding process has set."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            yield

    def _check_head(self) -> None:
        """Refuse models whose logits need more than the output layer, before anything is trained."""
        ids = torch.arange(3, device=self.device)[None] % self.model.config.get_text_config().vocab_size
        with torch.no_grad():
            expected = self.model(input_ids=ids).logits.float()
            found = head(self.model, read(self.model, input_ids=ids))
        if found.shape != expected.shape or not torch.allclose(found, expected, atol=1e-3, rtol=1e-3):
            raise UsageError(
                f"Model type {self.model.config.model_type!r}: expected logits that are the output layer of the last "
                "hidden state, found something more (a soft cap or a scale).",
                "Such models cannot be trained here yet.",
            )

    def _reads_once(self) -> bool:
        """Tell whether a prompt read once for several responses gives what it gives before each of them.

        Not with sliding windows or recurrent layers, nor where positions count the padding between the two.
        """
        contexts, responses = [[0, 1, 2], [1], [1]], [[2, 0], [0, 2, 1], [1]]
        cache = new_cache(self.model)
        if not is_plain(cache):
            return False
        with torch.no_grad():
            apart = _hidden_apart(self.device, self.model, contexts, responses)
            shared = _hidden_shared(self.device, self.model, cache, contexts, responses)
        return torch.allclose(shared, apart, atol=1e-3, rtol=1e-3)


def load_language(
    path: str | Path, device: torch.device, *, bf16: bool = False, lora_rank: int = 0, checkpointing: bool = False
) -> Language:
    """Load a local Hugging Face folder; nothing is downloaded.

    Raises
    ------
    CheckpointError
        If the folder is missing or holds no model and tokenizer that ``transformers`` can read.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"Model {folder}: expected a local folder with config.json, found none.",
            "Give --model the path of a Hugging Face model folder.",
        )
    try:
        with _silence():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).split("\n")[0]
        raise CheckpointError(f"Model {folder}: expected a causal language model, found: {reason}") from error
    if checkpointing:
        recompute_activations(model)
    if lora_rank:
        model = _with_lora(model, lora_rank)
    return Language(model, tokenizer, device, bf16=bf16)


def save_language(model: Any, tokenizer: Any, folder: Path, dtype: torch.dtype, *, leads: bool = True) -> None:
    """Write a model and its tokenizer as an ordinary Hugging Face folder: adapters merged, tied weights once.

    A sharded model is put together by all processes; only the one that ``leads`` writes.
    """
    weights = {name: whole(value).to(dtype).cpu().contiguous() for name, value in plain_weights(model).items()}
    if not leads:
        return
    with _silence():
        model.save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)
    file = folder / "config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["dtype"] = str(dtype).removeprefix("torch.")
    file.write_text(json.dumps(settings, indent=2), encoding="utf-8")
    for weight_file in folder.glob("*.safetensors"):
        weight_file.chmod(0o644)


def plain_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights under the names of an ordinary model: what an adapter adds is added, ties appear once."""
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    weights: dict[str, Tensor] = {}
    once = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    for name, value in model.state_dict().items():
        if ".lora_" in name or name not in once:
            continue
        owner, based, rest = name.partition(".base_layer.")
        if based and rest == "weight":
            value = value + adapted[owner].get_delta_weight("default")
        weights[f"{owner}.{rest}" if based else name] = value.detach()
    return weights


def recompute_activations(model: Any) -> None:
    """Save memory in training passes; the method got a new name in transformers 5."""
    names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    next(getattr(model, name) for name in names if hasattr(model, name))({"use_reentrant": False})


def backbone(model: Any) -> Any:
    """Return the part of a causal language model below its output layer."""
    return model.get_decoder()


def read(model: Any, **inputs: Any) -> Tensor:
    """Return the last hidden states of a causal language model."""
    gathered = getattr(model, GATHERED_READ, None)  # of a sharded model
    hidden: Tensor = gathered(**inputs) if gathered else backbone(model)(**inputs).last_hidden_state
    return hidden


def head(model: Any, hidden: Tensor) -> Tensor:
    """Return float32 logits of hidden states: the output layer is never left to autocast."""
    judge = getattr(model, GATHERED_JUDGE, None) or model.get_output_embeddings()
    with torch.autocast(hidden.device.type, enabled=False):
        logits: Tensor = judge(hidden.float())
        return logits


def response_hidden(
    language: Language, model: nn.Module, contexts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> Tensor:
    """Return the hidden states that predict each response token, packed row after row.

    A context that several responses follow is read once for all of them, as in sampling: its keys and values are kept,
    and gradients flow through them. It is read with each response where that is not the same, where activations are
    recomputed, and where weights are sharded.

    Parameters
    ----------
    language : Language
        For device and precision.
    model : nn.Module
        The student, or a shadow of it.
    contexts, responses : sequences of ids, one pair a row
        No context and no response is empty.

    Returns
    -------
    Tensor of shape (sum of response lengths, hidden size)
    """
    once = len({tuple(context) for context in contexts}) < len(contexts)
    with language.precision():
        if once and language.shares and not model.training and not language.ranks.sharded:
            return _hidden_shared(language.device, model, new_cache(model), contexts, responses)
        return _hidden_apart(language.device, model, contexts, responses)


def _hidden_apart(
    device: torch.device, model: nn.Module, contexts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> Tensor:
    """Read every context with its response, padded on the right."""
    ids, mask = _right_pad([[*context, *response] for context, response in zip(contexts, responses, strict=True)])
    width = ids.shape[1]
    hidden = read(
        model,
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        position_ids=torch.arange(width, device=device).expand(len(ids), width),
        use_cache=False,
    )
    starts = [row * width + len(context) - 1 for row, context in enumerate(contexts)]
    return _ranges(hidden.flatten(0, 1), starts, [len(response) for response in responses])


def _hidden_shared(
    device: torch.device,
    model: nn.Module,
    cache: Any,
    contexts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
) -> Tensor:
    """Read every distinct context once, then all responses, both padded on the right.

    The padding of a context lies between it and its responses, masked; on the left, its queries would see nothing at
    all, which not every attention kernel differentiates to zero.
    """
    argument = {cache_argument(backbone(model)): cache}
    distinct = list(dict.fromkeys(tuple(context) for context in contexts))
    place = {context: index for index, context in enumerate(distinct)}
    owner = torch.tensor([place[tuple(context)] for context in contexts], device=device)
    ids, mask = (x.to(device) for x in _right_pad(distinct))
    positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
    hidden = read(model, input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **argument)
    ends = mask.sum(1) - 1
    hidden = hidden[torch.arange(len(ids), device=device), ends][:, None].index_select(0, owner)
    width = max(len(response) for response in responses)
    if width > 1:  # the last token of a response predicts nothing
        repeat_rows(cache, owner)
        ids, after = (x.to(device) for x in _right_pad([response[:-1] for response in responses]))
        positions = ends[owner, None] + 1 + torch.arange(width - 1, device=device)
        mask = torch.cat([mask[owner], after], 1)
        follows = read(model, input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **argument)
        hidden = torch.cat([hidden, follows], 1)
    starts = [row * width for row in range(len(responses))]
    return _ranges(hidden.flatten(0, 1), starts, [len(response) for response in responses])


def _ranges(table: Tensor, starts: list[int], lengths: list[int]) -> Tensor:
    """Return the rows ``start, start + 1, ...`` of a table, as many as each length says, one range after the other."""
    rows = [row for start, length in zip(starts, lengths, strict=True) for row in range(start, start + length)]
    return table.index_select(0, torch.tensor(rows, device=table.device))


def _right_pad(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return ids and attention mask of rows that begin together."""
    width = max(len(row) for row in rows)
    return (
        torch.tensor([list(row) + [0] * (width - len(row)) for row in rows]),
        torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
    )


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the one set of ids that ends a response, for sampler, masks and truncation alike."""
    generation = getattr(model, "generation_config", None)
    found = [getattr(generation, "eos_token_id", None), tokenizer.eos_token_id]
    ids = {token for item in found for token in (item if isinstance(item, list) else [item]) if token is not None}
    if not ids:
        raise UsageError(
            "Tokenizer: expected an end-of-sequence token, found none.", "Set eos_token in tokenizer_config.json."
        )
    return frozenset(ids)


def _no_dropout(model: nn.Module) -> None:
    """Make training and scoring the same function: a policy that differs from its sampler is another policy."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def _with_lora(model: Any, rank: int) -> Any:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UsageError("LoRA: expected the package peft, found none.", "pip install 'driftlab[lora]'.") from None
    settings = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0)
    return inject_adapter_in_model(settings, model)


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the progress bars of ``transformers`` off the terminal, and put them back."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
