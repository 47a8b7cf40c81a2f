"""The models of ``tvmdml bench --models``: exported networks with made-up weights, and files of packages that are installed."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tvmdml.proof.bench import networks
from tvmdml.proof.bench.networks.table import NONE, TABLE, ExportForm, NetworkInput, arrays
from tvmdml.system.disk import stores

BATCHES = (1, 8)
_SPEECH = {"input": NetworkInput(("batch", 576)), "state": NetworkInput((2, "batch", 128))}
_RATE = {"sr": NetworkInput((), 16001, 16000)}


class ModelSource(NamedTuple):
    """A model with sizes."""

    name: str
    batch: int
    file: str
    """Of an exported network: its name in the folder of files. Of a package: its path below the package."""
    inputs: Mapping[str, NetworkInput]
    sizes: Mapping[str, int]
    """The values of the sizes in the inputs' shapes."""
    network: str = ""
    """The name in the table of networks; empty for a package's model."""
    form: ExportForm = ExportForm.RAW
    package: str = ""
    turns: int = 1
    """How many runs of a decoder follow each other: each adds its words to the past of the next."""

    @property
    def title(self) -> str:
        """For tables."""
        return f"{self.name}, batch {self.batch}"

    @property
    def words(self) -> int:
        """How many words all turns of a decoder add to each text; 0 for other models."""
        return self.turns * self.sizes["rows"] if self.network and TABLE[self.network].continues else 0

    def arrays(self) -> dict[str, Any]:
        """Random inputs, the same each time."""
        return arrays(self.inputs, self.sizes)

    def lacks(self) -> str:
        """The package that is missing; empty if there is none."""
        needed = (self.package,) if self.package else ("torch", *(("onnxruntime",) if self.form is not ExportForm.RAW else ()))
        return next((name for name in needed if importlib.util.find_spec(name) is None), "")

    def path(self, folder: Path) -> Path:
        """The file; an exported network gets it now, if it is not in the folder."""
        if self.package:
            found = importlib.util.find_spec(self.package)
            return Path(str(found and found.origin)).parent / self.file
        path = folder / self.file
        if not path.exists():
            from tvmdml.proof.bench.networks import exporting

            exporting.export(self.network, TABLE[self.network].full, self.form, path)
        return path


class _Packaged(NamedTuple):
    """A model of a package."""

    package: str
    file: str
    inputs: Mapping[str, NetworkInput]
    batches: tuple[int, ...] = BATCHES


_PACKAGED: Mapping[str, _Packaged] = {
    "PP-OCR detection": _Packaged(
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", {"x": NetworkInput(("batch", 3, 640, 640))}, (1,)
    ),
    "PP-OCR recognition": _Packaged(
        "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {"x": NetworkInput(("batch", 3, 48, 320))}
    ),
    "PP-OCR direction": _Packaged(
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": NetworkInput(("batch", 3, 48, 192))}
    ),
    "nudenet": _Packaged("nudenet", "320n.onnx", {"images": NetworkInput(("batch", 3, 320, 320))}),
    "magika": _Packaged("magika", "models/standard_v3_3/model.onnx", {"bytes": NetworkInput(("batch", 2048), 257, 0, "int32")}),
    "silero-vad half": _Packaged("silero_vad", "data/silero_vad_half.onnx", _SPEECH),
    "silero-vad op18": _Packaged("silero_vad", "data/silero_vad_op18_ifless.onnx", _SPEECH | _RATE),
    "silero-vad 16k": _Packaged("silero_vad", "data/silero_vad_openvino_16k.onnx", _SPEECH, (1,)),
}
_TURNS = 16
_DECODING = (
    (", a word", NONE, 1),
    (f", {_TURNS} words in turn", NONE, _TURNS),
    (", 128 words at once", {"rows": 128, "past": 0}, 1),
)
_VARIANTS: Mapping[str, tuple[tuple[str, Mapping[str, int], int], ...]] = {"GPT-2": _DECODING, "Llama": _DECODING}
"""Networks that run with several kinds of inputs: what is said of each, sizes, and turns."""


def exported() -> Path:
    """The folder of exported networks, in the cache.

    Raises:
        OSError: it cannot be made.
    """
    return stores.room(stores.DiskStore().cache, f"networks-{_version()}")


def _version() -> str:
    """A digest of the code that makes networks: files that other code made are not used."""
    digest = hashlib.sha256()
    for source in sorted(Path(networks.__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:8]


def sources() -> Iterator[ModelSource]:
    """All models, in the order of the report."""
    for name, network in TABLE.items():
        taken = network.taken(network.full)
        for form in network.forms:
            full = f"{name} {form.value}".strip()
            file = f"{full.replace('/', '-')}.onnx"
            for variant, sizes, turns in _VARIANTS.get(name, (("", NONE, 1),)):
                for batch in BATCHES if "batch" in network.open else BATCHES[:1]:
                    values = {**network.full.sizes, **sizes, "batch": batch}
                    yield ModelSource(full + variant, batch, file, taken, values, name, form, turns=turns)
    for name, one in _PACKAGED.items():
        for batch in one.batches:
            yield ModelSource(name, batch, one.file, one.inputs, {"batch": batch}, package=one.package)
