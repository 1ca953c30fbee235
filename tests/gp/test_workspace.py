"""Buffers that are used again: theirs alone while held, back when dropped, whenever that is."""

import threading
import weakref

import torch

from dspp.gp.workspace import Lease, release
from experiments.complexity import rise_mb

LIKE = torch.zeros(1, dtype=torch.float64)


def test_a_buffer_is_used_again_once_nobody_holds_it() -> None:
    first, second = Lease((7, 11), LIKE), Lease((7, 11), LIKE)
    places = {first.tensor.data_ptr(), second.tensor.data_ptr()}
    assert len(places) == 2
    del first, second
    again = [Lease((11, 7), LIKE), Lease((77,), LIKE)]
    assert {lease.tensor.data_ptr() for lease in again} == places
    assert again[0].tensor.shape == (11, 7)


def test_free_buffers_can_be_given_back_and_held_ones_cannot() -> None:
    held, dropped = Lease((1_000_003,), LIKE), Lease((1_000_003,), LIKE)
    held.tensor.fill_(7)
    gone = weakref.ref(dropped._buffer)
    del dropped
    assert gone() is not None
    release()
    assert gone() is None
    assert held.tensor.eq(7).all()


def test_memory_that_waits_in_the_pool_counts_when_a_computation_takes_it() -> None:
    size = 8_000_000  # numbers, 61 MB

    def take() -> None:
        Lease((size,), LIKE).tensor.fill_(1.0)

    take()  # leaves its buffer in the pool
    assert 55 < rise_mb(take) < 75
    assert rise_mb(lambda: None) < 5


def test_a_lease_that_is_collected_while_a_buffer_is_looked_for_does_not_hang() -> None:
    Lease((1000,), LIKE)  # leaves a buffer to look at
    held = [Lease((13,), LIKE)]

    class Collecting:
        """Like a tensor; the collector runs when it is looked at."""

        device = LIKE.device

        @property
        def dtype(self) -> torch.dtype:
            held.clear()
            return LIKE.dtype

    made: list[Lease] = []
    thread = threading.Thread(target=lambda: made.append(Lease((17,), Collecting())), daemon=True)
    thread.start()
    thread.join(10)
    assert made
    assert not held
