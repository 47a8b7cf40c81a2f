"""A language model of 40 tokens as a folder for ONNX Runtime GenAI, and what it computes, in plain NumPy and float64."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, HEADS, GROUPS, SIZE, LAYERS, CONTEXT = 40, 16, 2, 1, 16, 2, 64
BOS, EOS, PAD = 0, 1, 2
WORDS = ["<s>", "</s>", "<pad>", *(f"w{i}" for i in range(3, VOCABULARY))]
HALF = SIZE // 2
CHAT = (
    "{% for m in messages %}<s> {{ m['role'] }} {{ m['content'] }} </s>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}w9{% endif %}"
)


def weights(seed: int = 17) -> dict[str, Any]:
    """All weights, float32."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    made = {"embedding": drawn(VOCABULARY, WIDTH) * 4, "head": drawn(WIDTH, VOCABULARY) * 2}
    made["head"][:, : PAD + 1] = 0  # special tokens are never the likeliest ones
    for layer in range(LAYERS):
        for name, columns in (("q", HEADS * SIZE), ("k", GROUPS * SIZE), ("v", GROUPS * SIZE)):
            made[f"{name}{layer}"] = drawn(WIDTH, columns)
        made[f"o{layer}"], made[f"up{layer}"], made[f"down{layer}"] = drawn(HEADS * SIZE, WIDTH), drawn(WIDTH, 24), drawn(24, WIDTH)
    return made


def angles() -> Any:
    """The angle of each pair of elements at each position, float64."""
    return np.arange(CONTEXT)[:, None] / 100.0 ** (np.arange(HALF) / HALF)


# -- The right values ---------------------------------------------------------------------------------------------------


def logits(tokens: Sequence[int], given: dict[str, Any], lora: tuple[Any, Any] | None = None) -> Any:
    """The logits after the last token, float64."""
    w = {name: array.astype(np.float64) for name, array in given.items()}
    x = w["embedding"][list(tokens)]
    n = len(tokens)
    for layer in range(LAYERS):
        q = turned((x @ w[f"q{layer}"]).reshape(n, HEADS, SIZE))
        k, v = turned((x @ w[f"k{layer}"]).reshape(n, GROUPS, SIZE)), (x @ w[f"v{layer}"]).reshape(n, GROUPS, SIZE)
        mixed = np.zeros((n, HEADS, SIZE))
        for row in range(n):
            for h in range(HEADS):
                scores = k[: row + 1, h * GROUPS // HEADS] @ q[row, h] / np.sqrt(SIZE)
                shares = np.exp(scores - scores.max())
                mixed[row, h] = (shares / shares.sum()) @ v[: row + 1, h * GROUPS // HEADS]
        x = x + mixed.reshape(n, -1) @ w[f"o{layer}"]
        x = x + np.maximum(x @ w[f"up{layer}"], 0) @ w[f"down{layer}"]
    extra = x[-1] @ lora[0].astype(np.float64) @ lora[1].astype(np.float64) if lora is not None else 0
    return x[-1] @ w["head"] + extra


def turned(x: Any) -> Any:
    """Vectors at positions from 0 on, turned by their positions."""
    turn = angles()[: len(x)]
    cos, sin = np.cos(turn)[:, None], np.sin(turn)[:, None]
    low, high = x[..., :HALF], x[..., HALF:]
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), -1)


def greedy(tokens: Sequence[int], length: int, given: dict[str, Any]) -> list[int]:
    """The tokens and the likeliest ones after them."""
    text = list(tokens)
    while len(text) < length:
        text.append(int(np.argmax(logits(text, given))))
    return text


def beams(tokens: Sequence[int], length: int, width: int, given: dict[str, Any], eos: int, penalty: float) -> list[list[int]]:
    """The best texts of a beam search that stops as soon as as many have ended as there are beams."""
    alive, ended = [(0.0, list(tokens))], []
    while len(alive[0][1]) < length and len(ended) < width:
        ways = []
        for score, text in alive:
            row = logits(text, given)
            likely = row - row.max() - np.log(np.exp(row - row.max()).sum())
            ways += [(score + float(likely[token]), [*text, token]) for token in range(VOCABULARY)]
        ways = sorted(ways, key=lambda way: -way[0])[: 2 * width]
        for rank, (score, text) in enumerate(ways):
            if text[-1] == eos and rank < width:
                ended.append((score / (len(text) - 1) ** penalty, text[:-1]))
        alive = [way for way in ways if way[1][-1] != eos][:width]
    ended = sorted(ended, key=lambda way: -way[0])[:width]
    if len(ended) < width:
        ended += [(score / len(text) ** penalty, text) for score, text in alive]
    return [text for _, text in sorted(ended, key=lambda way: -way[0])[:width]]


# -- The folder ---------------------------------------------------------------------------------------------------------


def model(given: dict[str, Any], *, kind: Any = TensorProto.FLOAT, positions: bool = False, lora: str = "") -> onnx.ModelProto:
    """The network."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    tables = {name: array.astype(dtype) for name, array in given.items()}
    tables |= {"cos": np.cos(angles()).astype(dtype), "sin": np.sin(angles()).astype(dtype)}
    tables |= {"axis": np.array([1]), "place": np.array(1), "one": np.array([1])}
    node = helper.make_node
    nodes = [
        node("ReduceSum", ["attention_mask", "axis"], ["counts"], keepdims=0),
        node("Sub", ["counts", "one"], ["last"]),
        node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32),
        node("Shape", ["attention_mask"], ["mask_shape"]),
        node("Gather", ["mask_shape", "place"], ["total64"], axis=0),
        node("Cast", ["total64"], ["total"], to=TensorProto.INT32),
        node("Gather", ["embedding", "input_ids"], ["x0"]),
    ]
    for i in range(LAYERS):
        keys = [f"past_key_values.{i}.key", f"past_key_values.{i}.value"]
        presents = [f"present.{i}.key", f"present.{i}.value"]
        attention = [
            f"q{i}x",
            f"k{i}x",
            f"v{i}x",
            *keys,
            "seqlens_k",
            "total",
            "cos",
            "sin",
            *(["position_ids"] if positions else []),
        ]
        nodes += [node("MatMul", [f"x{i}", f"{n}{i}"], [f"{n}{i}x"]) for n in "qkv"]
        nodes += [
            node(
                "GroupQueryAttention", attention, [f"a{i}", *presents], domain="com.microsoft",
                num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1,
            ),
            node("MatMul", [f"a{i}", f"o{i}"], [f"b{i}"]),
            node("Add", [f"x{i}", f"b{i}"], [f"c{i}"]),
            node("MatMul", [f"c{i}", f"up{i}"], [f"d{i}"]),
            node("Relu", [f"d{i}"], [f"e{i}"]),
            node("MatMul", [f"e{i}", f"down{i}"], [f"f{i}"]),
            node("Add", [f"c{i}", f"f{i}"], [f"x{i + 1}"]),
        ]  # fmt: skip
    nodes.append(node("MatMul", [f"x{LAYERS}", "head"], ["plain" if lora else "logits"]))
    words = ["input_ids", "attention_mask", *(["position_ids"] if positions else [])]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["rows", "total" if "mask" in n else "columns"]) for n in words]
    past = [f"past_key_values.{i}.{n}" for i in range(LAYERS) for n in ("key", "value")]
    inputs += [helper.make_tensor_value_info(n, kind, ["rows", GROUPS, "past", SIZE]) for n in past]
    if lora:
        nodes += [
            node("MatMul", [f"x{LAYERS}", "lora_a"], ["low"]),
            node("MatMul", ["low", "lora_b"], ["extra"]),
            node("Add", ["plain", "extra"], ["logits"]),
        ]
        shapes = {"lora_a": [WIDTH, 2], "lora_b": [2, VOCABULARY]}
        inputs += [helper.make_tensor_value_info(n, kind, shape) for n, shape in shapes.items()]
        if lora == "optional":  # of zeros, if nobody gives them
            tables |= {n: np.zeros(shape, dtype) for n, shape in shapes.items()}
    outputs = [helper.make_tensor_value_info("logits", kind, ["rows", "columns", VOCABULARY])]
    outputs += [
        helper.make_tensor_value_info(n.replace("past_key_values", "present"), kind, ["rows", GROUPS, "present", SIZE])
        for n in past
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in tables.items()]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def config(**search: Any) -> dict[str, Any]:
    """``genai_config.json``."""
    return {
        "model": {
            "type": "llama",
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
            "vocab_size": VOCABULARY,
            "context_length": CONTEXT,
            "decoder": {
                "session_options": {"log_id": "tiny", "provider_options": []},
                "filename": "model.onnx",
                "head_size": SIZE,
                "num_attention_heads": HEADS,
                "num_key_value_heads": GROUPS,
                "num_hidden_layers": LAYERS,
                "inputs": {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"},
                "outputs": {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
            },
        },
        "search": {"max_length": 24, "past_present_share_buffer": True, "top_k": 50, "top_p": 1.0, **search},
    }


def write(folder: Path, network: onnx.ModelProto, about: dict[str, Any]) -> Path:
    """A folder with a network and its configuration."""
    folder.mkdir(exist_ok=True)
    onnx.save(network, folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(about))
    return folder


def write_tokenizer(folder: Path) -> None:
    """``tokenizer.json``, by the package tokenizers: a word is a token."""
    import tokenizers

    words = {word: number for number, word in enumerate(WORDS)}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    own.add_special_tokens(["<s>", "</s>", "<pad>"])
    own.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    own.save(str(folder / "tokenizer.json"))
    about = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": CHAT}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
