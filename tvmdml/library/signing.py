"""Keys and signatures of packs, and whose packs this process trusts.

A pack is native code, and runs with all rights of the process that loads it. Anybody can compute its checksums, so they do not say
whether it may be loaded; a signature says who vouches for it. Keys are Ed25519 keys. The signed message is a fixed prefix, which
separates it from other uses of the key, followed by the header of the pack. The header has the checksum of the index, and the index
has the checksums of the parts, so the signature covers the whole pack.

If ``TVMDML_TRUSTED_KEYS`` is set, packs are loaded, merged and split only if one of its keys has signed them. Keys and signatures
need the package ``cryptography``, which the extra ``sign`` installs.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import itertools
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvmdml.errors import InvalidArgument, PackError, message
from tvmdml.system import installing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    from tvmdml.library.format import Pack

VARIABLE = "TVMDML_TRUSTED_KEYS"
_PREFIX = b"tvmdml pack 1\n"
_KEY_BYTES = 32
_PEM_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""The bytes before the key itself in the base64 of a PEM file."""
_MOST_BYTES = 1 << 16
"""The size limit of key files."""
_PUBLIC = "an Ed25519 public key: a PEM or OpenSSH file, or base64 of its 32 bytes"
_PRIVATE = "an Ed25519 private key in a PEM file, and its password where it has one"

_Paths = str | os.PathLike[str]


def generate(private: _Paths, public: _Paths, password: str | None = None) -> str:
    """Make a key pair in two new PEM files. Only the owner can read the file of the private key.

    Args:
        private: the file for the private key, which signs.
        public: the file for the public key, for those who load packs.
        password: encrypts the private key.

    Returns:
        The public key, as ``signers`` returns it.

    Raises:
        InvalidArgument: a file already exists, or cannot be written.
        PackError: ``cryptography`` is not installed.
    """
    serialization, ed25519 = _cryptography("generate")
    key = ed25519.Ed25519PrivateKey.generate()
    locked = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(_password(password))
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, locked)
    shared = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    _create(private, secret, 0o600)
    try:
        _create(public, shared, 0o644)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(private)
        raise
    return _name(key.public_key())


def sign(path: _Paths, key: _Paths, password: str | None = None) -> str:
    """Add the signature of a key to a pack, or replace the one that the key made before. Nothing else in the pack changes.

    Args:
        path: the pack. Every part and record is read and checked before it is signed.
        key: a PEM file with the private key.
        password: the password of the private key.

    Returns:
        The public key, as ``signers`` returns it.

    Raises:
        InvalidArgument: the key cannot be read, or the password is wrong.
        PackError: the pack is damaged, or cannot be written; or ``cryptography`` is not installed.
    """
    from tvmdml.library import files
    from tvmdml.library import format as container

    secret = _private_key(key, password)
    name = _name(secret.public_key())
    with contextlib.closing(container.Pack(path)) as pack:
        for number in range(pack.part_count):
            for _ in pack.unpacked(number):
                pass
        for _ in pack.records():
            pass
        signatures = {**dict(pack.signatures), base64.b64decode(name): secret.sign(_PREFIX + pack.header)}
        if len(signatures) > container.MAX_SIGNATURES:
            raise pack.error(f"{len(signatures)} signatures", f"up to {container.MAX_SIGNATURES}")
        written = (container.signature(*one) for one in signatures.items())
        try:
            files.replace(path, itertools.chain(pack.unsigned(), written))
        except OSError as error:
            raise PackError(f"{path}: cannot be written: {error.strerror or error}.") from None
    return name


def signers(pack: Pack) -> tuple[str, ...]:
    """The public keys, in base64, that have signed a pack. Every signature is verified.

    Raises:
        PackError: a signature is not valid; or the pack has signatures, and ``cryptography`` is not installed.
    """
    if not pack.signatures:
        return ()
    _, ed25519 = _cryptography(str(pack.path))
    from cryptography.exceptions import InvalidSignature

    for public, signature in pack.signatures:
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, _PREFIX + pack.header)
        except (InvalidSignature, ValueError):
            raise pack.error(f"a signature of {_encoded(public)} that is not valid", "valid signatures", "Do not use it.") from None
    return tuple(_encoded(public) for public, _ in pack.signatures)


def is_signed_by(pack: Pack, key: _Paths) -> bool:
    """Whether a pack has a signature of the public key in this file.

    Raises:
        InvalidArgument: the key cannot be read.
        PackError: as ``signers``.
    """
    return _name(_public_key(key, str(key))) in signers(pack)


def trusted_keys() -> frozenset[str] | None:
    """The public keys that ``TVMDML_TRUSTED_KEYS`` names, in base64; ``None`` if the variable is not set.

    The separator is that of ``PATH``. Each entry is the path of a public key in PEM or OpenSSH format, or the base64 of its 32
    bytes. A variable that is set and names no key is an error: a blank value, such as a script with an empty variable would give
    it, must not mean that every pack is trusted.

    Raises:
        InvalidArgument: the variable is set and names no key; or a key cannot be read, though another one could be.
        PackError: ``cryptography`` is not installed, and an entry is a file.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    found = frozenset(_trusted(entry) for entry in map(str.strip, text.split(os.pathsep)) if entry)
    if not found:
        given = f"{text!r}, which is set and names no key, so that no pack is trusted"
        advice = f"Unset {VARIABLE} to load packs of anybody."
        raise InvalidArgument(message(VARIABLE, given, f"keys, with {os.pathsep!r} between them: each {_PUBLIC}", advice))
    return found


def check(pack: Pack) -> None:
    """Refuse a pack that is not trusted: if ``TVMDML_TRUSTED_KEYS`` is set, one of its keys must have signed the pack.

    Only the header and the signatures are read, so ``Pack`` can call this before it reads the index.

    Raises:
        InvalidArgument: as ``trusted_keys``.
        PackError: no trusted key has signed it; a signature is not valid; or ``cryptography`` is not installed.
    """
    trusted = trusted_keys()
    if trusted is None:
        return
    _cryptography(str(pack.path))
    found = signers(pack)
    if trusted.isdisjoint(found):
        given = f"a pack signed by {', '.join(found)}" if found else "an unsigned pack"
        advice = f"Add its signer's key to {VARIABLE} if you trust it."
        raise pack.error(given, f"one signed by a key of {VARIABLE}", advice if found else "`tvmdml pack sign` signs it.")


# -- Keys ---------------------------------------------------------------------------------------------------------


def _cryptography(where: str) -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        text = f"{where}: keys and signatures need the package cryptography. {installing.command('sign')} installs it."
        raise PackError(text) from error
    return serialization, ed25519


def _trusted(entry: str) -> str:
    """A key of the environment variable. An entry is base64, and not a path, if it decodes to the right number of bytes."""
    with contextlib.suppress(ValueError, binascii.Error):
        raw = base64.b64decode(entry, validate=True).removeprefix(_PEM_PREFIX)
        if len(raw) == _KEY_BYTES:
            return _encoded(raw)
    return _name(_public_key(entry, f"{VARIABLE}: {entry}"))


def _public_key(path: _Paths, where: str) -> Ed25519PublicKey:
    serialization, ed25519 = _cryptography(where)
    content = _content(path, where, _PUBLIC).strip()
    is_openssh = (
        content.startswith(b"ssh-") and b"\n" not in content
    )  # with several keys in the file, it would not be clear which one is meant
    load = serialization.load_ssh_public_key if is_openssh else serialization.load_pem_public_key
    return _loaded(where, _PUBLIC, ed25519.Ed25519PublicKey, load, content)


def _private_key(path: _Paths, password: str | None) -> Ed25519PrivateKey:
    serialization, ed25519 = _cryptography("sign")
    content = _content(path, str(path), _PRIVATE)
    secret = None if password is None else _password(password)
    load = serialization.load_pem_private_key
    return _loaded(str(path), _PRIVATE, ed25519.Ed25519PrivateKey, load, content, secret)


def _loaded(where: str, allowed: str, kind: type, load: Callable[..., Any], *content: object) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = load(*content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise InvalidArgument(message(where, f"a file without such a key ({why})", allowed)) from None
    if not isinstance(key, kind):
        raise InvalidArgument(message(where, f"another kind of key ({type(key).__name__})", allowed))
    return key


def _content(path: _Paths, where: str, allowed: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe could block forever
            raise ValueError("it is not a regular file")
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidArgument(message(where, f"a file that cannot be read ({why})", allowed)) from None
    if len(content) > _MOST_BYTES:
        raise InvalidArgument(message(where, f"more than {_MOST_BYTES} bytes", allowed))
    return content


def _password(password: str) -> bytes:
    if not isinstance(password, str) or not password:
        raise InvalidArgument(message("password", "none", "one character or more"))
    return password.encode()


def _create(path: _Paths, content: bytes, mode: int) -> None:
    allowed = "a path where a new file can be"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        except BaseException:
            os.unlink(path)  # an incomplete file would prevent the next try
            raise
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        given = f"a file that cannot be written ({why})"
        raise InvalidArgument(message(str(path), given, allowed, "Keys are never overwritten.")) from None


def _name(key: Ed25519PublicKey) -> str:
    return _encoded(key.public_bytes_raw())


def _encoded(public: bytes) -> str:
    return base64.b64encode(public).decode()
