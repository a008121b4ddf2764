"""The Lacuna model and its heads.

Every head reads the same way: backbone, pool or select, head, loss if there are labels, typed output. The losses are
three functions at the top. Letters in shapes: B rows, T tokens of a row, C hidden_size, V vocab_size, L num_labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import (
    BaseModelOutputWithPoolingAndCrossAttentions,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import ModelOutput, can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_lacuna import HEADS, ConfigurationError, LacunaConfig
from .layers_lacuna import (
    LacunaAttention,
    LacunaEmbeddings,
    LacunaLayer,
    LacunaRotaryEmbedding,
    build_norm,
)
from .masks_lacuna import build_attention_masks

IGNORED = -100  # The label of a position that is not to be predicted, as in torch and transformers.

# ------------------------------------------------------------------------------------------------------------- losses


def cross_entropy(
    logits: Tensor, labels: Tensor, *, num_items: int | Tensor | None = None, ignore_index: int = IGNORED
) -> Tensor:
    """Summed cross-entropy divided by `num_items`, or by the number of targets here when that is None.

    The sum is what makes gradient accumulation exact: parts of a batch that hold different numbers of targets add up
    to the loss of the whole when each is divided by the count of the whole. No target at all gives 0, not NaN.

    Args:
        logits: [..., V], any float dtype; the loss is computed in float32.
        labels: [...], `ignore_index` where nothing is to be predicted.

    Raises:
        ValueError: when the shapes differ.
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"labels have the shape {tuple(labels.shape)}, and logits {tuple(logits.shape)}")
    logits, labels = logits.flatten(0, -2), labels.flatten()
    loss = nn.functional.cross_entropy(logits.float(), labels, ignore_index=ignore_index, reduction="sum")
    if num_items is None:
        num_items = (labels != ignore_index).sum().clamp(min=1)
    return loss / (num_items.to(loss.device) if isinstance(num_items, Tensor) else num_items)


def classification_loss(
    logits: Tensor, labels: Tensor, *, config: LacunaConfig, num_items: int | Tensor | None = None
) -> Tensor:
    """The loss of `config.problem_type`, which the labels decide when it is None (and then is written down there).

    Args:
        logits: [B, L].
        labels: [B] class numbers; [B, L] of 0 and 1 for several labels at once; [B] or [B, L] numbers for regression.
        num_items: number of elements of `labels` in the whole batch, as `Trainer` counts them.
    """
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.dtype in (torch.int64, torch.int32):
            config.problem_type = "single_label_classification"
        else:
            config.problem_type = "multi_label_classification"
    if config.problem_type == "single_label_classification":
        return cross_entropy(logits, labels.view(-1), num_items=num_items)
    logits, labels = logits.float(), labels.float().view_as(logits)
    if config.problem_type == "regression":
        loss = nn.functional.mse_loss(logits, labels, reduction="sum")
    else:
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return loss / (labels.numel() if num_items is None else num_items)


def span_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    start_positions: Tensor,
    end_positions: Tensor,
    *,
    num_items: int | Tensor | None = None,
) -> Tensor:
    """Mean of the cross-entropies of start and end; positions [B] beyond the text [B, T] are ignored."""
    length = start_logits.shape[1]
    losses = [
        cross_entropy(logits, positions.view(-1).clamp(0, length), num_items=num_items, ignore_index=length)
        for logits, positions in ((start_logits, start_positions), (end_logits, end_positions))
    ]
    return (losses[0] + losses[1]) / 2


# ----------------------------------------------------------------------------------------------- selecting and pooling


def select_targets(hidden_states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the positions that have a target: [B, T, C] and [B, T] -> [N, C] and [N], in row-major order.

    Raises:
        ValueError: when the shapes differ.
    """
    if hidden_states.shape[:-1] != labels.shape:
        raise ValueError(f"labels have the shape {tuple(labels.shape)}, and tokens {tuple(hidden_states.shape[:-1])}")
    is_target = labels != IGNORED
    return hidden_states[is_target], labels[is_target]


def pool_first(hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """State of the first real token of each row: [B, T, C] -> [B, C]."""
    if attention_mask is None or attention_mask.dim() != 2:
        return hidden_states[:, 0]
    first = attention_mask.int().argmax(-1)
    return hidden_states[torch.arange(hidden_states.shape[0], device=hidden_states.device), first]


def pool_last(hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """State of the last real token of each row: [B, T, C] -> [B, C]."""
    if attention_mask is None or attention_mask.dim() != 2:
        return hidden_states[:, -1]
    positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    last = (positions * attention_mask.int()).argmax(-1)
    return hidden_states[torch.arange(hidden_states.shape[0], device=hidden_states.device), last]


def pool_mean(hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean over the real tokens of each row: [B, T, C] -> [B, C]."""
    if attention_mask is None or attention_mask.dim() != 2:
        return hidden_states.mean(1)
    weights = attention_mask.unsqueeze(-1).to(hidden_states.dtype)
    return (hidden_states * weights).sum(1) / weights.sum(1).clamp(min=1)


POOLING = {"first": pool_first, "mean": pool_mean, "last": pool_last}


class LacunaPooler(nn.Module):
    """BERT's pooler: tanh of a dense layer over the first token (https://arxiv.org/abs/1810.04805)."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        return torch.tanh(self.dense(pool_first(hidden_states, attention_mask)))


class LacunaPredictionHead(nn.Module):
    """Dense, activation, norm: what stands between the hidden states and the last projection of a head."""

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.prediction_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = build_norm(config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden_states)))


class LacunaSentenceHead(nn.Module):
    """Does the second segment continue the first? Two logits for each row.

    With a pooler this is BERT's: one projection of the pooled first token. Without one, the mean states u and v of the
    two segments are compared as (u, v, |u - v|, u * v), the features of InferSent (Conneau et al., 2017,
    https://arxiv.org/abs/1705.02364) and Sentence-BERT (https://arxiv.org/abs/1908.10084). What the segments share
    is in these features from the first step; a first token must learn to gather it, and a tiny model that read the
    answer from there was still at chance after 380 steps.
    """

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__()
        if config.pooler:
            self.dense = None
        else:
            self.dense = nn.Linear(4 * config.hidden_size, config.hidden_size)
            self.activation = ACT2FN[config.hidden_act]
        self.classifier = nn.Linear(config.hidden_size, 2)

    def forward(
        self,
        outputs: BaseModelOutputWithPoolingAndCrossAttentions,
        attention_mask: Tensor | None,
        segments: Tensor | None,
    ) -> Tensor:
        if self.dense is None:
            return self.classifier(outputs.pooler_output)
        states = outputs.last_hidden_state
        if segments is None:
            segments = states.new_zeros(states.shape[:2], dtype=torch.long)
        real = segments.new_ones(segments.shape) if attention_mask is None else attention_mask
        first, second = (pool_mean(states, (segments == number) * real) for number in (0, 1))
        features = torch.cat([first, second, (first - second).abs(), first * second], dim=-1)
        return self.classifier(self.activation(self.dense(features)))


def find_segments(
    input_ids: Tensor | None, token_type_ids: Tensor | None, *, sep_token_id: int | None
) -> Tensor | None:
    """0 for tokens of the first segment, 1 for those of the second, [B, T]: as told, or by the first separator."""
    if token_type_ids is not None or input_ids is None or sep_token_id is None:
        return token_type_ids
    is_separator = (input_ids == sep_token_id).long()
    return (is_separator.cumsum(-1) - is_separator).clamp(max=1)


# ----------------------------------------------------------------------------------------------------------- backbone


@dataclass
class LacunaForPreTrainingOutput(ModelOutput):
    """What `LacunaForPreTraining` returns.

    Attributes:
        loss: sum of the two losses below, those that have labels.
        mlm_loss: cross-entropy of the masked tokens.
        nsp_loss: cross-entropy of the sentence relation.
        prediction_logits: [B, T, V], or [number of targets, V] with sparse prediction.
        seq_relationship_logits: [B, 2].
    """

    loss: Tensor | None = None
    mlm_loss: Tensor | None = None
    nsp_loss: Tensor | None = None
    prediction_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


class LacunaPreTrainedModel(PreTrainedModel):
    """Initialisation, loading and saving for every Lacuna model."""

    config: LacunaConfig
    config_class = LacunaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LacunaEmbeddings", "LacunaLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": LacunaLayer, "attentions": LacunaAttention}

    def __init__(self, config: LacunaConfig, *inputs: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        shapes = [shape for shape, heads in HEADS.items() if name in heads.values()]
        if shapes and config.shape not in shapes:
            raise ConfigurationError(
                f"{name} needs shape={' or '.join(map(repr, shapes))} and the configuration has "
                f"shape={config.shape!r}; heads for it: {', '.join(HEADS[config.shape].values())}"
            )
        super().__init__(config, *inputs, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LacunaRotaryEmbedding):
            for layer_type in module.layer_types:
                frequencies, _ = module.compute_frequencies(layer_type)
                init.copy_(getattr(module, module.named(layer_type, "inv_freq")), frequencies)
                init.copy_(getattr(module, module.named(layer_type, "original_inv_freq")), frequencies)


class LacunaModel(LacunaPreTrainedModel):
    """Embeddings and blocks; hidden states out, no head.

    Args:
        add_pooling_layer: whether to build the pooler that the configuration has. Heads that do not read it leave it
            out: a parameter without a gradient stops distributed training.
    """

    def __init__(self, config: LacunaConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.embeddings = LacunaEmbeddings(config)
        self.rotary_emb = LacunaRotaryEmbedding(config) if config.position_type == "rotary" else None
        self.layers = nn.ModuleList([LacunaLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = build_norm(config) if config.norm_placement == "pre" else None
        self.pooler = LacunaPooler(config) if config.pooler and add_pooling_layer else None
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.embed_tokens = value

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Run the blocks.

        Args:
            input_ids: token ids [B, T]; or `inputs_embeds` [B, T, C] in their place.
            attention_mask: [B, T] (with a cache [B, past + T]), 1 for real tokens; None when all are real. Also a mask
                [B, 1, T, S] as the attention function takes it, or one such mask per layer type in a dict.
            token_type_ids: segments [B, T]; ignored by a model without segments.
            position_ids: [B, T]. Where they restart at 0 inside a row, a new document starts, and attention stays
                inside each document.
            past_key_values, use_cache: keys and values of the tokens before, and whether to return them (decoders).

        Raises:
            ValueError: when not exactly one of `input_ids` and `inputs_embeds` is given.
        """
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if not self.config.is_decoder:
            past_key_values, use_cache = None, False

        seen = past_key_values.get_seq_length() if past_key_values is not None else 0
        positions = (torch.arange(given.shape[1], device=given.device) + seen).unsqueeze(0)
        positions = positions if position_ids is None else position_ids
        hidden_states = self.embeddings(
            input_ids, position_ids=positions, token_type_ids=token_type_ids, inputs_embeds=inputs_embeds
        )
        masks, packing = build_attention_masks(
            config=self.config,
            hidden_states=hidden_states,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
        )
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)

        angles = self._rotary_positions(hidden_states, positions)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                attention_mask=masks[layer.layer_type],
                position_embeddings=angles[layer.layer_type],
                past_key_values=past_key_values,
                **packing,
                **kwargs,
            )
        if self.norm is not None:
            hidden_states = self.norm(hidden_states)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=hidden_states,
            pooler_output=None if self.pooler is None else self.pooler(hidden_states, attention_mask),
            past_key_values=past_key_values if use_cache else None,
        )

    def _rotary_positions(self, hidden_states: Tensor, position_ids: Tensor) -> dict[str, Any]:
        """Cosines and sines by layer type; None without rotary positions."""
        layer_types = set(self.config.layer_types)
        if self.rotary_emb is None:
            return dict.fromkeys(layer_types)
        if self.rotary_emb.layer_types == [None]:
            return dict.fromkeys(layer_types, self.rotary_emb(hidden_states, position_ids))
        return {name: self.rotary_emb(hidden_states, position_ids, name) for name in layer_types}


# -------------------------------------------------------------------------------------------------------------- heads


class LacunaForPreTraining(LacunaPreTrainedModel):
    """Masked language modelling and sentence relation together (https://arxiv.org/abs/1810.04805)."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.model = LacunaModel(config)
        self.head = LacunaPredictionHead(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.sentence_head = LacunaSentenceHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        sparse_prediction: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
        num_pairs_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> LacunaForPreTrainingOutput:
        """Predict masked tokens and the sentence relation.

        Args:
            labels: [B, T], -100 where nothing is to be predicted.
            next_sentence_label: [B], 0 when the second segment continues the first, 1 when it does not.
            sparse_prediction: compute logits at the targets only; None means while training.
            num_items_in_batch: number of masked tokens in the whole batch, over all parts of it.
            num_pairs_in_batch: number of sentence pairs in the whole batch. When only `num_items_in_batch` is given,
                as `Trainer` does, the mean over the pairs here counts by the share of masked tokens that is here: the
                shares of all parts add up to one, so that accumulation does not multiply the loss.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        is_sparse = self.training if sparse_prediction is None else sparse_prediction
        if labels is not None and is_sparse:
            hidden_states, labels = select_targets(hidden_states, labels)

        logits = self.lm_head(self.head(hidden_states))
        segments = find_segments(input_ids, token_type_ids, sep_token_id=self.config.sep_token_id)
        relation_logits = self.sentence_head(outputs, attention_mask, segments)

        mlm_loss = nsp_loss = None
        if labels is not None:
            mlm_loss = cross_entropy(logits, labels, num_items=num_items_in_batch)
        if next_sentence_label is not None:
            nsp_loss = cross_entropy(relation_logits, next_sentence_label.view(-1), num_items=num_pairs_in_batch)
            if labels is not None and num_items_in_batch is not None and num_pairs_in_batch is None:
                nsp_loss = nsp_loss * (labels != IGNORED).sum() / num_items_in_batch
        losses = [loss for loss in (mlm_loss, nsp_loss) if loss is not None]

        return LacunaForPreTrainingOutput(
            loss=sum(losses[1:], losses[0]) if losses else None,
            mlm_loss=mlm_loss,
            nsp_loss=nsp_loss,
            prediction_logits=logits,
            seq_relationship_logits=relation_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LacunaForMaskedLM(LacunaPreTrainedModel):
    """Masked language modelling."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}
    # A checkpoint of LacunaForPreTraining has these as well; leaving them out here is what was asked for.
    _keys_to_ignore_on_load_unexpected = [r"^sentence_head\.", r"^model\.pooler\."]

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.model = LacunaModel(config, add_pooling_layer=False)
        self.head = LacunaPredictionHead(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        sparse_prediction: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Predict masked tokens.

        Args:
            labels: [B, T], -100 where nothing is to be predicted.
            sparse_prediction: compute logits at the targets only, [number of targets, V] in row-major order instead
                of [B, T, V]; None means while training.
            num_items_in_batch: number of masked tokens in the whole batch, over all parts of it.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        is_sparse = self.training if sparse_prediction is None else sparse_prediction
        if labels is not None and is_sparse:
            hidden_states, labels = select_targets(hidden_states, labels)

        logits = self.lm_head(self.head(hidden_states))

        loss = None
        if labels is not None:
            loss = cross_entropy(logits, labels, num_items=num_items_in_batch)

        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class LacunaForCausalLM(LacunaPreTrainedModel, GenerationMixin):
    """Predict the next token; generates."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.embed_tokens.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}
    _fsdp_plan = {"lm_head": "keep_full_weight"}

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.model = LacunaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Predict the next token at every position.

        Args:
            labels: [B, T], the token ids themselves with -100 where nothing is to be predicted; they are shifted
                here. In packed rows the first token of a document should be -100: nothing before it predicts it.
            logits_to_keep: compute logits for that many last positions (0: all), or for these positions.
            num_items_in_batch: number of predicted tokens in the whole batch, over all parts of it.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden_states = outputs.last_hidden_state[:, kept]

        logits = self.lm_head(hidden_states)

        loss = None
        if labels is not None:
            next_labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
            loss = cross_entropy(logits, next_labels, num_items=num_items_in_batch)

        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LacunaForSequenceClassification(LacunaPreTrainedModel):
    """One class, several labels or numbers for each row."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.", r"^sentence_head\.", r"^model\.pooler\."]

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.uses_pooler = config.pooler and config.classifier_pooling == "first"
        self.model = LacunaModel(config, add_pooling_layer=self.uses_pooler)
        has_transform = config.classifier_transform and not self.uses_pooler
        self.head = LacunaPredictionHead(config) if has_transform else None
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels, bias=config.classifier_bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Classify rows by the state that `config.classifier_pooling` picks.

        Args:
            attention_mask: [B, T]. Without one, pooling `last` takes the last token that is not `pad_token_id`.
            labels: see `classification_loss`.
            num_items_in_batch: number of elements of `labels` in the whole batch, over all parts of it.
        """
        kwargs.setdefault("use_cache", False)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        if self.uses_pooler:
            pooled = outputs.pooler_output
        else:
            pooling, pad_token_id = self.config.classifier_pooling, self.config.pad_token_id
            if pooling == "last" and attention_mask is None and input_ids is not None and pad_token_id is not None:
                attention_mask = input_ids != pad_token_id
            pooled = POOLING[pooling](outputs.last_hidden_state, attention_mask)

        pooled = pooled if self.head is None else self.head(pooled)
        logits = self.classifier(self.dropout(pooled))

        loss = None
        if labels is not None:
            loss = classification_loss(logits, labels, config=self.config, num_items=num_items_in_batch)

        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class LacunaForQuestionAnswering(LacunaPreTrainedModel):
    """Start and end of the answer to a question, as a span of the text that follows it."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.", r"^sentence_head\.", r"^model\.pooler\."]

    def __init__(self, config: LacunaConfig) -> None:
        super().__init__(config)
        self.model = LacunaModel(config, add_pooling_layer=False)
        self.head = LacunaPredictionHead(config) if config.classifier_transform else None
        self.dropout = nn.Dropout(classifier_dropout(config) if config.classifier_transform else 0.0)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Score every token as start and as end of the answer.

        Args:
            start_positions, end_positions: [B], token numbers; those beyond the row are ignored.
            num_items_in_batch: number of rows in the whole batch, over all parts of it.
        """
        kwargs.setdefault("use_cache", False)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state

        hidden_states = hidden_states if self.head is None else self.head(hidden_states)
        logits = self.qa_outputs(self.dropout(hidden_states))
        start_logits, end_logits = logits.unbind(-1)

        loss = None
        if start_positions is not None and end_positions is not None:
            loss = span_loss(start_logits, end_logits, start_positions, end_positions, num_items=num_items_in_batch)

        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def classifier_dropout(config: LacunaConfig) -> float:
    """Dropout before the last projection of a task head."""
    return config.hidden_dropout if config.classifier_dropout is None else config.classifier_dropout


__all__ = [
    "LacunaForCausalLM",
    "LacunaForMaskedLM",
    "LacunaForPreTraining",
    "LacunaForPreTrainingOutput",
    "LacunaForQuestionAnswering",
    "LacunaForSequenceClassification",
    "LacunaModel",
    "LacunaPreTrainedModel",
]
