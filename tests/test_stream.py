"""The noise stream: no number twice, no other process, no copy, no key to be seen."""

import contextlib
import copy
import itertools
import os
import pickle
import threading
import warnings

import numpy as np
import pytest
from cases import for_each

from dpkern import NoiseStream, _core, kernels
from dpkern.reference import noise
from dpkern.stream import Purpose


def test_kind_tells_where_the_key_comes_from():
    assert NoiseStream().kind == "os"
    assert NoiseStream(0).kind == "seeded: not private"


def test_streams_from_the_operating_system_differ():
    keys = {bytes(NoiseStream().release().key) for _ in range(20)}
    assert len(keys) == 20


def test_seeded_streams_repeat_and_seeds_differ():
    first, second = NoiseStream(3), NoiseStream(3)
    for _ in range(4):
        assert first.release().key == second.release().key
    seeds = [0, 1, 2, 255, 256, 1 << 64, 1 << 300]
    assert len({bytes(NoiseStream(s).release().key) for s in seeds}) == len(seeds)


def test_subkey_is_the_block_of_run_key_and_number():
    stream = NoiseStream(11)
    run_key = bytes(stream._key)
    for number in range(3):
        release = stream.release()
        expected = noise.chacha20_blocks(run_key, [number], noise.KEY_NONCE)[0, :8]
        assert release.number == number
        assert bytes(release.key) == expected.astype("<u4").tobytes()


def test_keys_of_many_releases_are_those_of_one_after_the_other(isa):
    """From every place among sixteen blocks, and beyond 2^32 releases."""
    for start in (*range(17), (1 << 32) - 3, (1 << 64) - 40):
        one, many = NoiseStream(5), NoiseStream(5)
        one._next = many._next = start
        blocks = noise.chacha20_blocks(bytes(many._key), range(start, start + 39), noise.KEY_NONCE)
        expected = [block[:8].astype("<u4").tobytes() for block in blocks]
        assert [bytes(one.release().key) for _ in range(39)] == expected
        keys = b"".join(bytes(many.releases(count).keys) for count in (1, 2, 16, 20))
        assert [keys[i : i + 32] for i in range(0, len(keys), 32)] == expected


def test_two_threads_in_one_release_do_not_get_the_same_key(monkeypatch):
    """The first thread waits in the middle of its release until the second one is as far, or
    long enough to be sure that it is kept out."""
    stream, keys, meeting = NoiseStream(1), [], threading.Barrier(2)
    block = _core.chacha20_keys

    def slow(*arguments):
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=0.2)
        block(*arguments)

    def take():
        release = stream.release()
        keys.append((release.number, bytes(release.key)))

    monkeypatch.setattr(_core, "chacha20_keys", slow)
    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in keys) == [0, 1]
    assert len({key for _, key in keys}) == 2


@for_each("seed", [-1, 1.0, "1", True, b"1"])
def test_bad_seeds_are_refused(seed):
    with pytest.raises((TypeError, ValueError), match="seed must be"):
        NoiseStream(seed)


def test_numbers_only_increase_across_threads():
    stream, seen = NoiseStream(1), [[] for _ in range(6)]

    def take(numbers):
        for _ in range(300):
            numbers.append(stream.release().number)

    threads = [threading.Thread(target=take, args=(numbers,)) for numbers in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(numbers == sorted(numbers) for numbers in seen)
    assert sorted(itertools.chain(*seen)) == list(range(1800))


def test_numbers_end_with_an_error():
    stream = NoiseStream(1)
    stream._next = (1 << 64) - 1
    assert stream.release().number == (1 << 64) - 1
    with pytest.raises(OverflowError, match="2\\^64"):
        stream.release()


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("same_number", [False, True])
def test_forked_child_is_refused_and_may_make_its_own(monkeypatch, same_number):
    if same_number:  # as the first process of a container and its child in a new namespace
        monkeypatch.setattr(os, "getpid", lambda: 1)
    stream = NoiseStream()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            stream.release()
            os.write(writing, b"released")
        except RuntimeError as error:
            os.write(writing, str(error).encode())
            NoiseStream().release()
            os.write(writing, b"; own stream works")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        message = pipe.read()
    assert "another process" in message
    assert message.endswith("own stream works")
    assert stream.release().number == 0


@for_each("secret", [NoiseStream, lambda: NoiseStream().release()])
@for_each("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_streams_and_release_keys_are_not_copied_or_pickled(secret, duplicate):
    with pytest.raises(TypeError, match="pickled or copied"):
        duplicate(secret())


def test_representations_do_not_show_the_key():
    stream = NoiseStream(5)
    release = stream.release()
    for secret in (stream, release):
        text = repr(secret) + str(secret)
        assert secret._key.hex() not in text
        assert repr(bytes(secret._key))[2:-1] not in text


def test_wipe_overwrites_the_key_and_ends_the_stream():
    stream = NoiseStream(5)
    release = stream.release()
    memory = stream._key, release._key
    assert all(any(key) for key in memory)
    stream.wipe()
    release.wipe()
    assert not any(any(key) for key in memory)
    with pytest.raises(RuntimeError, match="wiped"):
        stream.release()
    with pytest.raises(RuntimeError, match="wiped"):
        bytes(release.key)
    stream.wipe()


def test_with_block_wipes():
    with NoiseStream() as stream:
        memory = stream._key
        stream.release()
    assert not any(memory)


def test_purposes_leave_the_kernels_bit_free():
    values = [int(purpose) for purpose in Purpose]
    assert len(set(values)) == len(values)
    assert all(0 < value < noise.EXTRA for value in values)
    assert noise.KEY_NONCE >> 48 not in values


def test_kernel_takes_one_release_and_wipes_its_key():
    stream = NoiseStream(9)
    first = kernels.gaussian(1000, 1.0, rng=stream)
    assert stream.release().number == 1
    kernels.goe(1, 3, 1.0, rng=stream)
    assert stream.release().number == 3
    assert np.array_equal(first, kernels.gaussian(1000, 1.0, rng=9))
    stream.wipe()
    with pytest.raises(RuntimeError, match="wiped"):
        kernels.gaussian(3, 1.0, rng=stream)


def test_words_are_those_of_the_release_the_purpose_and_the_index():
    with NoiseStream(3) as stream:
        first, second = stream.release(), stream.release()
        long = first.words(Purpose.WALK, 300)
        np.testing.assert_array_equal(long, noise.stream_words(first.key, Purpose.WALK << 48, 300))
        np.testing.assert_array_equal(first.words(Purpose.WALK, 7), long[:7])
        assert first.words(Purpose.WALK, 0).shape == (0,)
        others = [
            second.words(Purpose.WALK, 300),
            first.words(Purpose.SAMPLING, 300),
            first.words(Purpose.WALK, 300, 1),
        ]
        assert len(set(np.concatenate([long, *others]).tolist())) == 1200
