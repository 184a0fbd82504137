"""`make fuzz`: coverage-guided fuzzing of everything that reads a user's file, a fixed number of runs each.

atheris (libFuzzer) mutates good files and keeps what reaches new code. A traceback, ten seconds without an end or two
gigabytes of memory fail the run, and leave the file that caused it in the folder named at the end.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from tests.fuzz.targets import LARGEST, targets

_SECONDS = 10
_MEGABYTES = 2048


def main() -> None:
    """Fuzz the targets that are named, or all; exit with 1 if one fails."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", help="targets; all of them where none is named")
    parser.add_argument("--runs", type=int, default=20_000, help="of each target")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    names = given.names or list(targets())
    if unknown := set(names) - set(targets()):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(targets())}")
    artifacts = Path(mkdtemp(prefix="remat-fuzz-"))
    failed = [name for name in names if not _survives(name, given.runs, given.seed, artifacts)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the files are in {artifacts}")
    artifacts.rmdir()
    print(f"{len(names)} passed, 0 failed")


def _survives(name: str, runs: int, seed: int, artifacts: Path) -> bool:
    with TemporaryDirectory() as folder:
        corpus, words = Path(folder, "corpus"), Path(folder, "words")
        corpus.mkdir()
        for number, content in enumerate(targets()[name].seeds):
            (corpus / f"seed{number}").write_bytes(content)
        words.write_text("".join(f'"{word}"\n' for word in _words(targets()[name].seeds)))
        limits = [f"-runs={runs}", f"-seed={seed}", f"-timeout={_SECONDS}", f"-rss_limit_mb={_MEGABYTES}"]
        limits += [f"-max_len={LARGEST}", f"-dict={words}", f"-artifact_prefix={artifacts}/{name}-", "-verbosity=0"]
        print(f"fuzzing {name}: {runs:,} runs", flush=True)
        return subprocess.run([sys.executable, "-m", "tests.fuzz.child", name, *limits, corpus]).returncode == 0


def _words(seeds: Iterable[bytes]) -> list[str]:
    """Return what formats are made of, for the fuzzer to put together: keys, names, numbers, brackets."""
    found = {word.decode() for seed in seeds for word in re.findall(rb"[A-Za-z_][A-Za-z0-9_./-]+", seed)}
    quoted = {f'\\"{word}\\":' for word in found}
    return sorted(found | quoted | {"{", "}", "[", "]", ",", ": ", "- ", "null", "true", "-1", "1e9", "9" * 30})


if __name__ == "__main__":
    main()
