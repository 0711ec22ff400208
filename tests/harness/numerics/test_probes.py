"""An ignored argument is told from one that is heeded, wrongly or rightly."""

import pytest
import torch

from harness.backends.tree import Leaf, walk
from harness.numerics.probes import ignored_argument, ignored_message

X = torch.linspace(-3, 3, 32)
PLAIN, SHARP = torch.nn.functional.softplus(X), torch.nn.functional.softplus(X, beta=2.0)


def probe(default: object, changed: object) -> tuple[Leaf, ...]:
    return walk({"default": default, "changed": changed})


def test_the_same_output_twice_is_an_ignored_argument() -> None:
    device, reference = probe(PLAIN * 1.001, PLAIN * 1.001), probe(PLAIN, SHARP)
    assert ignored_argument(device, reference)
    assert ignored_message("op:softplus(beta=2.0)", device, reference).startswith("the argument beta has no effect: ")


def test_a_wrong_output_that_moves_is_not() -> None:
    assert not ignored_argument(probe(PLAIN, SHARP * 3), probe(PLAIN, SHARP))
    assert ignored_message("op:softplus(beta=2.0)", probe(PLAIN, SHARP * 3), probe(PLAIN, SHARP)) == ""


@pytest.mark.parametrize("after", [PLAIN, PLAIN * (1 + 1e-7), PLAIN * 1.01])
def test_nothing_is_ignored_where_the_reference_does_not_move(after: torch.Tensor) -> None:
    assert not ignored_argument(probe(PLAIN, PLAIN), probe(PLAIN, after))


def test_one_output_of_two_that_moves_is_enough() -> None:
    both = probe((PLAIN, X), (SHARP, X))
    assert ignored_argument(probe((PLAIN, X), (PLAIN, X)), both)
    assert not ignored_argument(both, both)


@pytest.mark.parametrize(
    ("default", "changed"),
    [
        (torch.ones(3), torch.ones(1, 3)),  # another shape
        (torch.ones(3), torch.ones(3).int()),  # another dtype
        (torch.tensor([torch.nan, 1.0]), torch.tensor([0.0, 1.0])),  # a NaN replaced
        (torch.tensor([torch.inf, 1.0]), torch.tensor([-torch.inf, 1.0])),
        (torch.tensor([True, False]), torch.tensor([True, True])),
        (torch.tensor([1j, 2.0]), torch.tensor([1j, 3.0])),
        (torch.tensor([1.0, 3e38]), torch.tensor([2.0, 3e38])),  # beside a value of another magnitude
        ([torch.ones(4)], [torch.ones(2), torch.ones(2)]),  # another number of outputs
    ],
)
def test_any_kind_of_move_counts(default: object, changed: object) -> None:
    assert ignored_argument(probe(default, default), probe(default, changed))
    assert not ignored_argument(probe(default, changed), probe(default, changed))


def test_outputs_of_other_models_are_no_probes() -> None:
    assert not ignored_argument(walk((PLAIN, PLAIN)), walk((PLAIN, SHARP)))
    assert not ignored_argument(walk({"default": PLAIN}), walk({"default": PLAIN}))
    assert ignored_message("timm:resnet18", probe(PLAIN, PLAIN), probe(PLAIN, SHARP)) == ""
