"""Copies to the host and back: same bits in the same layout, host memory that is used again, the order of streams."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy
import pytest
import torch

from remat_cli.pytorch.memory import transfers
from remat_cli.pytorch.memory.memory import peak_of
from remat_cli.pytorch.memory.transfers import CopiesOnStreams, HostBytes, HostMemory
from tests.streams import LateCopies

CPU = torch.device("cpu")


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateCopies:
    copies = LateCopies()
    monkeypatch.setitem(transfers.COPIES, "cpu", copies)
    return copies


def there_and_back(value: torch.Tensor) -> torch.Tensor:
    host = transfers.offload(value)
    transfers.wait(host, value)
    back = transfers.prefetch(host, CPU)
    transfers.wait(host, back)
    return back


def layouts() -> Iterator[torch.Tensor]:
    numbers = torch.arange(24.0)
    yield numbers
    yield numbers.reshape(4, 6).t()
    yield numbers.reshape(2, 3, 4)[1:, ::2]
    yield numbers[3:7].expand(5, 4)
    yield numbers.to(torch.bfloat16).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    yield numbers > 11
    yield torch.complex(numbers, -numbers)
    yield numbers.reshape(4, 6)[:, :0]
    yield torch.tensor(3)


@pytest.mark.parametrize("value", list(layouts()), ids=lambda value: f"{tuple(value.shape)} {value.stride()}")
def test_what_comes_back_is_laid_out_as_it_was(value: torch.Tensor) -> None:
    back = there_and_back(value)
    assert torch.equal(back, value)
    assert (back.stride(), back.storage_offset()) == (value.stride(), value.storage_offset())
    assert back.untyped_storage().nbytes() == value.untyped_storage().nbytes()
    assert back.untyped_storage().data_ptr() != value.untyped_storage().data_ptr() or not value.numel()


def test_values_in_the_same_memory_come_back_in_the_same_memory() -> None:
    value = torch.arange(6.0)
    other = value[2:].view(2, 2)
    host = transfers.offload(value)
    other_host = transfers.in_memory_of(host, other)
    back = transfers.prefetch(host, CPU)
    other_back = transfers.in_memory_of(back, other_host)
    assert torch.equal(other_back, other)
    other_back.zero_()
    assert torch.equal(back, torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0]))


def test_host_copies_do_not_count_as_memory_of_the_device() -> None:
    value = torch.ones(1000)
    hosts: list[torch.Tensor] = []
    assert peak_of(lambda: hosts.append(transfers.offload(value)), "cpu") == 0
    assert peak_of(lambda: transfers.prefetch(hosts[0], CPU), "cpu") == 4000


def test_host_memory_is_used_again_when_no_tensor_is_in_it() -> None:
    made: list[HostBytes] = []

    def make(size: int) -> HostBytes:
        made.append(numpy.empty(size, numpy.uint8))
        return made[-1]

    memory = HostMemory(make)
    first, second = memory.take(100), memory.take(100)
    view = first.view(10, 10)[2:]
    del first
    gc.collect()
    third = memory.take(100)  # the first is still in use, by its view
    assert [array.nbytes for array in made] == [100, 100, 100]
    del view, second
    assert memory.take(60).numel() == 60
    assert memory.take(49).numel() == 49  # less than half of what is free
    assert [array.nbytes for array in made] == [100, 100, 100, 49]
    assert third.data_ptr() == made[2].ctypes.data


def test_step_that_ends_before_a_copy_has_come_back_keeps_its_memory(late: LateCopies) -> None:
    value = torch.ones(4)
    host = transfers.offload(value)
    transfers.wait(host, value)
    transfers.prefetch(host, CPU)  # dropped at once, as where the next op fails
    again = transfers.prefetch(host, CPU)
    transfers.wait(host, again)  # both copies are made now
    assert torch.equal(again, value)
    assert not late._arriving


def test_host_memory_is_not_overwritten_before_it_was_read(late: LateCopies) -> None:
    first = torch.ones(4)
    host = transfers.offload(first)
    transfers.wait(host, first)
    back = transfers.prefetch(host, CPU)
    address = host.data_ptr()
    del host
    other = torch.zeros(4)
    other_host = transfers.offload(other)
    assert other_host.data_ptr() == address
    transfers.wait(other_host, other)
    assert torch.equal(back, first)


class _Logged:
    """Writes down what is done with streams."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.created = 0
        self.on = "compute"

    def current_stream(self, device: torch.device) -> _LoggedStream:
        return _LoggedStream(self, "compute")

    def Stream(self, device: torch.device) -> _LoggedStream:
        self.created += 1
        return _LoggedStream(self, f"stream {self.created}")

    def stream(self, stream: _LoggedStream) -> _LoggedStream:
        return stream


class _LoggedStream:
    def __init__(self, cuda: _Logged, name: str) -> None:
        self.cuda, self.name = cuda, name

    def __enter__(self) -> None:
        self.cuda.on = self.name

    def __exit__(self, *_: object) -> None:
        self.cuda.on = "compute"

    def wait_stream(self, other: _LoggedStream) -> None:
        self.cuda.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: str) -> None:
        self.cuda.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        return f"{self.name} at {len(self.cuda.log)}"


def test_streams_wait_for_one_another() -> None:
    cuda = _Logged()

    class Copies(CopiesOnStreams):
        def start(self, target: torch.Tensor, source: torch.Tensor) -> None:
            cuda.log.append(f"copy on {cuda.on}")

        def host_memory(self, size: int) -> HostBytes:
            return numpy.empty(size, numpy.uint8)

    copies = Copies(cuda)
    host = copies.out(torch.zeros(4, dtype=torch.uint8))
    copies.wait(host, CPU)
    copies.back(host, CPU)
    copies.wait(host, CPU)
    assert cuda.log == [
        "stream 1 waits for compute",
        "copy on stream 1",
        "compute waits for stream 1 at 2",
        "stream 2 waits for compute",
        "stream 2 waits for stream 1 at 2",
        "copy on stream 2",
        "compute waits for stream 2 at 6",
    ]
