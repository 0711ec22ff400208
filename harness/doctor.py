"""What can run on this machine, and why not: the facts behind `calipers doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import environment
from harness.backends import backend_names, load_backend
from model_zoo.sources import source_names

if TYPE_CHECKING:
    from rich.console import Console


def examine() -> dict[str, Any]:
    """Machine, versions, sources, and every backend with its modes, as plain data."""
    backends = []
    for name in backend_names():
        try:
            backend = load_backend(name)
            modes = []
            for mode in backend.modes:
                found = backend.availability(mode)
                modes.append({"mode": mode, "ok": found.ok, "route": found.route, "hint": found.hint})
        except Exception as error:  # a third party's backend must not keep doctor from answering
            modes = [{"mode": "?", "ok": False, "route": f"{type(error).__name__}: {error}", "hint": "reinstall it"}]
        backends.append({"backend": name, "modes": modes})
    return {
        "calipers": environment.calipers_version(),
        "machine": environment.machine().model_dump(mode="json"),
        "versions": environment.versions(),
        "sources": source_names(),
        "backends": backends,
    }


def print_examination(console: Console, found: dict[str, Any]) -> None:
    """Prints what `examine` found for a person."""
    from rich.table import Table
    from rich.text import Text

    machine = found["machine"]
    console.print(
        f"calipers {found['calipers']}, Python {machine['python']}, {machine['system']}\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"ISA {' '.join(machine['isa'][-4:]) or 'unknown'}\n"
        f"sources: {', '.join(found['sources'])}"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("backend", "mode", "", "how it runs here, or why not"):
        table.add_column(title, overflow="fold")
    for backend in found["backends"]:
        for mode in _alike(backend["modes"]):
            sign = Text("✓ can run", "green") if mode["ok"] else Text("✗ cannot", "red")
            why = mode["route"] + (f"; {mode['hint']}" if mode["hint"] and not mode["ok"] else "")
            table.add_row(backend["backend"], mode["mode"], sign, why)
    console.print(table)
    console.print("versions: " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()))


def _alike(modes: list[dict[str, Any]], most: int = 6) -> list[dict[str, Any]]:
    """The modes; of many that run in the same way the first, and how many there are besides."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for mode in modes:
        groups.setdefault((mode["ok"], mode["route"], mode["hint"]), []).append(mode)
    shown = []
    for first, *rest in groups.values():
        shown += [{**first, "mode": f"{first['mode']} and {len(rest)} more"}] if len(rest) >= most else [first, *rest]
    return shown
