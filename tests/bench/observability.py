"""Prints how much of reduced models a comparison of outputs can see, with our weights and with stock ones.

    python -m tests.bench.observability --models 200

Half of the models are timm's, half base models of transformers; each half is spread evenly over timm's files and over
the model types.
"""

from __future__ import annotations

import os

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import argparse
import json
import random
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from harness.backends.double import ControlUnavailable
from harness.backends.reference import run_control, run_reference
from harness.numerics.observability import LEAST, Observability, measure
from model_zoo.sources import build, source

HOW = ("observable", "stock")


def main() -> None:
    """Measures, prints one line per model, then the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--calls", type=int, default=16)
    parser.add_argument("--largest", type=float, default=120e6, help="parameters of the largest timm model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="model ids to measure instead")
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--out", type=Path, help="a file of JSON lines to write the results to")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    console = Console(soft_wrap=True, highlight=False)
    found: dict[str, dict[str, Observability]] = {}
    for model_id in options.only or candidates(options.models, options.seed):
        if len(found) == (len(options.only) if options.only else options.models):
            break
        begun = time.monotonic()
        both = _measured(model_id, HOW[: 1 if options.no_stock else 2], options.calls, options.largest)
        if both is None:
            continue
        found[model_id] = both
        shares = "  ".join(f"{how} {both[how].share:.2f}" for how in both)
        unseen = dict(Counter(both["observable"].unseen))
        console.print(f"{len(found):4d}  {model_id:50s} {shares}  {time.monotonic() - begun:5.1f} s  {unseen or ''}")
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({"model": model_id, **{how: vars(both[how]) for how in both}}) + "\n")
    _report(console, found)


def candidates(models: int, seed: int) -> list[str]:
    """Model ids, timm and transformers in turn, one per timm file or model type first; more than asked for."""
    from model_zoo.sources.timm import architectures

    files: dict[str, list[str]] = {}
    for name, file in architectures().items():
        files.setdefault(file, []).append(name)
    chance = random.Random(seed)
    for names in files.values():
        chance.shuffle(names)
    rounds = [names[i] for i in range(models) for names in files.values() if i < len(names)]
    types = [name for name in source("transformers").names() if "/" not in name]
    chance.shuffle(types)
    pairs = zip(rounds, types, strict=False)
    return [model_id for name, kind in pairs for model_id in (f"timm:{name}", f"transformers:{kind}")]


def _measured(model_id: str, hows: Sequence[str], calls: int, largest: float) -> dict[str, Observability] | None:
    """Observability per kind of weights; None for a model that does not run on the reference, or is too large."""
    found: dict[str, Observability] = {}
    for how in hows:
        try:
            built = build(model_id, weights=how)
            if built.parameters > largest:
                return None
            reference = run_reference(built).leaves
        except Exception:
            return None
        try:
            control = run_control(built)
        except ControlUnavailable:
            control = None
        found[how] = measure(built, reference, control, calls=calls)
    return found


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
