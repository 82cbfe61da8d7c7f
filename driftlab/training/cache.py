"""The key-value cache of sampling and scoring: what ``transformers`` has, without copying all of it for every token."""

import functools
import inspect
from typing import Any

from torch import Tensor

# Tokens of room that a layer takes at a time: the copy of what it holds is made once in so many tokens.
_ROOM = 64
# Below so many numbers a copy is quicker than reading from memory with gaps.
_SMALL = 2**20


def cache_argument(model: Any) -> str:
    """Return the name under which this version of the library takes the key-value cache."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def new_cache(model: Any) -> Any:
    """Return an empty cache that fits the layers of a model."""
    from transformers import DynamicCache

    return DynamicCache(config=model.config.get_text_config())


def growing_cache(model: Any) -> Any:
    """Return an empty cache whose full-attention layers are written in place; others stay what they are.

    For sampling only: what is written in place cannot be differentiated.
    """
    from transformers.cache_utils import DynamicLayer

    cache = new_cache(model)
    cache.layers = [_growing_layer()() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def repeat_rows(cache: Any, rows: Tensor) -> None:
    """Choose rows of a plain cache, some of them several times; gradients add up (quicker than by indexing)."""
    for layer in cache.layers:
        layer.keys, layer.values = (held.index_select(0, rows) for held in (layer.keys, layer.values))


def is_plain(cache: Any) -> bool:
    """Tell whether all layers only ever concatenate, so that gradients flow through the cache."""
    from transformers.cache_utils import DynamicLayer

    return bool(cache.layers) and all(type(layer) is DynamicLayer for layer in cache.layers)


@functools.cache
def _growing_layer() -> Any:
    """Return the class, made when it is first needed: the library behind it loads slowly."""
    from transformers.cache_utils import DynamicLayer

    class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
        """Keys and values are the first columns of memories with room for more, once they are worth it."""

        memories: tuple[Tensor, ...] = ()

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            if self.keys is None or self.values is None or self.keys.nelement() < _SMALL:
                return super().update(key_states, value_states, *args, **kwargs)
            length, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
            if not self.memories or self.memories[0].shape[-2] < end:
                self.memories = tuple(_with_room(held, end + _ROOM) for held in (self.keys, self.values))
            for memory, states in zip(self.memories, (key_states, value_states), strict=True):
                memory[..., length:end, :] = states
            self.keys, self.values = (memory[..., :end, :] for memory in self.memories)
            return self.keys, self.values

        def batch_repeat_interleave(self, repeats: int) -> None:
            super().batch_repeat_interleave(repeats)
            self.memories = ()

        def batch_select_indices(self, indices: Tensor) -> None:
            super().batch_select_indices(indices)
            self.memories = ()

    return GrowingLayer


def _with_room(held: Tensor, width: int) -> Tensor:
    """Return a tensor of ``width`` columns that begins with those held."""
    memory = held.new_empty(*held.shape[:-2], width, held.shape[-1])
    memory[..., : held.shape[-2], :] = held
    return memory
