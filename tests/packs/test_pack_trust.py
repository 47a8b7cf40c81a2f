"""Which operations accept a pack that the keys of ``TVMDML_TRUSTED_KEYS`` have not signed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import call
from support import round_desc, tensor

pytest.importorskip("cryptography")

import tvmdml
from tvmdml import packs
from tvmdml.errors import InvalidArgument, PackError
from tvmdml.library import signing
from tvmdml.library.format import Contents, Part, write
from tvmdml.library.records import KernelRecord
from tvmdml.packs import Pack, change, look, verify

CODE = "cpu:x86-64-v3"
BLANK = ["", "  ", os.pathsep, f" {os.pathsep} {os.pathsep}"]
DESC = round_desc(tensor("float32", (3, 7, 11)))
"""No other test compiles it."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An unsigned pack; the environment has no keys and no packs."""
    monkeypatch.delenv("TVMDML_TRUSTED_KEYS", raising=False)
    monkeypatch.delenv("TVMDML_PACKS", raising=False)
    head = {"producer": {}, "targets": {CODE: CODE}, "sources": {}, "knobs": {}, "logs": []}
    write(tmp_path / "x.tvmdml", Contents(head, [Part(".so", b"\x7fELF code")], [KernelRecord("top_k", "rows", (), CODE, 0)], []))
    return tmp_path / "x.tvmdml"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """The private key; the public key is beside it."""
    signing.generate(tmp_path / "private", tmp_path / "public")
    return tmp_path / "private"


def compile_with_packs(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMDML_PACKS", str(path))
        tvmdml.compile(DESC, "cpu")


def command(*words: object) -> None:
    """Run a command in this process; its error is raised again."""
    done = call(*words)
    if done.exit_code:
        raise PackError(done.output + done.stderr) from done.exception


USES: dict[str, Callable[[Path], Any]] = {
    "load_pack": lambda path: packs.load_pack(path).close(),
    "load_pack strict": lambda path: packs.load_pack(path, strict=True).close(),
    "TVMDML_PACKS": compile_with_packs,
    "verify": verify.verify,
    "merge": lambda path: change.merge([path], path.with_name("output")),
    "split": lambda path: change.split(path, ["cpu"], path.with_name("output")),
    "pack merge": lambda path: command("pack", "merge", path, "-o", path.with_name("output")),
    "pack split": lambda path: command("pack", "split", path, "--target", "cpu", "-o", path.with_name("output")),
    "pack header": lambda path: command("pack", "header", path, "-o", path.with_name("output")),
    "pack verify": lambda path: command("pack", "verify", path),
}
"""What runs the code of a pack, or writes it to another file."""


@pytest.mark.parametrize("use", USES)
def test_an_unsigned_pack_is_refused_where_the_variable_is_set(
    path: Path, private: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    """Where it names no key, nobody is trusted."""
    none = r"TVMDML_TRUSTED_KEYS: given .* names no key.*\s*Unset TVMDML_TRUSTED_KEYS"
    unsigned = "given an unsigned pack; allowed: one signed by a key of TVMDML_TRUSTED_KEYS"
    for text, said in (*((blank, none) for blank in BLANK), (str(private.with_name("public")), unsigned)):
        monkeypatch.setenv("TVMDML_TRUSTED_KEYS", text)
        with pytest.raises((InvalidArgument, PackError), match=said):
            USES[use](path)
    assert not path.with_name("output").exists()


def test_one_untrusted_pack_among_trusted_ones_is_not_merged(path: Path, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMDML_TRUSTED_KEYS", str(private.with_name("public")))
    signed = path.with_name("signed")
    signed.write_bytes(path.read_bytes())
    signing.sign(signed, private)
    output = path.with_name("output")
    change.merge([signed, signed], output)
    merged = output.read_bytes()
    with pytest.raises(PackError, match=r"x\.tvmdml: given an unsigned pack"):
        change.merge([signed, path], output)
    assert output.read_bytes() == merged
    change.split(signed, [CODE], output)
    with pytest.raises(PackError, match="output: given an unsigned pack"):
        packs.load_pack(output)


def test_an_unsigned_pack_can_be_looked_at_and_signed(path: Path, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of these runs or copies its code to another pack."""
    monkeypatch.setenv("TVMDML_TRUSTED_KEYS", str(private.with_name("public")))
    assert look.summary(Pack(path))["signers"] == []
    command("pack", "inspect", path)
    command("pack", "diff", path, path)
    signing.sign(path, private)
    packs.load_pack(path).close()


def test_signatures_are_checked_before_the_index_is_read(path: Path, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    with pytest.raises(PackError, match="the checksum of its index does not match"):
        packs.load_pack(path)
    monkeypatch.setenv("TVMDML_TRUSTED_KEYS", str(private.with_name("public")))
    with pytest.raises(PackError, match="given an unsigned pack"):
        packs.load_pack(path)


def test_keys_that_are_set_later_hold_for_packs_of_the_environment(
    path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_with_packs(path)
    monkeypatch.setenv("TVMDML_TRUSTED_KEYS", str(private.with_name("public")))
    other = round_desc(tensor("float32", (5, 7, 13)))
    monkeypatch.setenv("TVMDML_PACKS", str(path))
    with pytest.raises(PackError, match=r"TVMDML_PACKS: .*given an unsigned pack"):
        tvmdml.compile(other, "cpu")
