"""Trains the digits 21 times and photographs their reports for ``docs/report.md``; takes some minutes and needs Chromium.

    python tests/e2e/report_pictures.py

The pictures go to ``docs/images``: look at them, and make them small (96 colours are enough), before they are committed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Browser

DOCS = Path(__file__).parents[2] / "docs"
DIGITS = DOCS / "examples" / "digits" / "trainconf.py"
PLUGINS = ("no:progress", "run_store", "lr_monitor", "memory", "hook_time")
RATES, SEEDS = ("2e-4", "1e-3", "5e-3", "5e-2"), range(5)

HEADING = "[...document.querySelectorAll('h2')].find((one) => one.textContent === arguments[0])"
CURVES = "[...document.querySelectorAll('.card')].find((one) => one.querySelector('h4')?.textContent === arguments[0]).querySelector('.u-over')"


def trainhooks(*words):
    subprocess.run([sys.executable, "-m", "trainhooks", *map(str, words)], check=True)


def train(project, run, *words):
    plugins = [word for plugin in PLUGINS for word in ("-p", plugin)]
    trainhooks("train", project, "--set", f"work_dir={run}", "--set", "log_every_steps=5", *plugins, *words)


def resumed(folder):
    """Train the digits, stopped after eight epochs and resumed."""
    train(DIGITS.parent, folder / "digits", "--set", "max_epochs=8")
    train(DIGITS.parent, folder / "digits", "--set", "max_epochs=20", "--resume", "auto")
    return folder / "digits"


def sweep(folder):
    """Train the digits with four learning rates from five seeds each; one seed has another plugin."""
    project = folder / "project"
    project.mkdir()
    for rate in RATES:
        (project / "trainconf.py").write_text(DIGITS.read_text().replace("lr=5e-3", f"lr={rate}"))
        for seed in SEEDS:
            more = ("-p", "ema") if seed == SEEDS[-1] else ()
            run = folder / "runs" / f"lr-{rate}-seed-{seed}"
            train(project, run, "--set", f"seed={seed}", "--set", "max_epochs=20", *more)
    return folder / "runs"


class Photographer:
    """Opens reports in one browser, and photographs what is below a heading, the cursor in a metric's chart if one is named."""

    def __init__(self, folder):
        self.folder, self.browser = folder, Browser(folder)

    def open(self, *words, width, height, dark=False):
        page = self.folder / "report.html"
        trainhooks("report", *words, "-o", page)
        self.browser.size(width, height)
        self.browser.theme(dark=dark)
        self.browser.load(page)
        self.browser.wait("document.querySelector('.plot canvas') !== null")

    def shot(self, name, heading="", metric=""):
        if heading:
            self.browser.run(f"{HEADING}.scrollIntoView(); scrollBy(0, -10)", heading)
        self.browser.mouse("mouseMoved", 1, 1)
        if metric:
            x, y, width, height = self.browser.run(
                f"const box = {CURVES}.getBoundingClientRect(); return [box.x, box.y, box.width, box.height]", metric
            )
            for nudge in (1, 0):
                self.browser.mouse("mouseMoved", x + 0.35 * width + nudge, y + 0.1 * height)
        self.browser.frames()
        self.browser.shot(DOCS / "images" / f"{name}.png")


def main():
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        one, twenty = resumed(folder), sweep(folder)
        photographer = Photographer(folder)
        try:
            photographer.open(one, "--title", "Digits, stopped after 8 epochs and resumed", width=1100, height=860)
            photographer.shot("report-run", metric="train/accuracy")
            photographer.shot("report-time", "Time")
            photographer.open(twenty, width=1000, height=860)
            photographer.shot("report-twenty", "Curves", "train/accuracy")
            photographer.open(twenty, width=1000, height=560, dark=True)
            photographer.shot("report-differences", "Configuration")
            photographer.browser.run(
                "const smooth = document.getElementById('smooth'); smooth.value = 0.8;"
                "smooth.dispatchEvent(new Event('input')); document.getElementById('log').click()"
            )
            photographer.shot("report-dark", "Curves")
            photographer.open(twenty, width=390, height=844)
            photographer.shot("report-phone", "Curves")
        finally:
            photographer.browser.close()


if __name__ == "__main__":
    main()
