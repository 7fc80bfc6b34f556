"""The key that a text has in a table without a fixed vocabulary: farmhash's Fingerprint64 of its bytes, as an int64.

What tf.raw_ops.Fingerprint computes in the graph, for whoever asks for one key without TensorFlow. The names are those
of the algorithm's authors.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_BLOCK = 64

_Pair = tuple[int, int]


def key_of_text(text: bytes) -> int:
    value = _fingerprint(text)
    return value - 2**64 if value >= 2**63 else value


def _fingerprint(s: bytes) -> int:
    if len(s) <= 16:
        return _hash_to_16(s)
    if len(s) <= 32:
        return _hash_to_32(s)
    return _hash_to_64(s) if len(s) <= _BLOCK else _hash_longer(s)


def _fetch(s: bytes, at: int, size: int = 8) -> int:
    at = at if at >= 0 else len(s) + at
    return int.from_bytes(s[at : at + size], "little")


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return value >> bits | value << (64 - bits) & _MASK


def _mix(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _join(u: int, v: int, mul: int) -> int:
    a = _mix((u ^ v) * mul)
    return _mix((v ^ a) * mul) * mul & _MASK


def _hash_to_16(s: bytes) -> int:
    length = len(s)
    mul = _K2 + length * 2
    if length >= 8:
        a, b = _fetch(s, 0) + _K2, _fetch(s, -8)
        c = (_rotate(b, 37) * mul + a) & _MASK
        return _join(c, (_rotate(a, 25) + b) * mul & _MASK, mul)
    if length >= 4:
        return _join(length + (_fetch(s, 0, 4) << 3), _fetch(s, -4, 4), mul)
    if not length:
        return _K2
    y, z = s[0] + (s[length >> 1] << 8), length + (s[-1] << 2)
    return _mix(y * _K2 & _MASK ^ z * _K0 & _MASK) * _K2 & _MASK


def _hash_to_32(s: bytes) -> int:
    mul = _K2 + len(s) * 2
    a, b = _fetch(s, 0) * _K1, _fetch(s, 8)
    c, d = _fetch(s, -8) * mul, _fetch(s, -16) * _K2
    first = (_rotate(a + b, 43) + _rotate(c, 30) + d) & _MASK
    return _join(first, (a + _rotate(b + _K2, 18) + c) & _MASK, mul)


def _hash_to_64(s: bytes) -> int:
    mul = _K2 + len(s) * 2
    a, b = _fetch(s, 0) * _K2 & _MASK, _fetch(s, 8)
    c, d = _fetch(s, -8) * mul, _fetch(s, -16) * _K2
    y = (_rotate(a + b, 43) + _rotate(c, 30) + d) & _MASK
    z = _join(y, (a + _rotate(b + _K2, 18) + c) & _MASK, mul)
    e, f = _fetch(s, 16) * mul, _fetch(s, 24)
    g, h = (y + _fetch(s, -32)) * mul, (z + _fetch(s, -24)) * mul
    first = (_rotate(e + f, 43) + _rotate(g, 30) + h) & _MASK
    return _join(first, (e + _rotate(f + a, 18) + g) & _MASK, mul)


def _hash_longer(s: bytes) -> int:
    """64 bytes at a time, and the last 64 once more."""
    y = (81 * _K1 + 113) & _MASK
    z = _mix(y * _K2 + 113) * _K2 & _MASK
    x = (81 * _K2 + _fetch(s, 0)) & _MASK
    v, w = (0, 0), (0, 0)
    rest = (len(s) - 1) % _BLOCK
    for at in range(0, len(s) - 1 - rest, _BLOCK):
        x, y, z, v, w = _round(s, at, x, y, z, v, w, mul=_K1, factor=1)
    mul = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + rest, w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x, y, z, v, w = _round(s, len(s) - _BLOCK, x, y, z, v, w, mul=mul, factor=9)
    first = (_join(v[0], w[0], mul) + _mix(y) * _K0 + z) & _MASK
    return _join(first, (_join(v[1], w[1], mul) + x) & _MASK, mul)


def _round(
    s: bytes, at: int, x: int, y: int, z: int, v: _Pair, w: _Pair, *, mul: int, factor: int
) -> tuple[int, int, int, _Pair, _Pair]:
    x = _rotate(x + y + v[0] + _fetch(s, at + 8), 37) * mul & _MASK
    y = _rotate(y + v[1] + _fetch(s, at + 48), 42) * mul & _MASK
    x ^= w[1] * factor & _MASK
    y = (y + v[0] * factor + _fetch(s, at + 40)) & _MASK
    z = _rotate(z + w[0], 33) * mul & _MASK
    v = _weak(s, at, v[1] * mul, x + w[0])
    w = _weak(s, at + 32, z + w[1], y + _fetch(s, at + 16))
    return z, y, x, v, w


def _weak(s: bytes, at: int, a: int, b: int) -> _Pair:
    a = (a + _fetch(s, at)) & _MASK
    last = _fetch(s, at + 24)
    b = _rotate(b + a + last, 21)
    c = a
    a = (a + _fetch(s, at + 8) + _fetch(s, at + 16)) & _MASK
    b = (b + _rotate(a, 44)) & _MASK
    return (a + last) & _MASK, (b + c) & _MASK
