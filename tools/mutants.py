#!/usr/bin/env python3
"""Break one rule at a time on purpose, and see that a test fails.

    tools/mutants.py [--list] [WORD ...]

A mutant is a small change of the source that breaks one clause of the specification. They stand in
tests/mutants/*.txt, one after another:

    §6.6 a throttled call keeps its iterator
    file: src/shard/reader.rs
    test: --test limits throttled
    <<<
    what stands there, whole lines, once in the file
    ===
    what is put in its place
    >>>

`test:` is what follows `cargo test --all-features`: the test that must fail. A mutant may change several places: each
`file:` line holds for the blocks after it. `why:` lines tell the reader what the change does. With WORDs, only
mutants whose clause, file or test holds one of them are played.

Every mutant is played in a copy of this checkout (target/mutants), so the work tree stays as it is. The end is
non-zero if a mutant passes its test (the clause is not tested), does not compile, or no longer fits the source.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tests" / "mutants"

# A broken rule may well make a run endless: that, too, is found.
ENDLESS = 240


class Malformed(Exception):
    """A file of mutants that cannot be read."""


@dataclass
class Change:
    file: str
    old: str
    new: str


@dataclass
class Mutant:
    where: str
    clause: str
    test: str = ""
    changes: list[Change] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.clause} ({self.where})"

    def holds(self, word: str) -> bool:
        return any(word in text for text in [str(self), self.test, *(change.file for change in self.changes)])


def read(path: Path) -> list[Mutant]:
    mutants: list[Mutant] = []
    file, block, old, new = "", "", [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{path.name}:{number}"
        if block == "old":
            if line == "===":
                block = "new"
            else:
                old.append(line)
        elif block == "new":
            if line == ">>>":
                mutants[-1].changes.append(Change(file, "\n".join(old), "\n".join(new)))
                block = ""
            else:
                new.append(line)
        elif line.startswith("§"):
            mutants.append(Mutant(where, line))
            file = ""
        elif line.startswith("#") or line.startswith("why:") or not line.strip():
            continue
        elif not mutants:
            raise Malformed(f"{where}: a mutant begins with the clause that it breaks: §6.6 ...")
        elif line.startswith("file: "):
            file = line.removeprefix("file: ").strip()
        elif line.startswith("test: "):
            mutants[-1].test = line.removeprefix("test: ").strip()
        elif line == "<<<":
            if not file:
                raise Malformed(f"{where}: no 'file:' stands before this change")
            block, old, new = "old", [], []
        else:
            raise Malformed(f"{where}: {line!r} is neither file:, test:, why: nor <<<")
    if block:
        raise Malformed(f"{path.name}: the last change has no end (>>>)")
    for mutant in mutants:
        if not mutant.test or not mutant.changes:
            raise Malformed(f"{mutant}: it needs a 'test:' and a change")
    return mutants


def changed(mutant: Mutant, root: Path) -> dict[Path, str]:
    """The files of a mutant as they are to stand; raises Malformed where it does not fit."""
    texts: dict[Path, str] = {}
    for change in mutant.changes:
        path = root / change.file
        if not path.is_file():
            raise Malformed(f"{mutant}: there is no {change.file}")
        text = texts.get(path, path.read_text(encoding="utf-8"))
        # Whole lines, wherever they are indented to.
        found = ("\n" + text).count("\n" + change.old + "\n")
        if found != 1:
            raise Malformed(f"{mutant}: its lines stand {found} times in {change.file}, not once")
        texts[path] = ("\n" + text).replace("\n" + change.old + "\n", "\n" + change.new + "\n", 1)[1:]
    return texts


def cargo(arguments: list[str], root: Path, limit: float | None) -> tuple[int | None, str]:
    """Runs cargo; no code if it had to be ended."""
    environment = dict(os.environ, CARGO_TARGET_DIR=str(root / "target"))
    process = subprocess.Popen(
        ["cargo", *arguments], cwd=root, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


def play(mutant: Mutant, root: Path) -> tuple[bool, str]:
    """Whether the mutant is found, and how."""
    texts = changed(mutant, root)
    whole = {path: path.read_text(encoding="utf-8") for path in texts}
    target, _, rest = mutant.test.partition(" -- ")
    build = ["test", "--locked", "--all-features", "--quiet", "--no-run", *test_target(target)]
    run = ["test", "--locked", "--all-features", *target.split(), *(["--", *rest.split()] if rest else [])]
    try:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        code, output = cargo(build, root, None)
        if code:
            return False, "it does not compile:\n" + "\n".join(output.splitlines()[-30:])
        code, output = cargo(run, root, ENDLESS)
    finally:
        for path, text in whole.items():
            path.write_text(text, encoding="utf-8")
    if code is None:
        return True, f"its test does not end (in {ENDLESS} s)"
    failed = [line.split()[1] for line in output.splitlines() if line.startswith("test ") and line.endswith("FAILED")]
    if code and failed:
        return True, ", ".join(failed)
    if code:
        return False, "cargo test failed, and no test did:\n" + "\n".join(output.splitlines()[-20:])
    ran = sum("test result: ok." in line for line in output.splitlines())
    passed = sum(line.startswith("test ") and line.endswith("... ok") for line in output.splitlines())
    return False, f"{passed} tests in {ran} binaries pass: the clause is not tested"


def test_target(target: str) -> list[str]:
    """Of `--test limits throttled` what cargo has to build for it: `--test limits`."""
    words = target.split()
    if words[0] in ("--lib", "--doc"):
        return words[:1]
    return words[:2]


def copy() -> Path:
    """A checkout to break things in, as the work tree stands now, with its own build folder."""
    root = ROOT / "target" / "mutants"
    root.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, goal = ROOT / name, root / name
        if not source.is_file():
            goal.unlink(missing_ok=True)
            continue
        text = source.read_bytes()
        if not goal.is_file() or goal.read_bytes() != text:
            goal.parent.mkdir(parents=True, exist_ok=True)
            goal.write_bytes(text)
            goal.chmod(source.stat().st_mode)
    tools = ROOT / ".venv"
    if tools.exists() and not (root / ".venv").exists():
        (root / ".venv").symlink_to(tools)
    return root


def main() -> int:
    parser = argparse.ArgumentParser(description="break one rule at a time on purpose, and see that a test fails")
    parser.add_argument("--list", action="store_true", help="only say what there is, and whether it fits the source")
    parser.add_argument("words", nargs="*", help="play only mutants with one of these words")
    arguments = parser.parse_args()
    try:
        mutants = [mutant for path in sorted(MUTANTS.glob("*.txt")) for mutant in read(path)]
    except Malformed as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.words:
        mutants = [mutant for mutant in mutants if any(mutant.holds(word) for word in arguments.words)]
    misfits = []
    for mutant in mutants:
        try:
            changed(mutant, ROOT)
        except Malformed as error:
            misfits.append(str(error))
    print("\n".join(misfits) if misfits else f"{len(mutants)} mutants fit the source", flush=True)
    if arguments.list:
        print("\n".join(f"{mutant}: {mutant.test}" for mutant in mutants))
    if arguments.list or misfits:
        return 1 if misfits else 0

    root, survivors = copy(), []
    for number, mutant in enumerate(mutants, 1):
        begun = time.monotonic()
        is_found, how = play(mutant, root)
        if not is_found:
            survivors.append(mutant)
        took = f"{time.monotonic() - begun:.0f} s"
        print(f"{number}/{len(mutants)} {'found' if is_found else 'NOT FOUND'} {mutant}: {how} [{took}]", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants are found")
    for mutant in survivors:
        print(f"  not found: {mutant}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
