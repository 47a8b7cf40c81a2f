"""``Model``: the networks of a folder, on a target."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from tvmdml.errors import Unsupported, message, safe_repr
from tvmdml.genai.config import FILE, Config
from tvmdml.genai.hearing import MultiModalProcessor
from tvmdml.genai.lacking import FEATURES
from tvmdml.genai.names import CROSS, Feed, StateSlot, feeds, named, numbered, slots
from tvmdml.genai.refusing import FolderError, Refused
from tvmdml.onnx.model import load
from tvmdml.onnx.types import ACCURACIES
from tvmdml.targets import Target

_SENSES = ("vision", "speech", "embedding", "joiner")
"""Parts of a configuration for networks that make pictures and sounds into what a decoder reads."""


class PipelineStage(NamedTuple):
    """A network of a pipeline."""

    network: Any
    forwarded: Mapping[str, str]
    """Other names of its outputs, as which later networks read them."""
    on_prompt: bool
    on_token: bool


class Model:
    """The networks of a folder, and what its configuration says of them."""

    def __init__(
        self, config: Config | str | os.PathLike[str], *, target: str | Target | None = None, accuracy: str = ACCURACIES[0]
    ) -> None:
        """Read a folder.

        Args:
            config: the path of a folder, or a configuration.
            target: where to run, as for ``tvmdml.onnx.load``; without it, what the configuration's providers mean. A provider "dml"
                means the CPU then.
            accuracy: "file" lets products round to bytes where the file allows it, as for ``tvmdml.onnx.load``.

        Raises:
            FolderError: a file or a part of the configuration is missing or wrong.
            Unsupported: there is no way here to run such a model.
            DeviceError: this machine has no such device.
        """
        self.config = config if isinstance(config, Config) else Config(config)
        own = self.config
        self.type = str(own.model.get("type", ""))
        self.vocabulary, self.context = own.integer("vocab_size", least=1), own.integer("context_length", least=1)
        self.eos, self.pad = own.eos, own.pad
        senses = [name for name in _SENSES if isinstance(own.model.get(name), dict) and own.model[name].get("filename")]
        if senses:
            given = f"{', '.join(f'model.{name}' for name in senses)} in {FILE}"
            raise Unsupported(
                message(f"Model of type {safe_repr(self.type)}", given, "models of text", "Run its decoder by tvmdml.onnx.")
            )
        self.target, self._accuracy = own.target(target), accuracy
        self.stages = self._stages(own.decoder)
        inputs = {argument.name: argument for stage in self.stages for argument in stage.network.inputs}
        self.outputs = {argument.name: argument for stage in self.stages for argument in stage.network.outputs}
        made = {name for stage in self.stages for name in (*(a.name for a in stage.network.outputs), *stage.forwarded.values())}
        self.inputs = {name: argument for name, argument in inputs.items() if name not in made or len(self.stages) == 1}
        self.defaults = [argument.name for stage in self.stages for argument in stage.network.defaults]
        """Weights that a program may give instead, such as those of adapters."""
        self.feeds: list[Feed] = feeds(own.decoder, self.inputs)
        self.slots: list[StateSlot] = slots(own.decoder, self.inputs, list(self.outputs))
        self.room = min((slot.room for slot in self.slots if slot.room is not None), default=None)
        """The longest text, if the network says so: what is kept has this length then."""
        self.logits = named(own.decoder, "outputs", "logits", "logits")
        if self.logits not in self.outputs:
            raise FolderError(message(f"{FILE} decoder.outputs.logits", safe_repr(self.logits), ", ".join([*self.outputs][:8])))
        self._encoder()
        window = own.decoder.get("sliding_window")
        size = window.get("window_size", 0) if isinstance(window, dict) else 0
        self.window = size if isinstance(size, int) and 0 < size <= self.context else 0
        """The least length of buffers: layers that look at the last tokens only need as many."""

    def _stages(self, decoder: Mapping[str, Any]) -> list[PipelineStage]:
        """The decoder's network, or those of its pipeline."""
        pipeline = decoder.get("pipeline")
        if not pipeline:
            return [PipelineStage(self._network(decoder, "decoder.filename"), {}, on_prompt=True, on_token=True)]
        entries = pipeline if isinstance(pipeline, list) else [pipeline]
        parts = [(name, part) for entry in entries if isinstance(entry, dict) for name, part in entry.items()]
        if not all(isinstance(part, dict) for _, part in parts):
            raise FolderError(
                message(f"{FILE} decoder.pipeline", safe_repr(pipeline), "a list of objects, each with a network's name")
            )
        forwarded = {name: part.get("output_names_forwarder", {}) for name, part in parts}
        for name, names in forwarded.items():
            if not isinstance(names, dict) or not all(isinstance(other, str) for other in names.values()):
                allowed = "an object of names"
                raise FolderError(message(f"{FILE} decoder.pipeline.{name}.output_names_forwarder", safe_repr(names), allowed))
        return [
            PipelineStage(
                self._network(part, f"decoder.pipeline.{name}.filename"),
                forwarded[name],
                bool(part.get("run_on_prompt", True)),
                bool(part.get("run_on_token_gen", True)),
            )
            for name, part in parts
        ]

    def _network(self, part: Mapping[str, Any], what: str) -> Any:
        """A network that is read from its file."""
        name = part.get("filename")
        if not isinstance(name, str):
            raise FolderError(message(f"{FILE} {what}", "nothing" if name is None else safe_repr(name), "the name of a file"))
        return load(self.config.network(name, f"{FILE} {what}"), target=self.target, accuracy=self._accuracy)

    def _encoder(self) -> None:
        """The encoder, if there is one, and how its outputs become the decoder's inputs."""
        part = self.config.model.get("encoder")
        self.encoder: Any = None
        self.encoder_feeds: list[Feed] = []
        self.crossing: dict[str, str] = {}
        """The decoder's inputs that are the encoder's outputs, in each run."""
        if not isinstance(part, dict) or not part.get("filename"):
            return
        self.encoder = self._network(part, "encoder.filename")
        self.encoder_inputs = {argument.name: argument for argument in self.encoder.inputs}
        given = {argument.name for argument in self.encoder.outputs}
        self.encoder_feeds = feeds(part, {name: a for name, a in self.encoder_inputs.items() if a.dtype.kind in "iu"})
        hidden = named(part, "outputs", "hidden_states", named(part, "outputs", "encoder_outputs", "encoder_hidden_states"))
        theirs = named(self.config.decoder, "inputs", "encoder_hidden_states", "encoder_hidden_states")
        pairs = [(theirs, hidden), *((name, name) for name in self.inputs if name in given)]
        for past, past_default, present, present_default in CROSS:
            into = named(self.config.decoder, "inputs", past, past_default)
            out = named(part, "outputs", present, present_default)
            pairs += [
                (numbered(into, layer), numbered(out, layer)) for layer in range(self.config.decoder.get("num_hidden_layers", 0))
            ]
        self.crossing = {into: out for into, out in pairs if into in self.inputs and out in given}
        if not self.crossing:
            raise FolderError(
                message("the encoder's outputs", ", ".join(sorted(given)), "inputs of the decoder, by the names of " + FILE)
            )

    @property
    def device_type(self) -> str:
        """The kind of device: "CPU", "CUDA", "VULKAN"."""
        return self.target.kind.upper()

    def create_multimodal_processor(self) -> MultiModalProcessor:
        """What makes texts and sounds into Whisper's inputs.

        Raises:
            Unsupported: the model takes no sounds.
            FolderError: a file is missing or wrong.
        """
        return MultiModalProcessor(self)

    def create_streaming_processor(self) -> NoReturn:
        """Not here.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(
            message("create_streaming_processor", f"a model of type {safe_repr(self.type)}", "models of text", FEATURES)
        )

    def checked(self, tokens: Any, where: str) -> Any:
        """Tokens as int32, flat or in rows.

        Raises:
            Refused: they are no integers, or not in the vocabulary.
        """
        from tvmdml.genai.tensors import held

        array = held(tokens, where)
        if array.dtype.kind not in "iu" and array.size:
            raise Refused(message(where, f"elements of {array.dtype}", "integers"))
        wrong = array[(array < 0) | (array >= self.vocabulary)] if array.size else array
        if wrong.size:
            raise Refused(
                message(
                    where,
                    f"token {wrong.flat[0]}",
                    f"0 to {self.vocabulary - 1}",
                    f"The vocab_size of {FILE} is {self.vocabulary}.",
                )
            )
        return array.astype("int32")
