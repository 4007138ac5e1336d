"""ChaCha20: published vectors, and the stream of sixteen blocks side by side."""

import numpy as np
import pytest
from cases import for_each

from dpkern import _core
from dpkern.reference import noise

# RFC 8439: key, 32-bit counter and 96-bit nonce of its state, and the block. In the layout of
# 64-bit counter and nonce the first nonce word is the upper half of the counter.
VECTORS = {
    "2.3.2": (
        bytes(range(32)),
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "A.1 #1": (
        bytes(32),
        0,
        "00" * 12,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "A.1 #2": (
        bytes(32),
        1,
        "00" * 12,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "A.1 #3": (
        bytes(31) + b"\1",
        1,
        "00" * 12,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "A.1 #4": (
        b"\0\xff" + bytes(30),
        2,
        "00" * 12,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    "A.1 #5": (
        bytes(32),
        0,
        "00" * 11 + "02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
}


def block(key, counter, nonce):
    out = bytearray(64)
    _core.chacha20_block(key, counter, nonce, out)
    return bytes(out)


@for_each("vector", VECTORS.values(), ids=VECTORS.keys())
def test_block_is_that_of_rfc_8439(vector, isa):
    key, counter, nonce, expected = vector
    words = np.frombuffer(bytes.fromhex(nonce), dtype="<u4").tolist()
    address = counter | words[0] << 32, words[1] | words[2] << 32
    assert block(key, *address).hex() == expected
    assert noise.chacha20_blocks(key, [address[0]], address[1])[0].astype(
        "<u4"
    ).tobytes().hex() == (expected)


@for_each("chunk", [0, 3, (1 << 28) - 1, (1 << 60) - 2])
def test_chunks_hold_the_blocks_of_their_addresses(chunk, isa):
    # (1 << 28) - 1 is followed by the counters that need the upper half of the counter.
    key, nonce = bytes(range(100, 132)), 0x1234_5678_9ABC_DEF0
    words = np.empty(256, dtype=np.uint64)
    _core.chacha20_chunks(key, nonce, chunk, words)
    expected = np.empty((2, 16, 16), dtype="<u4")  # chunk, state word, block
    for c in range(2):
        for b in range(16):
            expected[c, :, b] = np.frombuffer(block(key, 16 * (chunk + c) + b, nonce), dtype="<u4")
    assert words.astype("<u8").tobytes() == expected.tobytes()


def test_stream_equals_its_reference(isa):
    key, nonce = bytes(range(50, 82)), 7 << 48 | 5
    words = np.empty(1280, dtype=np.uint64)
    _core.chacha20_chunks(key, nonce, 0, words)
    assert np.array_equal(words, noise.stream_words(key, nonce, 1280))


def test_key_of_another_length_is_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        block(bytes(31), 0, 0)
