"""Prints how much of reduced models a comparison of outputs can see, with our weights and with stock ones.

    python -m tests.bench.observability --models 200

Half of the models are timm's, half base models of transformers; each half is spread evenly over timm's files and over
the model types.
"""

from __future__ import annotations

import os

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import argparse
import random
import signal
import statistics
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import zip_longest
from multiprocessing import get_context

import torch
from rich.console import Console

from harness.backends.double import ControlUnavailable
from harness.backends.reference import run_control, run_reference
from harness.numerics.observability import LEAST, Observability, measure
from model_zoo.sources import build, source
from model_zoo.sources.timm import architectures

HOW = ("observable", "stock")
LIMIT = 120
"""Seconds that a model may take in all; one that takes more is left out, as one that does not run."""
SECONDS = 20.0
"""Perturbations of a model end after so long."""


def main() -> None:
    """Measures, prints one line per model, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--calls", type=int, default=16, help="op calls perturbed per model")
    parser.add_argument("--largest", type=float, default=20e6, help="parameters of the largest timm model")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of models")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", nargs="*", help="model ids to measure instead")
    options = parser.parse_args()
    console = Console(soft_wrap=True, highlight=False)
    found: dict[str, dict[str, Observability]] = {}
    measure_one = partial(_measured, calls=options.calls, largest=options.largest)
    shares = {"timm": options.models - options.models // 2, "transformers": options.models // 2}
    with ProcessPoolExecutor(options.workers, get_context("spawn"), _prepare) as pool:
        asked = {pool.submit(measure_one, model_id): model_id for model_id in options.only or candidates(options.seed)}
        for done in as_completed(asked):
            model_id = asked[done]
            part = model_id.split(":")[0]
            both = None if done.cancelled() or (not options.only and shares[part] == 0) else done.result()
            if both is None:
                continue
            found[model_id] = both
            told = "  ".join(f"{how} {both[how].share:.2f}" for how in HOW)
            unseen = dict(Counter(both["observable"].unseen))
            console.print(f"{len(found):4d}  {model_id:50s} {told}  {unseen or ''}")
            if not options.only:
                shares[part] -= 1
                if shares[part] == 0:  # enough of these
                    for future, other in asked.items():
                        if other.startswith(part):
                            future.cancel()
    _report(console, found)


def _prepare() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def candidates(seed: int) -> list[str]:
    """Model ids, timm and transformers in turn, one per timm file or model type first; more than are needed."""
    files: dict[str, list[str]] = {}
    for name, file in architectures().items():
        files.setdefault(file, []).append(name)
    chance = random.Random(seed)
    for names in files.values():
        chance.shuffle(names)
    rounds = [name for same in zip_longest(*files.values()) for name in same if name is not None]
    types = [name for name in source("transformers").names() if "/" not in name]
    chance.shuffle(types)
    pairs = zip(rounds, types, strict=False)
    return [model_id for name, kind in pairs for model_id in (f"timm:{name}", f"transformers:{kind}")]


def _measured(model_id: str, calls: int, largest: float) -> dict[str, Observability] | None:
    """Observability per kind of weights; None for a model that does not run on the reference, or not in time."""
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(LIMIT)
    try:
        return _both(model_id, calls, largest)
    except TimeoutError:
        return None
    finally:
        signal.alarm(0)


def _too_slow(*_: object) -> None:
    raise TimeoutError


def _both(model_id: str, calls: int, largest: float) -> dict[str, Observability] | None:
    if model_id.startswith("timm:") and _size(model_id.removeprefix("timm:")) > largest:
        return None
    found: dict[str, Observability] = {}
    for how in HOW:
        try:
            built = build(model_id, weights=how)
            reference = run_reference(built).leaves
        except TimeoutError:
            raise
        except Exception:
            return None
        try:
            control = run_control(built)
        except ControlUnavailable:
            control = None
        found[how] = measure(built, reference, control, calls=calls, seconds=SECONDS)
    return found


def _size(name: str) -> float:
    """Number of a timm model's parameters, without making them; 0 where its constructor needs them made."""
    import timm

    try:
        with torch.device("meta"):
            module: torch.nn.Module = timm.create_model(name, pretrained=False)
        return sum(p.numel() for p in module.parameters())
    except Exception:
        return 0


def _report(console: Console, found: dict[str, dict[str, Observability]]) -> None:
    for how in HOW:
        shares = {model: both[how].share for model, both in found.items() if how in both}
        if not shares:
            continue
        below = sum(share < LEAST for share in shares.values()) / len(shares)
        console.print(
            f"{how:10s} weights: median {statistics.median(shares.values()):.3f}, "
            f"mean {statistics.mean(shares.values()):.3f}, below {LEAST} {below:.1%}, {len(shares)} models"
        )
        for part in ("timm", "transformers"):
            own = [share for model, share in shares.items() if model.startswith(part)]
            if own:
                console.print(f"    {part:12s} median {statistics.median(own):.3f}, {len(own)} models")
    console.print("worst with observable weights:")
    for model, both in sorted(found.items(), key=lambda item: item[1]["observable"].share)[:10]:
        console.print(f"    {both['observable'].share:.2f}  {model}  {', '.join(both['observable'].unseen)}")


if __name__ == "__main__":
    main()
