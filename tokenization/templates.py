"""What a tokenizer adds around a text for each shape of model."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from lacuna.common.errors import InputError

# Ids 0 to 4, in this order. [CLS] also begins a document of a decoder and [SEP] ends it.
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

# Around a single text and around a pair; ":1" is the segment. A decoder only gets a beginning: an end would tell a
# prompt that it is over, and in training the objective writes both ends of each document itself. A pair given to a
# decoder is parted by the end of a document. An encoder-decoder reads its source, and learns its target, between
# [CLS] and [SEP]: it starts to write from one and stops at the other.
TEMPLATES = {
    "encoder": ("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"),
    "decoder": ("[CLS]:0 $A:0", "[CLS]:0 $A:0 [SEP]:0 $B:1"),
    "encoder-decoder": ("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"),
}

NO_LIMIT = int(1e30)  # how transformers writes that no model has set a maximum length yet


def adapt_tokenizer(
    *, tokenizer: PreTrainedTokenizerFast, shape: str, segments: bool, max_length: int
) -> PreTrainedTokenizerFast:
    """A copy that adds the special tokens a model of this shape expects; ids of the text itself do not change.

    Args:
        tokenizer: one made by `train_bpe`.
        shape: "encoder" or "encoder-decoder" ("[CLS] A [SEP]", "[CLS] A [SEP] B [SEP]"; pads right), or
            "decoder" ("[CLS] A", "[CLS] A [SEP] B"; pads left, so that generation continues the text).
        segments: whether the model has token_type_ids (1 for B); without, they are not returned.
        max_length: tokens the model can read at once.

    Raises:
        InputError: the shape is unknown, or the tokenizer lacks [CLS] or [SEP].
    """
    if shape not in TEMPLATES:
        raise InputError(f"no template for a model of shape {shape!r}; there are: {', '.join(TEMPLATES)}.")
    single, pair = TEMPLATES[shape]
    if not segments:
        pair = pair.replace(":1", ":0")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    ids = {token: backend.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    missing = [token for token, token_id in ids.items() if token_id is None]
    if missing:
        raise InputError(
            f"the tokenizer has no {' and no '.join(missing)}: it was not made by recipes/train_tokenizer.py. "
            "Models made from other tokenizers keep the template that those came with."
        )
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(ids.items()))
    # Trimmed offsets leave out the space before a word: an answer's first token starts where the answer starts.
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    names = ["input_ids", "token_type_ids", "attention_mask"] if segments else ["input_ids", "attention_mask"]
    side = "left" if shape == "decoder" else "right"
    return wrap(
        backend,
        model_input_names=names,
        model_max_length=max_length,
        padding_side=side,
        extra_special_tokens=list(tokenizer.extra_special_tokens),
    )


def wrap(backend: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    """The tokenizer of transformers around one of `tokenizers` that has the five SPECIAL_TOKENS."""
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    names |= {"bos": "[CLS]", "eos": "[SEP]"}
    tokens: dict[str, Any] = {f"{role}_token": token for role, token in names.items()}
    tokens["mask_token"] = AddedToken("[MASK]", lstrip=True, special=True, normalized=False)
    options = {"model_input_names": ["input_ids", "attention_mask"], **options}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,  # it would take the space out of "a , b" when decoding
        **tokens,
        **options,
    )
