"""The elements of tensors and arrays, compared bit by bit."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Differing(NamedTuple):
    """The first pair of elements that differ, and how many pairs do."""

    at: tuple[int, ...]
    value: Any
    other_value: Any
    total: int


def as_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The elements of a tensor in its shape; those of a dtype that NumPy has not, as their bits."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.as_subclass(torch.Tensor)  # whose methods do what they say
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16 and the like
        return tensor.view(_BITS[tensor.element_size()]).numpy()


def first_differing(
    one: npt.NDArray[Any], other: npt.NDArray[Any], dtype: torch.dtype | None = None
) -> Differing | None:
    """Compare two arrays of the same dtype, not of objects, and shape. NaN equals NaN.

    ``dtype`` is that of the tensors whose elements they hold, by `as_array`.
    """
    if not one.size or not one.dtype.itemsize:
        return None
    flat, other_flat = (np.ascontiguousarray(array).reshape(-1) for array in (one, other))
    raw, other_raw = (it.view(np.uint8).reshape(one.size, -1) for it in (flat, other_flat))
    (differing,) = np.nonzero((raw != other_raw).any(axis=1))
    values, other_values = (_numbers(it[differing], dtype) for it in (flat, other_flat))
    with np.errstate(all="ignore"):
        same = (values != values) & (other_values != other_values)  # NaN of any bits
        if values.dtype.char in "gG":  # long doubles are padded, with anything
            same |= values == other_values
    differing, values, other_values = (it[~same] for it in (differing, values, other_values))
    if not differing.size:
        return None
    index = tuple(int(number) for number in np.unravel_index(differing[0], one.shape))
    return Differing(index, values[0].item(), other_values[0].item(), int(differing.size))


def _numbers(array: npt.NDArray[Any], dtype: torch.dtype | None) -> npt.NDArray[Any]:
    if dtype is None or not dtype.is_floating_point or array.dtype.kind == "f":
        return array
    return torch.from_numpy(array).view(dtype).double().numpy()
