"""The words of the tiny world and its tokenizer: one word, one token, so that decoding and encoding are inverse."""

from functools import cache
from typing import Any

DIGITS = [str(digit) for digit in range(10)]
LETTERS = ["a", "b", "c", "d"]
VARIABLES = [f"x{index}" for index in range(10)]
CITIES = [f"t{index}" for index in range(12)]
DAYS = [f"d{index}" for index in range(7)]
TOOLS = {"weather": "get_weather", "hotel": "find_hotel", "train": "find_train", "news": "get_news"}
OPERATIONS = ["reverse", "first", "last", "duplicate", "swap", "rotate"]
TRUTH = ["true", "false"]
COLORS = ["red", "blue", "green", "white", "black", "grey", "pink", "gold"]
HOMES = ["sea", "cave", "desert", "forest", "river", "hill", "swamp", "ice"]
CAPITALS = [f"c{index}" for index in range(12)]
LANDS = [f"n{index}" for index in range(12)]
ENTITIES = "zorp blick mave tarn quil vesk drum lopa fenn gorb isku jept".split()  # noqa: SIM905
OTHER_ENTITIES = "wurl yost plim crad oska nube hask rill sova teff unka brov".split()  # noqa: SIM905
SYMBOLS = [r"\boxed", "{", "}", "Action:", "```", "(", ")", "[", "]", "=", "+", ";", ",", "?", ":"]
GLUE = (  # noqa: SIM905
    "add sum science which color home is has tool city day need use code of order print logic not and or so "
    "then capital the land know hint feedback value"
).split()

PAD, EOS, USER, ASSISTANT, UNKNOWN = "<pad>", "<eos>", "<user>", "<assistant>", "<unk>"
SPECIAL = [PAD, EOS, USER, ASSISTANT, UNKNOWN]
WORDS = [
    *SPECIAL, *DIGITS, *LETTERS, *VARIABLES, *CITIES, *DAYS, *TOOLS, *TOOLS.values(), *OPERATIONS, *TRUTH,
    *COLORS, *HOMES, *CAPITALS, *LANDS, *ENTITIES, *OTHER_ENTITIES, *SYMBOLS, *GLUE,
]  # fmt: skip

# The template writes the whole prompt, one opening mark included; no token is added around it.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'user' %}" + USER + " {{ message.content }} {% else %}"
    "{{ message.content }} {% endif %}{% endfor %}{% if add_generation_prompt %}" + ASSISTANT + "{% endif %}"
)


@cache
def word_ids() -> dict[str, int]:
    """Return the token id of each word.

    Examples
    --------
    >>> word_ids()["<pad>"], word_ids()["<eos>"]
    (0, 1)
    """
    return {word: index for index, word in enumerate(WORDS)}


def build_tokenizer() -> Any:
    """Return the tokenizer as a ``transformers`` object that can be saved as an ordinary tokenizer folder."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(WordLevel(word_ids(), unk_token=UNKNOWN))
    core.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        additional_special_tokens=[USER, ASSISTANT],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
