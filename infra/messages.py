"""Messages between the launcher and its own ranks: pickled, with tensors as plain bytes.

The pickler that multiprocessing uses hands tensors over in shared memory, by file descriptors that must
outlive the sender. Here a tensor becomes its bytes, so a message stands alone once it is written. Both
ends are processes of one run; nothing from outside it is ever unpickled.
"""

import io
import pickle
import sys
from typing import Any


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        flat = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        parameter = type(obj) is torch.nn.Parameter
        return _tensor, (bytearray(flat.numpy()), obj.dtype, tuple(obj.shape), obj.requires_grad, parameter)


def _tensor(data: bytearray, dtype: Any, shape: tuple[int, ...], requires_grad: bool, parameter: bool) -> Any:
    import torch

    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


def dumps(message: Any) -> bytes:
    """Bytes of `message`; tensors in it arrive on the CPU, as leaves, holding only what they show."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(message)
    return stream.getvalue()


def loads(data: bytes) -> Any:
    return pickle.loads(data)
