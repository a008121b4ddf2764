"""What happens in a language model that reads a text: in numbers, and as the page and the pictures of them.

Surprisal is -log2 p in bits (Shannon 1948). Attention weights, predictions and hidden states are those that the model
itself returns; only the page rounds them.
"""

import html
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import style
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F
from transformers.convert_slow_tokenizer import bytes_to_unicode

from lacuna.common.errors import InputError, NumericsError
from lacuna.common.files import replacing

from .language_model import LanguageModel, logits_at

MOST_TOKENS = 128  # a matrix of more could not be read, nor a page of it opened quickly
ALTERNATIVES, NEIGHBOURS = 6, 5
ROWS_AT_ONCE = 32
CHARACTERS = 90  # in a line of the picture of tokens
TEN_THOUSANDTHS = 10_000  # the page has attention weights as whole numbers of them
BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}  # of byte-level tokenizers
ALONE = {"self": ("Self-attention", "attentions", 0, 0)}  # title, name in the output, sides of rows and of columns
PAIR = {
    "encoder": ("The encoder reads itself", "encoder_attentions", 0, 0),
    "cross": ("The decoder reads the encoder", "cross_attentions", 1, 0),
    "decoder": ("The decoder reads itself", "decoder_attentions", 1, 1),
}


@dataclass(frozen=True)
class Side:
    """Tokens that a model reads, and its hidden states of them in words."""

    name: str
    ids: list[int]
    tokens: list[str]
    special: list[bool]  # not from the text
    continues: list[bool]  # goes on with the word of the token before it
    neighbours: list[list[list[tuple[str, float]]]]  # [states, tokens, NEIGHBOURS]: token and cosine; or empty


@dataclass(frozen=True)
class Attention:
    """Weights of one kind of attention: rows are the tokens that read, columns those that are seen."""

    kind: str
    title: str
    rows: int  # numbers of the sides
    columns: int
    layers: list[int]  # numbers of the layers that have such weights, from 1
    weights: np.ndarray  # float32 [layers, heads, rows, columns]


@dataclass(frozen=True)
class Prediction:
    """What a model expects in one place of a text, where it does not see what stands there."""

    token: str | None  # what stands there; None behind the end
    bits: float | None  # surprisal of it
    rank: int | None  # of it among all tokens, from 1
    likeliest: list[tuple[str, float]]  # tokens and probabilities, the likeliest first


@dataclass(frozen=True)
class Inspection:
    """All that is shown of a text."""

    text: str
    sides: list[Side]
    attention: list[Attention]
    predictions: list[Prediction]


@torch.no_grad()
def inspect_text(*, language_model: LanguageModel, text: str, where: str = "the text") -> Inspection:
    """Let a model read a text, and note what it sees, expects and makes of each token.

    A masked model predicts each token where that is hidden, one at a time; a causal one from what stands before it. An
    encoder reads the whole text for a decoder, which then predicts the same text from left to right. Raises
    InputError: the text, which `where` names, is empty or too long, or there are no weights; NumericsError: what is
    not a number.
    """
    ids, characters = language_model.encode(text, where=where)
    if not text.strip() or not len(ids):
        raise InputError(f"{where} is empty: give a sentence")
    read = [*language_model.prefix, *ids.tolist(), *language_model.suffix]
    limit = language_model.max_length or MOST_TOKENS
    if len(read) > min(limit, MOST_TOKENS):
        who = "the model takes" if limit <= MOST_TOKENS else "a picture can show"
        raise InputError(f"{where} has {len(read)} tokens, and {who} at most {min(limit, MOST_TOKENS)}: shorten it")
    model, tokenizer, first = language_model.model, language_model.tokenizer, len(language_model.prefix)
    inputs = {"input_ids": torch.tensor([read], device=model.device)}
    rows, kinds, truths = {"": (read, first)}, ALONE, [*read[1:], None]
    if language_model.kind == "encoder-decoder":
        if (start := getattr(model.config, "decoder_start_token_id", None)) is None:
            raise InputError(f"the configuration of this {type(model).__name__} has no decoder_start_token_id: set it")
        truths = read[1:] if read[0] == start else read
        written = [start, *truths[:-1]]  # that which ends it is not read again
        inputs["decoder_input_ids"] = torch.tensor([written], device=model.device)
        rows, kinds = {"encoder": (read, first), "decoder": (written, first + 1 + len(truths) - len(read))}, PAIR
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    table, inner, sides = model.get_input_embeddings().weight[: len(tokenizer)], _continues(text, characters), []
    for name, (row, begin) in rows.items():
        inside = [0 <= place - begin < len(ids) for place in range(len(row))]
        goes_on = [is_text and inner[place - begin] for place, is_text in enumerate(inside)]
        states = output[f"{name}_hidden_states".removeprefix("_")]
        near = nearest_tokens(states=states, embeddings=table, tokenizer=tokenizer)
        shown, special = [shown_token(tokenizer, each) for each in row], [not is_text for is_text in inside]
        sides.append(Side(name, row, shown, special, goes_on, near))
    if language_model.kind == "masked":
        predictions = predict_masked(language_model=language_model, read=read, places=range(first, first + len(ids)))
    else:
        predictions = describe_predictions(logits=output.logits[0], truths=truths, tokenizer=tokenizer)
    return Inspection(text, sides, [_attention(output, sides, kind) for kind in kinds], predictions)


def _attention(output: Any, sides: list[Side], kind: str) -> Attention:
    title, key, rows, columns = {**ALONE, **PAIR}[kind]
    shape, layers = (len(sides[rows].ids), len(sides[columns].ids)), enumerate(output.get(key) or (), start=1)
    kept = {number: layer[0] for number, layer in layers if layer is not None and layer.shape[2:] == shape}
    if not kept:
        raise InputError("the model returns no attention weights of tokens for tokens: look into another with --model")
    return Attention(kind, title, rows, columns, list(kept), torch.stack(list(kept.values())).float().cpu().numpy())


def _continues(text: str, characters: np.ndarray) -> list[bool]:
    """Whether each token begins inside a word, from where it stands [tokens, 2], or [tokens, 0] where nobody knows."""
    if not characters.size:
        return [False] * len(characters)
    inner, end = [], 0
    for start, stop in characters.tolist():
        around = text[max(0, start - 1) : start + 1]
        inner.append(start < end or (len(around) == 2 and around.isalnum()))
        end = stop
    return inner


def shown_token(tokenizer: Any, token: int) -> str:
    """A token as text, with the space before it; bytes that are only a part of a character as in "\\xe2"."""
    name = tokenizer.convert_ids_to_tokens(token)
    if name is None:  # rows of a model beyond its tokenizer
        return f"<{token}>"
    if name.startswith("\u2581"):  # SentencePiece's space, which decoding one token loses
        return name.replace("\u2581", " ")
    text = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    if text and "\ufffd" not in text:
        return text
    return bytes(BYTES[each] for each in name).decode(errors="backslashreplace") if set(name) <= set(BYTES) else name


def describe_predictions(*, logits: Tensor, truths: Sequence[int | None], tokenizer: Any) -> list[Prediction]:
    """What rows of logits [places, vocabulary] expect, and what they think of the tokens that stand there."""
    chances = logits.cpu().double().log_softmax(dim=-1)
    top = chances.exp().topk(min(ALTERNATIVES, chances.shape[-1]), dim=-1)
    found = []
    for row, truth, *best in zip(chances, truths, top.indices.tolist(), top.values.tolist(), strict=True):
        likeliest = [(shown_token(tokenizer, token), chance) for token, chance in zip(*best, strict=True)]
        if truth is None:
            found.append(Prediction(None, None, None, likeliest))
            continue
        bits, rank = -float(row[truth]) / np.log(2), int((row > row[truth]).sum()) + 1
        if not np.isfinite(bits):
            raise NumericsError("the model gives likelihoods that are not finite numbers: its weights are damaged")
        found.append(Prediction(shown_token(tokenizer, truth), bits, rank, likeliest))
    return found


def predict_masked(*, language_model: LanguageModel, read: Sequence[int], places: Sequence[int]) -> list[Prediction]:
    """What a masked model expects at `places` of `read`, each hidden in a copy of its own."""
    model = language_model.model
    copies = torch.tensor(read, device=model.device).repeat(len(places), 1)
    at = torch.tensor(places, device=model.device)
    copies[torch.arange(len(places), device=model.device), at] = language_model.tokenizer.mask_token_id
    logits = []
    for batch, positions in zip(copies.split(ROWS_AT_ONCE), at.split(ROWS_AT_ONCE), strict=True):
        inputs = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
        rows = torch.arange(len(batch), device=model.device)
        logits.append(logits_at(model, inputs, rows=rows, positions=positions))
    truths = [read[place] for place in places]
    return describe_predictions(logits=torch.cat(logits), truths=truths, tokenizer=language_model.tokenizer)


def nearest_tokens(
    *, states: Sequence[Tensor], embeddings: Tensor, tokenizer: Any
) -> list[list[list[tuple[str, float]]]]:
    """The tokens whose input embeddings [vocabulary, size] have the highest cosine with states [1, tokens, size].

    Nothing where states and embeddings are not of one size, as in models that factorise their embeddings.
    """
    table = F.normalize(embeddings.float(), dim=-1)
    if any(state.shape[-1] != table.shape[-1] for state in states):
        return []
    found = []
    for state in states:
        top = (F.normalize(state[0].float(), dim=-1) @ table.T).topk(min(NEIGHBOURS, len(table)), dim=-1)
        both = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        found.append([[(shown_token(tokenizer, i), c) for i, c in zip(*row, strict=True)] for row in both])
    return found


def align(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """Places of two rows of tokens that belong together: equal stretches, and replaced ones of the same length."""
    pairs: list[tuple[int, int]] = []
    for _, a, a_end, b, b_end in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if a_end - a == b_end - b:
            pairs += zip(range(a, a_end), range(b, b_end), strict=True)
    return pairs


def render_page(*, inspections: Sequence[Inspection], about: dict[str, Any]) -> str:
    """One HTML page without files or a network; `about` has `model`, `head`, `kind`, `facts` and `made_with`."""
    texts = []
    for inspection in inspections:
        both = zip(inspections[0].sides, inspection.sides, strict=True)
        texts.append(asdict(inspection) | {"aligned": [align(one.ids, other.ids) for one, other in both]})
    whole = json.dumps(
        {**about, "texts": texts}, default=lambda weights: np.rint(weights * TEN_THOUSANDTHS).astype(int).tolist()
    )
    short = json.loads(whole, parse_float=lambda number: round(float(number), 4))
    # No "<" may stand in the data: it would end the script that holds it, or open a comment in it.
    data = json.dumps(short, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"TITLE": html.escape(str(about["model"])), "DATA": data}
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return re.sub("__(TITLE|DATA)__", lambda found: parts[found[1]], template)


def compare(it: Inspection, number: int, against: Inspection) -> tuple[np.ndarray, list[str], list[str]]:
    """How attention of a kind differs from that in another text, for tokens that belong together, and their labels."""
    sides = [
        (against.sides[side], it.sides[side]) for side in (it.attention[number].rows, it.attention[number].columns)
    ]
    (i, j), (k, m) = (np.array(align(a.ids, b.ids), dtype=int).reshape(-1, 2).T for a, b in sides)
    before, after = (each.attention[number].weights for each in (against, it))
    names = [[{_label(a.tokens[x]): 0, _label(b.tokens[y]): 0} for x, y in align(a.ids, b.ids)] for a, b in sides]
    rows, columns = (["|".join(both) for both in some] for some in names)
    return after[:, :, j][..., m] - before[:, :, i][..., k], rows, columns


def draw_attention(*, inspection: Inspection, number: int, path: Path, against: Inspection | None = None) -> None:
    """Draw the weights of all heads of all layers for a kind of attention, or their difference from another text."""
    attention, what, colors, title = inspection.attention[number], "attention weight; a row adds up to 1", "Blues", ""
    rows, columns = ([*map(_label, inspection.sides[side].tokens)] for side in (attention.rows, attention.columns))
    weights, low, most = attention.weights, 0.0, 1.0
    if against is not None:
        weights, rows, columns = compare(inspection, number, against)
        most = float(np.abs(weights).max(initial=1e-9))
        low, what, colors, title = -most, "difference: blue more, red less", "RdBu", ", against the first text"
    norm = FuncNorm((lambda x: np.sign(x) * np.abs(x) ** 0.5, lambda x: np.sign(x) * x**2), low, most)
    num_layers, num_heads, high, wide = weights.shape
    high, wide = high + 2, wide + 1  # with a gap above, for the name of the head, and one on the left
    padded = np.pad(weights, [(0, 0), (0, 0), (2, 0), (1, 0)], constant_values=np.nan)
    cell = max(0.105, 1.2 / wide)  # inches
    size = (1.8 + cell * num_heads * wide, 1.2 + cell * num_layers * high)
    with _picture(path, *size, f"{attention.title}{title} · {inspection.text}") as axes:
        image = padded.transpose(0, 2, 1, 3).reshape(num_layers * high, num_heads * wide)
        drawn = axes.imshow(image, cmap=colors, norm=norm, interpolation="nearest")
        for layer, head in np.ndindex(num_layers, num_heads):
            name = f"layer {attention.layers[layer]}, head {head + 1}"
            axes.text(head * wide + 0.6, layer * high + 0.6, name, fontsize=7, va="center")
        across = [head * wide + 1 + place for head in range(num_heads) for place in range(len(columns))]
        down = [layer * high + 2 + place for layer in range(num_layers) for place in range(len(rows))]
        axes.set_xticks(across, columns * num_heads, rotation=90, fontsize=6)
        axes.set_yticks(down, rows * num_layers, fontsize=6)
        axes.figure.colorbar(drawn, ax=axes, shrink=0.5, aspect=30, pad=0.01).set_label(what)


def draw_predictions(*, inspection: Inspection, path: Path) -> None:
    """Draw the surprisal of each token as a bar, with what the model would have said beside it."""
    predictions = inspection.predictions
    with _picture(path, 9, 1.2 + 0.2 * len(predictions), f"What the model expects · {inspection.text}") as axes:
        places, bits = range(len(predictions)), [each.bits or 0.0 for each in predictions]
        axes.barh(places, bits, color="#0072B2", height=0.75)
        axes.set_yticks(places, [_label(each.token or "what comes next") for each in predictions])
        axes.set(xlim=(0, 1.9 * max(*bits, 1.0)), ylim=(len(predictions) - 0.4, -0.6))
        for place, each in enumerate(predictions):
            said = "   ".join(f"{_label(token)} {chance:.0%}" for token, chance in each.likeliest[:4])
            axes.text(bits[place] + 0.1, place, said, va="center", fontsize=7, color="#444444")
        axes.set_xlabel("surprisal in bits: long bars were not expected; beside them what the model finds likeliest")


def draw_neighbours(*, side: Side, path: Path, text: str) -> None:
    """Draw what each token (a row) is nearest to after each layer (a column), and how near."""
    best = [[near[0] for near in layer] for layer in side.neighbours]
    size = (1.5 + 0.9 * len(best), 1.4 + 0.2 * len(side.tokens))
    with _picture(path, *size, f"What each token becomes · {text}") as axes:
        cosines = np.transpose([[cosine for _, cosine in layer] for layer in best])
        axes.imshow(cosines, cmap="Blues", vmin=0, vmax=1.6, aspect="auto")  # black can be read on every blue of these
        for row, layer in np.ndindex(cosines.shape):
            token, cosine = best[layer][row]
            axes.text(layer, row, f"{_label(token)[:12]}  {cosine:.2f}", ha="center", va="center", fontsize=7)
        axes.set_xticks(range(len(best)), [f"layer {layer}" for layer in range(len(best))])
        axes.set_yticks(range(len(side.tokens)), [*map(_label, side.tokens)])
        axes.set_xlabel("nearest token of the vocabulary, and its cosine; layer 0 is what enters layer 1")


def draw_tokens(*, sides: Sequence[Side], path: Path) -> None:
    """Draw how texts are cut into tokens: a word in one colour, what is added to the text in grey."""
    boxes, line, word = list[tuple[float, int, str, str]](), 0, 0
    for side in sides:
        place, line = 0.0, line + 2
        for token, special, goes_on in zip(map(_label, side.tokens), side.special, side.continues, strict=True):
            place, line = (place, line) if place + len(token) < CHARACTERS else (0.0, line + 1)
            word += not goes_on
            boxes.append((place, line, token, "#dddddd" if special else ("#b9d8ee", "#f8d7bd")[word % 2]))
            place += len(token) + 1.4
    with _picture(path, 0.067 * CHARACTERS, 0.28 * line, "How the texts are cut into tokens") as axes:
        axes.set(xlim=(0, CHARACTERS), ylim=(line + 0.5, 1.5), xticks=[], yticks=[])
        for place, row, token, color in boxes:
            axes.text(
                place, row, token, family="monospace", va="center", bbox={"boxstyle": "round", "fc": color, "lw": 0}
            )


def _label(token: str) -> str:
    return token.strip() or token.replace("\n", "\u23ce").replace("\t", "\u21e5").replace(" ", "\u00b7")


@contextmanager
def _picture(path: Path, width: float, height: float, title: str) -> Iterator[Any]:
    """The axes of a picture of so many inches, written after they are filled; nobody's matplotlibrc changes it."""
    plain = {"text.usetex": False, "text.parse_math": False, "font.family": "DejaVu Sans", "font.size": 8}
    with style.context(["default", plain]), warnings.catch_warnings(), replacing(path) as temporary:
        warnings.simplefilter("ignore")  # a letter that the font has not
        figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
        axes.tick_params(length=0)
        yield axes
        figure.suptitle(title, ha="left", x=0.01, fontsize=10)
        figure.savefig(temporary, format="png", bbox_inches="tight")
