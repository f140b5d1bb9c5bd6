"""A rank's part of a parameter as a DTensor, for saving and loading under any layout.

Built at save and load only; training never sees one. Padding rows stay behind, so files hold logical tensors.
"""

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from common.layout import Layout
from common.parameters import Facts


def as_dtensor(local: Tensor, facts: Facts, layout: Layout) -> Tensor:
    """`local`, this rank's stored part, without its padding, placed in the whole; a plain tensor where nothing cuts it.

    The result shares memory with `local`: loading into it fills the parameter.
    """
    first, last = facts.local_range(layout)
    real = local.narrow(facts.dim, 0, last - first) if local.dim() else local
    if layout.grid.world == 1:
        return real
    axis = facts.axis or "tp"
    cuts, copies = (facts.cuts(layout), facts.copies(layout)) if facts.axis else (1, layout.size(axis))
    ranks = torch.tensor(layout.grid.group(layout.rank, axis)).view(cuts, copies)
    mesh = DeviceMesh(local.device.type, ranks, mesh_dim_names=("part", "copy"), _init_backend=False, _rank=layout.rank)
    stride = torch.empty(facts.shape, device="meta").stride()
    return DTensor.from_local(real, mesh, [Shard(facts.dim) if facts.axis else Replicate(), Replicate()],
                              run_check=False, shape=torch.Size(facts.shape), stride=stride)
