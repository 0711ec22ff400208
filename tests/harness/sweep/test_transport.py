import pytest
import torch

from harness.sweep.transport import pack, unpack

TENSORS = {
    "contiguous": torch.randn(2, 3),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(3, 4).t(),
    "expanded": torch.randn(3, 1).expand(3, 4),
    "a slice": torch.randn(6, 8)[1::2, 2:5],
    "one number": torch.tensor(3.5),
    "empty": torch.zeros(0, 3),
    "bfloat16": torch.randn(3).bfloat16(),
    "float64": torch.randn(3, dtype=torch.float64),
    "complex, conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "bool": torch.tensor([True, False]),
    "int64": torch.tensor([2**40]),
    "a parameter": torch.nn.Parameter(torch.randn(2)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_with_dtype_shape_and_values(name: str) -> None:
    sent = TENSORS[name]
    arrived = unpack(pack(sent))
    assert arrived.dtype == sent.dtype
    assert arrived.shape == sent.shape
    assert torch.equal(arrived, sent)


@pytest.mark.parametrize("name", ["contiguous", "channels_last", "transposed"])
def test_strides_arrive(name: str) -> None:
    assert unpack(pack(TENSORS[name])).stride() == TENSORS[name].stride()


def test_what_arrives_can_be_written_to() -> None:
    flat, *rest = pack(torch.zeros(3))
    flat.flags.writeable = False  # as the object store hands it out
    unpack((flat, *rest)).add_(1)
    assert not flat.any()
