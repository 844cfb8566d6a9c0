"""The two encodings of the wire: JSON for everybody, MessagePack for arrays and bytes.

MessagePack carries an array as its raw buffer with dtype and shape, and gives it back as a view of the
frame it came in, without a copy. JSON carries arrays as nested lists.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel

__all__ = ["BY_NAME", "JSON", "MSGPACK", "Format", "Unencodable"]

T = TypeVar("T")

ARRAY = 1
"""The extension code of an array: `[dtype, shape]` in MessagePack, then the buffer."""

JSON_OBJECT = ord("{")
MSGPACK_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
"""The first bytes of mappings in MessagePack: of up to 15 items, and of more."""

READ_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What reading a frame of either format may raise."""


class Unencodable(TypeError):
    """A value that neither format knows."""


class Format(msgspec.Struct, frozen=True):
    """One encoding. `write` takes plain values and `msgspec.Raw` pieces already in this format."""

    name: str
    is_binary: bool
    write: Callable[[Any], bytes]
    read: Callable[[bytes | str], Any]
    reader: Callable[[Any], Any]
    """`reader(type)` gives a decoder of that type."""

    def is_object(self, data: bytes) -> bool:
        """Whether encoded data is an object, that is a mapping: its first byte says so in both formats."""
        first = data[0] if data else 0
        return first in MSGPACK_MAPS if self.is_binary else first == JSON_OBJECT


def _plain(value: Any) -> Any:
    """What msgspec does not know by itself, as something that it does."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if _is_array(value):
        return _array_out(value)
    for convert in ("tolist", "item"):  # of array libraries, as in JSON
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise Unencodable(f"Unable to serialize unknown type: {type(value)}")


def _is_array(value: Any) -> bool:
    """Whether it has a buffer whose dtype one word tells. Records (`V`) have names, and travel as lists."""
    return hasattr(value, "__array_interface__") and getattr(value, "ndim", 0) > 0 and value.dtype.kind != "V"


def _array_out(array: Any) -> msgspec.msgpack.Ext:
    if array.dtype.hasobject:
        raise Unencodable("an array of objects has no buffer to send")
    if not array.flags.c_contiguous:
        array = array.copy()
    head = msgspec.msgpack.encode([array.dtype.str, array.shape])
    return msgspec.msgpack.Ext(ARRAY, b"%b%b%b" % (len(head).to_bytes(2, "big"), head, array.tobytes()))


def _array_in(code: int, data: memoryview) -> Any:
    """An array over the buffer it came in."""
    if code != ARRAY:
        raise msgspec.DecodeError(f"extension {code} is not one of ours")
    length = int.from_bytes(data[:2], "big")
    dtype, shape = msgspec.msgpack.decode(data[2 : 2 + length], type=tuple[str, list[int]])
    try:
        import numpy
    except ImportError:
        raise msgspec.DecodeError("an array, and numpy is not installed here: install it") from None
    try:
        return numpy.frombuffer(data[2 + length :], dtype=dtype).reshape(shape)
    except (TypeError, ValueError) as error:
        raise msgspec.DecodeError(f"an array of {dtype} and shape {shape}: {error}") from None


_packer = msgspec.msgpack.Encoder(enc_hook=_plain)
_unpacker = msgspec.msgpack.Decoder(ext_hook=_array_in)


def _unpack(frame: bytes | str) -> Any:
    return _unpacker.decode(frame.encode() if isinstance(frame, str) else frame)


def _unpacker_of(type: Any) -> Any:
    return msgspec.msgpack.Decoder(type, ext_hook=_array_in)


JSON = Format("json", False, msgspec.json.encode, msgspec.json.decode, msgspec.json.Decoder)
MSGPACK = Format("msgpack", True, _packer.encode, _unpack, _unpacker_of)
BY_NAME = {format.name: format for format in (JSON, MSGPACK)}
