"""The numbers of our models as plain arrays, which peers build the same models from.

What the arrays mean is written down twice more: in numpy here, slowly and plainly, so that every
contestant can be held to it, and in each peer's own terms.

Axis letters: B batch, T position, N heads, H head_dim, D embed_dim, V vocab.
"""

from pathlib import Path
from typing import Any

import numpy as np

from models.perceiver import wavelengths

Arrays = dict[str, np.ndarray]


def of_block(block: Any) -> Arrays:
    """A ``TransformerBlock``: queries, keys and values side by side, their scale multiplied in."""
    attention, mlp = block.attention, block.mlp
    width = block.attention_norm.scale[...].shape[0]
    projections = (attention.query_proj, attention.key_proj, attention.value_proj)
    query, key, value = (_numpy(p.kernel).reshape(width, width) for p in projections)
    return {
        "attention_norm": _numpy(block.attention_norm.scale),
        "qkv": np.concatenate([query * _relative_scale(attention), key, value], axis=1),
        "out": _numpy(attention.out_proj.kernel).reshape(width, width),
        "mlp_norm": _numpy(block.mlp_norm.scale),
        "gate": _numpy(mlp.gate_proj.kernel),
        "up": _numpy(mlp.up_proj.kernel),
        "down": _numpy(mlp.down_proj.kernel),
    }


def of_encoder(model: Any) -> Arrays:
    """A ``MaskedLanguageModel``."""
    encoder = model.encoder
    arrays = {
        "num_heads": np.array(model.config.num_heads),
        "vocab_size": np.array(model.config.vocab_size),
        "epsilon": np.array(encoder.final_norm.epsilon),
        "token_embedding": _numpy(encoder.token_embedding.embedding),
        "position_embedding": _numpy(encoder.position_embedding.embedding),
        "final_norm": _numpy(encoder.final_norm.scale),
    }
    for index, block in enumerate(encoder.blocks):
        arrays |= {f"{index}.{name}": array for name, array in of_block(block).items()}
    return arrays


def of_perceiver(model: Any) -> Arrays:
    """The reading half of a ``PerceiverAutoencoder``."""
    encoder, reading = model.encoder, model.encoder.cross_attention
    width = model.config.embed_dim
    query, key, value, out = (
        _numpy(projection.kernel).reshape(width, width)
        for projection in (
            reading.query_proj,
            reading.key_proj,
            reading.value_proj,
            reading.out_proj,
        )
    )
    absolute, relative = wavelengths(model.config)
    arrays = {
        "num_heads": np.array(model.config.num_heads),
        "epsilon": np.array(encoder.final_norm.epsilon),
        "latents": _numpy(encoder.latents),
        "absolute_wavelengths": absolute,
        "relative_wavelengths": relative,
        "query_norm": _numpy(encoder.query_norm.scale),
        "query": query * _relative_scale(reading),
        "key_value": np.concatenate([key, value], axis=1),
        "read_out": out,
        "final_norm": _numpy(encoder.final_norm.scale),
    }
    for index, block in enumerate(encoder.blocks):
        arrays |= {f"{index}.{name}": array for name, array in of_block(block).items()}
    return arrays


def save(path: Path | str, arrays: Arrays) -> None:
    """Writes arrays where ``numpy.load`` finds them."""
    np.savez(path, allow_pickle=False, **arrays)


def encoder_logits(arrays: Arrays, tokens: np.ndarray) -> np.ndarray:
    """Logits [B T V] of rows that are whole, by the plainest arithmetic."""
    x = arrays["token_embedding"][tokens] + arrays["position_embedding"][: tokens.shape[1]]
    x = _through_blocks(arrays, x.astype(np.float64))
    table = arrays["token_embedding"][: arrays["vocab_size"]]
    return _norm(arrays, x, arrays["final_norm"]) @ table.T


def latents(arrays: Arrays, vectors: np.ndarray) -> np.ndarray:
    """Latents [B M D] of ``vectors`` [B S D], all of which are read."""
    batch, size = vectors.shape[:2]
    count = len(arrays["latents"])
    centres = (np.arange(count) + 0.5) * size / count - 0.5
    x = arrays["latents"] + _position_features(arrays, centres, size)
    x = np.broadcast_to(x, (batch, *x.shape))
    inputs = vectors + _position_features(arrays, np.arange(size), size)
    queries = _norm(arrays, x, arrays["query_norm"]) @ arrays["query"]
    keys, values = np.split(inputs @ arrays["key_value"], 2, axis=-1)
    x = x + _attend(queries, keys, values, arrays["num_heads"]) @ arrays["read_out"]
    return _norm(arrays, _through_blocks(arrays, x), arrays["final_norm"])


def _position_features(arrays: Arrays, positions: np.ndarray, length: int) -> np.ndarray:
    """Sines and cosines of positions, in characters and relative to the length."""
    relative = (positions + 0.5) * len(arrays["latents"]) / length
    angles = (
        2 * np.pi * coordinate[:, None] / arrays[f"{name}_wavelengths"]
        for name, coordinate in (("absolute", positions), ("relative", relative))
    )
    return np.concatenate([f(a) for a in angles for f in (np.sin, np.cos)], axis=-1)


def _through_blocks(arrays: Arrays, x: np.ndarray) -> np.ndarray:
    for index in range(sum(name.endswith(".qkv") for name in arrays)):
        block = {
            name.removeprefix(f"{index}."): array
            for name, array in arrays.items()
            if name.startswith(f"{index}.")
        }
        normed = _norm(arrays, x, block["attention_norm"])
        queries, keys, values = np.split(normed @ block["qkv"], 3, axis=-1)
        x = x + _attend(queries, keys, values, arrays["num_heads"]) @ block["out"]
        normed = _norm(arrays, x, block["mlp_norm"])
        gate = normed @ block["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ block["up"])) @ block["down"]
    return x


def _attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, heads: Any) -> np.ndarray:
    q, k, v = (a.reshape(*a.shape[:2], int(heads), -1) for a in (queries, keys, values))
    scores = np.einsum("BTNH,BSNH->BNTS", q, k) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("BNTS,BSNH->BTNH", weights, v).reshape(queries.shape)


def _norm(arrays: Arrays, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + arrays["epsilon"]) * scale


def _relative_scale(attention: Any) -> np.float32:
    """What queries are scaled by on top of 1/sqrt(H), which peers apply by themselves."""
    head_dim = attention.query_proj.kernel[...].shape[-1]
    return np.float32(attention.scale * head_dim**0.5)


def _numpy(param: Any) -> np.ndarray:
    return np.array(param[...])
