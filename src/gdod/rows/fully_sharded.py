"""Models in FSDP2 (`torch.distributed.fsdp.fully_shard`), of whose parameters each rank keeps a part.

For a forward pass FSDP2 gathers the parameters of a module and puts whole ones in the place of the parts; those are the
leaves of the graph. Here they stay whole while backward passes run, in which FSDP2 would free them after the first, and
their gradients, which are those of the whole batch on every rank, are cut into parts.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from gdod.errors import InputError
from gdod.rows.grads import accumulate_quietly

Gradients = Sequence[tuple[Tensor, Tensor]]


def _groups() -> Iterator[Any]:
    """Yield the groups of parameters that FSDP2 gathers together, in the order in which they were made."""
    if "torch.distributed.fsdp" not in sys.modules or "torch.distributed._composable_state" not in sys.modules:
        return
    for reference in list(sys.modules["torch.distributed._composable_state"]._module_state_mapping.values()):
        yield from getattr(reference(), "_fsdp_param_groups", ())


def _parts(parameters: Iterable[Tensor]) -> dict[int, tuple[Any, Any]]:
    """Return the group and FSDP2's own description of each of the parameters that is whole for now, by its id."""
    groups = list(_groups())
    if not groups:
        return {}
    wanted = set(map(id, parameters))
    return {
        id(whole): (group, described)
        for group in groups
        for described in group.fsdp_params
        if id(whole := getattr(described, "_unsharded_param", None)) in wanted
    }


def whole_of(parameters: Sequence[Tensor] | None) -> Sequence[Tensor] | None:
    """Return the parameters with the whole ones, which the graph has, in place of parts."""
    if not parameters:
        return parameters
    whole = {
        id(described.sharded_param): described._unsharded_param
        for group in _groups()
        for described in group.fsdp_params
        if hasattr(described, "_unsharded_param")
    }
    return [whole.get(id(parameter), parameter) for parameter in parameters]


@contextmanager
def kept_whole(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Gather the parameters that are not whole any more, and keep them whole while backward passes run.

    All ranks have to call it, since they gather together; it sends nothing if all are whole.
    """
    groups = list({id(group): group for group, _ in _parts(parameters).values()}.values())
    freed = [group.reshard_after_backward for group in groups]
    for group in groups:
        group.unshard()
        group.wait_for_unshard()
        group.reshard_after_backward = False
    try:
        yield
    finally:
        for group, before in zip(groups, freed, strict=True):
            group.reshard_after_backward = before


def write_parts(grads: Gradients, ranks: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Add to `.grad` of each parameter in parts its part of the gradient, and return the gradients of the others.

    Then the whole parameters are freed, so that the next forward pass gathers what the optimizer has made of the parts.

    Args:
        grads: parameters and their gradients of the whole batch.
        ranks: the ranks that have the same gradients.
    """
    parts = _parts(parameter for parameter, _ in grads)
    if not parts:
        return list(grads)
    from torch.distributed.tensor import distribute_tensor

    for _, described in parts.values():
        _check_mesh(described.sharded_param, ranks)
    others = []
    for parameter, grad in grads:
        if id(parameter) not in parts:
            others.append((parameter, grad))
            continue
        part = parts[id(parameter)][1].sharded_param
        whole = (grad.to_dense() if grad.is_sparse else grad).to(part.dtype)
        # Every rank takes its part of what it has: nothing is sent.
        own = distribute_tensor(whole, part.device_mesh, part.placements, src_data_rank=None)
        accumulate_quietly(part, own)
    for group in {id(group): group for group, _ in parts.values()}.values():
        group.reshard()
    return others


def _check_mesh(part: Any, ranks: Sequence[int]) -> None:
    mesh = part.device_mesh.mesh.flatten().tolist()
    if not set(mesh) <= set(ranks):
        raise InputError(
            f"a parameter of shape {tuple(part.shape)} is in parts on ranks {mesh} (fully_shard), and gdod.backward "
            f"works on {f'ranks {list(ranks)}' if ranks else 'this process alone'}; leave process_group out, so that "
            "all ranks work together, or, with a single rank, leave fully_shard out"
        )
