"""Signatures of packs: signing, verification, and processes that trust only some keys."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import python

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tvmdml.errors import InvalidArgument, PackError
from tvmdml.library import format as container
from tvmdml.library import signing
from tvmdml.library.format import Contents, Pack, Part, write
from tvmdml.library.records import KernelRecord

NOBODY = base64.b64encode(bytes(range(32))).decode()
PEM = serialization.Encoding.PEM
PUBLIC = serialization.PublicFormat.SubjectPublicKeyInfo


def contents(content: bytes = b"\x7fELF code") -> Contents:
    head = {"producer": {"tvmdml": "0.1"}, "targets": {}, "sources": {}, "knobs": {}, "logs": []}
    return Contents(head, [Part(".so", content)], [KernelRecord("top_k", "rows", (), "cpu:x86-64-v3", 0)], [])


class Keys:
    """Two pairs of keys, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = [signing.generate(self.private(i), self.public(i)) for i in (0, 1)]

    def private(self, number: int) -> Path:
        return self.folder / f"private{number}.pem"

    def public(self, number: int) -> Path:
        return self.folder / f"public{number}.pem"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "x.tvmdml", contents())
    return tmp_path / "x.tvmdml"


@pytest.fixture
def trust(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda *entries: monkeypatch.setenv("TVMDML_TRUSTED_KEYS", os.pathsep.join(map(str, entries)))


@pytest.fixture(autouse=True)
def nobody_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVMDML_TRUSTED_KEYS", raising=False)


def public_key(path: Path) -> ed25519.Ed25519PublicKey:
    key = serialization.load_pem_public_key(path.read_bytes())
    assert isinstance(key, ed25519.Ed25519PublicKey)
    return key


def signers(path: Path) -> tuple[str, ...]:
    pack = Pack(path)
    try:
        return signing.signers(pack)
    finally:
        pack.close()


def check(path: Path) -> None:
    pack = Pack(path)
    try:
        signing.check(pack)
    finally:
        pack.close()


# -- Keys ---------------------------------------------------------------------------------------------------------


def test_a_private_key_is_for_its_owner_alone(keys: Keys) -> None:
    assert keys.private(0).stat().st_mode & 0o777 == 0o600
    assert keys.private(0).read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert keys.public(0).read_bytes().startswith(b"-----BEGIN PUBLIC KEY-----")
    names = [base64.b64encode(key.public_bytes_raw()).decode() for key in map(public_key, map(keys.public, (0, 1)))]
    assert keys.names == names


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    for there in (private, public):
        there.write_text("precious")
        with pytest.raises(InvalidArgument, match=rf"{there.name}: given a file that cannot be written .File exists"):
            signing.generate(private, public)
        assert [one.read_text() for one in tmp_path.iterdir()] == ["precious"], "and no half of a pair is left"
        there.unlink()
    with pytest.raises(InvalidArgument, match="never overwritten"):
        signing.generate(private, private)
    with pytest.raises(InvalidArgument, match="No such file or directory"):
        signing.generate(tmp_path / "missing" / "private", public)
    assert not list(tmp_path.iterdir())


def test_an_encrypted_key_takes_its_password(tmp_path: Path, path: Path) -> None:
    name = signing.generate(tmp_path / "private", tmp_path / "public", password="wörd")
    assert b"ENCRYPTED" in (tmp_path / "private").read_bytes()
    for password in (None, "other"):
        with pytest.raises(InvalidArgument, match=r"private: given a file without such a key .*[Pp]assword"):
            signing.sign(path, tmp_path / "private", password=password)
    assert signers(path) == ()
    assert signing.sign(path, tmp_path / "private", password="wörd") == name
    assert signers(path) == (name,)
    for wrong in ("", b"bytes"):
        with pytest.raises(InvalidArgument, match="password: given none"):
            signing.sign(path, tmp_path / "private", password=wrong)  # type: ignore[arg-type]


def test_a_password_that_is_not_asked_for_is_an_error(keys: Keys, path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"[Pp]assword was given but"):
        signing.sign(path, keys.private(0), password="word")


@pytest.mark.parametrize(
    "content", [b"", b"no key", b"\xff" * 100, b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", bytes(70_000)]
)
def test_what_is_no_private_key_is_refused(tmp_path: Path, path: Path, content: bytes) -> None:
    before = path.read_bytes()
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"key: given .*; allowed: an Ed25519 private key in a PEM file"):
        signing.sign(path, tmp_path / "key")
    assert path.read_bytes() == before


def test_keys_of_other_kinds_are_refused(tmp_path: Path, keys: Keys, path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    pem = other.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key").write_bytes(pem)
    with pytest.raises(InvalidArgument, match="another kind of key"):
        signing.sign(path, tmp_path / "key")
    with pytest.raises(InvalidArgument, match="a file without such a key"):
        signing.sign(path, keys.public(0))
    for nowhere in (tmp_path, tmp_path / "missing", "nul\0byte", None):
        with pytest.raises(InvalidArgument, match="a file that cannot be read"):
            signing.sign(path, nowhere)  # type: ignore[arg-type]


# -- Signatures ---------------------------------------------------------------------------------------------------


def test_a_signature_changes_nothing_else(keys: Keys, path: Path) -> None:
    before = path.read_bytes()
    path.chmod(0o640)
    assert signers(path) == ()
    assert signing.sign(path, keys.private(0)) == keys.names[0]
    assert signers(path) == (keys.names[0],)
    signed = path.read_bytes()
    assert (signed[: len(before)], len(signed) - len(before)) == (before, 128)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_what_is_signed_is_the_header_behind_a_prefix(keys: Keys, path: Path) -> None:
    """So that another implementation can check it, and no signature made for something else is one."""
    signing.sign(path, keys.private(0))
    file = path.read_bytes()
    public = public_key(keys.public(0))
    public.verify(file[-96:-32], b"tvmdml pack 1\n" + file[:64])
    assert file[-128:-96] == public.public_bytes_raw() == base64.b64decode(keys.names[0])
    assert file[-32:] == hashlib.sha256(file[-128:-32]).digest()


def test_several_sign_and_signing_again_changes_nothing(keys: Keys, path: Path) -> None:
    for number in (0, 1):
        assert not signing.is_signed_by(Pack(path), keys.public(number))
        signing.sign(path, keys.private(number))
        assert signing.is_signed_by(Pack(path), keys.public(number))
    with pytest.raises(InvalidArgument, match=r"private0.pem: given a file without such a key .*; allowed: an Ed25519 public key"):
        signing.is_signed_by(Pack(path), keys.private(0))
    both = path.read_bytes()
    assert signers(path) == tuple(keys.names)
    for number in (0, 1):
        signing.sign(path, keys.private(number))
        assert path.read_bytes() == both


def test_a_bad_signature_of_the_same_key_is_replaced(keys: Keys, path: Path) -> None:
    path.write_bytes(path.read_bytes() + container.signature(base64.b64decode(keys.names[0]), bytes(64)))
    with pytest.raises(PackError, match=f"a signature of {keys.names[0][:20]}.* that is not valid".replace("+", r"\+")):
        signers(path)
    signing.sign(path, keys.private(0))
    assert signers(path) == (keys.names[0],)


def test_a_signature_under_another_name_is_none(keys: Keys, path: Path) -> None:
    signing.sign(path, keys.private(0))
    file = path.read_bytes()
    for claimed in (base64.b64decode(keys.names[1]), bytes(32), b"\xff" * 32):
        path.write_bytes(file[:-128] + container.signature(claimed, file[-96:-32]))
        with pytest.raises(PackError, match="that is not valid"):
            signers(path)


def test_one_bad_signature_among_good_ones_is_refused(keys: Keys, path: Path, trust: Callable[..., None]) -> None:
    signing.sign(path, keys.private(0))
    path.write_bytes(path.read_bytes() + container.signature(base64.b64decode(keys.names[1]), bytes(64)))
    trust(keys.names[0])
    with pytest.raises(PackError, match="that is not valid"):
        check(path)


def test_a_header_made_anew_is_not_signed(keys: Keys, path: Path, trust: Callable[..., None]) -> None:
    """Who changes the code can make every checksum right, and no signature."""
    signing.sign(path, keys.private(0))
    signature = path.read_bytes()[-128:]
    write(path, contents(b"\x7fELF evil"))
    path.write_bytes(path.read_bytes() + signature)
    assert Pack(path).contents().parts[0].content == b"\x7fELF evil"
    trust(keys.names[0])
    with pytest.raises(PackError, match="that is not valid"):
        check(path)


def test_a_damaged_pack_is_not_signed(keys: Keys, path: Path) -> None:
    file = bytearray(path.read_bytes())
    file[-1] ^= 1
    path.write_bytes(file)
    with pytest.raises(PackError, match="the checksum of part 0 does not match"):
        signing.sign(path, keys.private(0))
    assert path.read_bytes() == file


def test_there_is_an_end_to_signatures(keys: Keys, path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"".join(container.signature(bytes([i]) * 32, bytes(64)) for i in range(64)))
    with pytest.raises(PackError, match="given 65 signatures; allowed: up to 64"):
        signing.sign(path, keys.private(0))


def test_what_cannot_be_written_is_an_error(keys: Keys, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    before = path.read_bytes()
    with pytest.raises(PackError, match="cannot be written: No space left on device"):
        signing.sign(path, keys.private(0))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


# -- Trust --------------------------------------------------------------------------------------------------------


def test_without_the_variable_every_pack_is_trusted(path: Path) -> None:
    assert signing.trusted_keys() is None
    check(path)


def test_without_keys_nothing_is_imported(path: Path) -> None:
    code = (
        "import sys\nfrom tvmdml.library import signing\nfrom tvmdml.library.format import Pack\n"
        "signing.check(Pack(sys.argv[1]))\nassert 'cryptography' not in sys.modules"
    )
    python(code, path)


def test_one_of_several_trusted_keys_is_enough(keys: Keys, path: Path, trust: Callable[..., None]) -> None:
    signing.sign(path, keys.private(0))
    trust(NOBODY, keys.public(1), keys.public(0))
    assert signing.trusted_keys() == frozenset({NOBODY, *keys.names})
    check(path)
    trust(NOBODY, keys.public(1))
    with pytest.raises(PackError, match=r"given a pack signed by .*; allowed: one signed by a key of TVMDML_TRUSTED_KEYS. Add its"):
        check(path)
    signing.sign(path, keys.private(1))
    check(path)


def test_a_key_may_be_written_in_many_ways(keys: Keys, path: Path, tmp_path: Path, trust: Callable[..., None]) -> None:
    line = public_key(keys.public(0)).public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (tmp_path / "id.pub").write_bytes(line + b" someone@example.org\n")
    for way in (keys.names[0], keys.public(0), tmp_path / "id.pub", f" {keys.names[0]} "):
        trust(way, "")
        assert signing.trusted_keys() == frozenset({keys.names[0]})


def other_kind() -> bytes:
    return rsa.generate_private_key(65537, 2048).public_key().public_bytes(PEM, PUBLIC)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"no key",
        b"\xff" * 60,
        bytes(70_000),
        b"ssh-ed25519 AAAA",
        b"ssh-rsa AAAA x",
        other_kind,
        b"-----BEGIN PUBLIC KEY-----\n",
    ],
    ids=lambda content: str(content)[:12],
)
def test_a_key_that_cannot_be_read_is_named(
    keys: Keys, path: Path, tmp_path: Path, trust: Callable[..., None], content: bytes | Callable[[], bytes] | None
) -> None:
    """Though another one would do: to go on without it might be to go on with less than was asked for."""
    signing.sign(path, keys.private(0))
    if content is not None:
        (tmp_path / "odd.pem").write_bytes(content() if callable(content) else content)
    trust(keys.public(0), tmp_path / "odd.pem")
    for ask in (signing.trusted_keys, lambda: check(path)):
        with pytest.raises(InvalidArgument, match=r"TVMDML_TRUSTED_KEYS: .*odd.pem: given .*; allowed: an Ed25519 public key"):
            ask()


def test_a_file_that_has_no_end_is_no_key(path: Path, trust: Callable[..., None]) -> None:
    trust("/dev/zero")
    with pytest.raises(InvalidArgument, match=r"/dev/zero: given a file that cannot be read .it is not a regular file"):
        check(path)


def test_two_keys_in_a_file_are_none(keys: Keys, tmp_path: Path, trust: Callable[..., None]) -> None:
    line = public_key(keys.public(0)).public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (tmp_path / "keys").write_bytes(line + b"\n" + line + b"\n")
    trust(tmp_path / "keys")
    with pytest.raises(InvalidArgument, match="keys: given a file without such a key"):
        signing.trusted_keys()


@pytest.mark.parametrize("short", [0, 1, 2])
def test_base64_of_less_or_more_is_no_key(trust: Callable[..., None], short: int) -> None:
    trust(base64.b64encode(bytes([31, 33, 64][short])).decode())
    with pytest.raises(InvalidArgument, match="a file that cannot be read"):
        signing.trusted_keys()


def test_without_cryptography_nothing_is_let_through(keys: Keys, path: Path, trust: Callable[..., None], monkeypatch: Any) -> None:
    signing.sign(path, keys.private(0))
    trust(keys.names[0])
    check(path)
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    for ask in (
        lambda: check(path),
        lambda: signers(path),
        lambda: signing.sign(path, keys.private(0)),
        lambda: signing.generate(path.with_name("private"), path.with_name("public")),
    ):
        with pytest.raises(PackError, match=r"package cryptography. `pip install .*\[sign\]'` installs it"):
            ask()


@pytest.mark.parametrize(("mode", "changes"), [(0o644, True), (0o664, False), (0o646, False)])
def test_weights_that_others_may_change_are_copied(keys: Keys, tmp_path: Path, mode: int, changes: bool) -> None:
    """A signed pack's weights are checked once, so they are mapped only from a file that nobody else can write to."""
    weights = np.arange(1000, dtype=np.float32)
    head = {"producer": {"tvmdml": "0.1"}, "targets": {}, "sources": {}, "knobs": {}, "logs": []}
    path = tmp_path / "weights.tvmdml"
    write(path, Contents(head, [Part(".so", b"123"), Part(container.DATA, weights.tobytes())], [], []))
    signing.sign(path, keys.private(0))
    path.chmod(mode)
    pack = Pack(path)
    found = pack.mapped(1).view(np.float32)
    assert np.array_equal(found, weights)
    assert found.ctypes.data % 64 == 0
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(content.index(weights.tobytes()))
        file.write(bytes(4000))
    assert np.array_equal(found, weights) != changes
    pack.close()
