"""The simulated device notices what it is for: mixed devices, synchronisations and copies."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tests.simulated_device.tensor import SimulatedTensor, traffic


def test_arithmetic_and_gradients_are_those_of_the_cpu(simulated: torch.device) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 4), torch.randn(5, 3)
    layer(x).softmax(1).square().sum().backward()
    expected = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()

    layer.to(simulated)
    layer(x.to(simulated)).softmax(1).square().sum().backward()

    assert all(isinstance(parameter, SimulatedTensor) for parameter in layer.parameters())
    for parameter, grad in zip(layer.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad.cpu(), grad)


@pytest.mark.parametrize("mixing", [
    lambda on, off: on + off, lambda on, off: off @ on, lambda on, off: on[off[0].long()],
    lambda on, off: torch.cat([on, off]), lambda on, off: torch.where(off > 0, on, on),
    lambda on, off: scaled_dot_product_attention(on[None, None], off[None, None], on[None, None]),
    lambda on, off: nn.Linear(2, 2)(on), lambda on, off: on.index_add_(0, torch.tensor([0, 1]), on),
])  # fmt: skip
def test_tensors_of_the_cpu_are_refused(mixing: Callable[[Tensor, Tensor], Tensor], simulated: torch.device) -> None:
    on, off = torch.ones(2, 2, device=simulated), torch.ones(2, 2)

    with pytest.raises(RuntimeError, match=r"all tensors on one device|on the same device|same device type"):
        mixing(on, off)


def test_scalars_of_the_cpu_are_accepted_as_on_a_gpu(simulated: torch.device) -> None:
    assert (torch.ones(2, device=simulated) * torch.tensor(3.0)).cpu().tolist() == [3.0, 3.0]


def test_numpy_is_refused(simulated: torch.device) -> None:
    with pytest.raises(TypeError, match="can't convert simulated:0 device type tensor to numpy"):
        torch.ones(2, device=simulated).numpy()


@pytest.mark.parametrize("wait", [
    lambda x: x.sum().item(), lambda x: x.tolist(), lambda x: x.cpu(), lambda x: x.nonzero(), lambda x: x[x > 1],
    lambda x: bool(x.any()), lambda x: int(x.max()), lambda x: torch.equal(x, x), lambda x: x.unique(),
    lambda x: torch.empty(3).copy_(x), lambda x: x.repeat_interleave(x.long()), lambda x: torch.where(x > 1),
])  # fmt: skip
def test_what_the_host_waits_for_is_counted(wait: Callable[[Tensor], object], simulated: torch.device) -> None:
    x = torch.tensor([1.0, 2.0, 3.0]).to(simulated)
    traffic.clear()

    wait(x)

    assert traffic.synchronisations.total() == 1


@pytest.mark.parametrize("work", [
    lambda x: x.masked_fill(x > 1, 0.0), lambda x: torch.where(x > 1, x, 0.0), lambda x: x[1:].sum(), lambda x: x[[0]],
    lambda x: x.topk(2).values.cumsum(0), lambda x: x.sort().indices, lambda x: x.clone().to(torch.bfloat16),
    lambda x: x.repeat_interleave(x.long(), output_size=6),
])  # fmt: skip
def test_work_on_the_device_is_no_synchronisation(work: Callable[[Tensor], object], simulated: torch.device) -> None:
    x = torch.tensor([1.0, 2.0, 3.0]).to(simulated)
    traffic.clear()

    work(x)

    assert not traffic.synchronisations
    assert not traffic.to_host


def test_copies_are_counted_in_bytes(simulated: torch.device) -> None:
    x = torch.ones(3, 5, device=simulated)
    assert not traffic.to_device

    torch.ones(2, 5).to(simulated)
    torch.tensor([1.0, 2.0], device=simulated)
    x.cpu()

    assert traffic.to_device.total() == (10 + 2) * 4
    assert traffic.to_host.total() == 15 * 4


def test_autocast_lowers_products_and_keeps_sums_exact(simulated: torch.device) -> None:
    layer, x = nn.Linear(3, 4).to(simulated), torch.ones(2, 3, device=simulated)

    with torch.autocast(simulated.type, dtype=torch.bfloat16):
        product = layer(x)
        assert product.dtype == (x @ x.T).dtype == torch.bfloat16
        assert product.softmax(1).dtype == product.sum().dtype == product.exp().dtype == torch.float32
        with torch.autocast(simulated.type, enabled=False):
            assert layer(x).dtype == torch.float32
    product.float().sum().backward()

    assert layer.weight.grad.dtype == torch.float32


def test_shared_parameters_stay_shared(simulated: torch.device) -> None:
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    module[1].weight = module[0].weight

    module.to(simulated)

    assert module[1].weight is module[0].weight
