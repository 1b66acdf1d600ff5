#!/usr/bin/env python3
"""The demo: one stream, overlapping invocations that share its shards, one of them killed, and every record counted.

It starts stand-ins for Kinesis and DynamoDB with a producer (`examples/local.rs`) and the function under
`cargo lambda watch`, sends an invocation every few seconds, kills one function process with SIGKILL in the middle, and
shows who owns which shard. The function's handler appends every record that it is given to a file, and from that file
alone the demo says at the end how many records were lost or repeated and how long each hand-over took.

The exit code is 0 if nothing was lost and no invocation failed but the killed one. `--help` lists the options.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True  # No __pycache__ among the sources.
from demo_view import Records, Screen, say

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "target" / "demo"
RECORDS = OUT / "records.jsonl"
STATUS_URL = "http://127.0.0.1:4568/status"
LOCAL_PORTS = (4567, 4568, 8000)
FUNCTION = "shard-processor"
VICTIM = 2  # The second invocation is the one that is killed: by then it holds its share, and others are there.
BEGAN = time.time()
GRACE = 10  # Seconds after its end when an invocation that has not answered is given up.


class Failed(Exception):
    """Ends the demo with this message."""


class Children:
    """Every process that the demo starts, so that all of them end with it."""

    def __init__(self):
        self.processes = []

    def start(self, command, **options):
        # A session of its own: Ctrl-C in the terminal reaches the demo alone, which then ends the others in order.
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **options)
        self.processes.append(process)
        return process

    def stop(self):
        """Asks all to end, the last one started first, then makes them."""
        functions = [pid for process in self.processes if process.poll() is None for pid in children_of(process.pid)]
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in functions:  # `watch` ends these itself, unless it had to be killed.
            send_signal(pid, signal.SIGKILL)
        self.processes.clear()


def children_of(parent):
    """The process ids of a process's children, oldest first."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    pairs = (tuple(map(int, line.split())) for line in listing.splitlines())
    return sorted(pid for pid, ppid in pairs if ppid == parent)


def send_signal(pid, number):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


class Local:
    """The stand-ins and the producer."""

    def __init__(self, children, executable, rate, total):
        self.put = 0
        self.ready = threading.Event()
        with (OUT / "local.log").open("wb") as log:
            self.process = children.start(
                [executable, "--produce", str(rate), "--total", str(total)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )
        threading.Thread(target=self.listen, daemon=True).start()
        deadline = time.monotonic() + 30
        while not self.ready.wait(0.1):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed("The local stand-ins did not start.")

    def listen(self):
        for line in self.process.stdout:
            if line.strip() == b"ready":
                self.ready.set()
            elif line.startswith(b"{"):
                self.put = max(self.put, json.loads(line).get("put", 0))

    def status(self):
        """Shards and owners at this moment, or None when there was no answer."""
        try:
            with urllib.request.urlopen(STATUS_URL, timeout=1) as reply:
                status = json.load(reply)
        except (OSError, ValueError):
            return None
        self.put = max(self.put, status["put"])
        return status


class Invocation:
    """One `cargo lambda invoke`: a scheduled tick, as far as the function can tell."""

    def __init__(self, children, port, number, event, run_seconds):
        self.number = number
        self.started = time.monotonic()
        self.overdue = self.started + run_seconds + GRACE
        self.state = "running"
        self.summary = {}
        event_file, self.reply, self.errors = (OUT / f"invocation-{number}.{name}" for name in ("event", "json", "err"))
        event_file.write_text(json.dumps(event))
        with self.reply.open("wb") as reply, self.errors.open("wb") as errors:
            self.process = children.start(
                ["cargo", "lambda", "invoke", "--invoke-address", "127.0.0.1", "--invoke-port", str(port),
                 FUNCTION, "--data-file", str(event_file)],
                env=environment(), stdin=subprocess.DEVNULL, stdout=reply, stderr=errors,
            )

    def poll(self):
        """Whether it has ended since the last time."""
        if self.state != "running":
            return False
        code = self.process.poll()
        if code is None and time.monotonic() > self.overdue:
            self.process.terminate()
            self.state = "no answer"
        elif code == 0:
            self.summary = json.loads(self.reply.read_bytes() or b"{}")
            self.state = "done"
        elif code is not None:
            self.state = "failed"
        return self.state != "running"

    def killed(self):
        """Its function is no more: `watch` never answers such a call."""
        self.process.terminate()
        self.state = "killed"

    def __str__(self):
        if self.state == "done":
            reason, records = self.summary.get("reason"), self.summary.get("records", 0)
            return f"invocation {self.number} ended: {reason}, {records:,} records"
        message = " ".join(self.errors.read_text(errors="replace").split())
        return f"invocation {self.number}: {self.state}. {message[:300]}"


def environment():
    """This process's, with the tools of .venv and the settings for the local stand-ins."""
    env = dict(os.environ, PATH=f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name in [name for name in env if name.startswith(("LEASEHOLD_", "AWS_ENDPOINT_URL"))]:
        del env[name]
    env.pop("AWS_PROFILE", None)
    for line in (ROOT / "tools" / "local.env").read_text().splitlines():
        name, _, value = line.partition("=")
        env[name] = value
    return env


def build():
    """Builds the function and the stand-ins; returns the path of the stand-ins."""
    say("building the function and the local stand-ins (the first time takes some minutes)")
    cargo = ["cargo", "build", "--locked"]
    function = subprocess.run([*cargo, "--bin", FUNCTION], cwd=ROOT)
    local = subprocess.run([*cargo, "--example", "local", "--message-format", "json-render-diagnostics"],
                           cwd=ROOT, stdout=subprocess.PIPE)
    if function.returncode or local.returncode:
        raise Failed("The build failed.")
    messages = [json.loads(line) for line in local.stdout.splitlines()]
    return next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "local")


def check_ports(ports):
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                raise Failed(f"Port {port}, which the demo needs, is in use: is another demo or `make local` running?")


def start_watch(children, options, port, concurrency):
    """`cargo lambda watch`: the control plane, which starts a process of the function for each overlapping call."""
    env = environment()
    env.update(LEASEHOLD_HANDLER=f"jsonl:{RECORDS}", LEASEHOLD_POLL_MS="200",
               LEASEHOLD_RUN_MS=str(options.run * 1000))
    with (OUT / "function.log").open("ab") as log:
        watch = children.start(
            ["cargo", "lambda", "watch", "--bin", FUNCTION, "--ignore-changes",
             "--concurrency", str(concurrency), "--invoke-address", "127.0.0.1", "--invoke-port", str(port)],
            env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and watch.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return watch
        time.sleep(0.1)
    raise Failed("cargo lambda watch did not start.")


class Demo:
    """The course of events."""

    def __init__(self, options, children, screen, local):
        self.options, self.children, self.screen = options, children, screen
        self.local = local
        # All invocations share one `watch`, as they share one function on AWS, except for the one that is to be killed:
        # the only process under a `watch` of its own is certainly the one that serves it.
        # `watch` starts as many processes as it may while a call waits, so it may no more than can overlap.
        overlap = options.run // options.every + 2
        self.watch = start_watch(children, options, options.port, concurrency=overlap)
        self.victims_watch = start_watch(children, options, options.port + 1, concurrency=1)
        self.records = Records(RECORDS)
        self.invocations = []
        self.killed_at = None  # Epoch milliseconds, as in the records.
        self.began = time.monotonic()
        self.shards = []

    def seconds(self):
        return time.monotonic() - self.began

    def invoke(self, event, run_seconds):
        number = len(self.invocations) + 1
        port = self.options.port + (number == VICTIM)
        self.invocations.append(Invocation(self.children, port, number, event, run_seconds))
        self.screen.event(f"invocation {number} starts")

    def kill_one(self):
        victim = self.invocations[VICTIM - 1]
        pids = children_of(self.victims_watch.pid)
        if victim.state != "running" or len(pids) != 1:
            raise Failed(f"Invocation {VICTIM}, which was to be killed, is not running.")
        self.killed_at = time.time() * 1000
        send_signal(pids[0], signal.SIGKILL)
        victim.killed()
        self.screen.event(f"invocation {VICTIM}: its process {pids[0]} gets SIGKILL")

    def step(self):
        """A look at everything, and the table."""
        time.sleep(0.2)
        for name, process in (("cargo lambda watch", self.watch), ("The local stand-ins", self.local.process)):
            if process.poll() is not None:
                raise Failed(f"{name} ended early.")
        for invocation in self.invocations:
            if invocation.poll():
                self.screen.event(str(invocation))
        self.records.read()
        status = self.local.status()
        if status:
            self.shards = status["shards"]
        self.screen.draw(self.seconds(), self.local.put, self.records, self.invocations, self.shards)

    def wait_for_running(self):
        while any(invocation.state == "running" for invocation in self.invocations):
            self.step()

    def run(self):
        options = self.options
        # The schedule: a run that starts late is told to end with the demo.
        while self.seconds() < options.seconds - 8:
            if self.seconds() >= len(self.invocations) * options.every:
                run_seconds = min(options.run, max(5, round(options.seconds - self.seconds())))
                self.invoke({"run_ms": run_seconds * 1000}, run_seconds)
            if self.killed_at is None and options.kill and self.seconds() >= options.kill:
                self.kill_one()
            self.step()
        self.wait_for_running()
        # Whatever is left, as when this machine is slow.
        for _ in range(4):
            if self.local.put >= options.total and len(self.records.seen) >= self.local.put:
                break
            self.invoke({"run_ms": 20000, "stop_when_caught_up": True}, 20)
            self.wait_for_running()

    def report(self):
        """The last lines; returns the exit code."""
        records, put = self.records, self.local.put
        records.read()
        self.screen.erase()
        lost = put - len(records.seen)
        answered = {invocation.summary.get("invocation") for invocation in self.invocations}
        victims = records.invocations - answered if self.killed_at else set()
        planned = [gap for _, owner, _, at, gap in records.hand_overs
                   if not (owner in victims and at >= self.killed_at)]
        unplanned = [(shard, at - self.killed_at) for shard, owner, _, at, _ in records.hand_overs
                     if owner in victims and at >= self.killed_at]
        failed = [str(i.number) for i in self.invocations if i.state not in ("done", "killed")]

        say("")
        say(f"put         {put:,}")
        say(f"processed   {len(records.seen):,}")
        say(f"lost        {lost:,}")
        why = " (read by the killed invocation after its last checkpoint)" if records.repeated and victims else ""
        say(f"repeated    {records.repeated:,}{why}")
        if records.out_of_order:
            say(f"disordered  {records.out_of_order:,}")
        if planned:
            say(f"hand-overs  {len(planned)}: from the last record of one owner to the first of the next, "
                f"median {statistics.median(planned):,.0f} ms, longest {max(planned):,.0f} ms")
        for shard, gap in unplanned:
            say(f"take-over   {shard} after the kill: {gap / 1000:.1f} s")
        if self.killed_at and not unplanned:
            say("take-over   none: the killed invocation held no shard")

        problems = []
        if put < self.options.total:
            problems.append(f"only {put:,} of {self.options.total:,} records were put")
        if lost:
            problems.append(f"{abs(lost):,} records were " + ("lost" if lost > 0 else "processed that nobody put"))
        if records.out_of_order:
            problems.append("records of a shard came out of order")
        if failed:
            problems.append(f"failed, without having been killed: invocation {', '.join(failed)}")
        if problems:
            raise Failed("\n".join(problems))
        say(f"nothing was lost ({self.seconds():.0f} s; logs and records in {OUT.relative_to(ROOT)})")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="how long it takes (default 60)")
    parser.add_argument("--rate", type=int, default=500, help="records a second (default 500)")
    parser.add_argument("--every", type=int, default=6, help="seconds between two invocations (default 6)")
    parser.add_argument("--run", type=int, default=30, help="seconds that an invocation lasts (default 30)")
    parser.add_argument("--kill", type=int, default=20, help="when to kill one, in seconds; 0: never (default 20)")
    parser.add_argument("--port", type=int, default=9000, help="port of cargo lambda watch; the next one is used too (default 9000)")
    options = parser.parse_args()
    if options.kill and not VICTIM * options.every <= options.kill < options.every * (VICTIM - 1) + options.run - 2:
        parser.error(f"--kill must be while invocation {VICTIM} runs and after {VICTIM * options.every} s")
    options.total = options.rate * max(5, options.seconds - 20)
    return options


def tail(name, lines=15):
    path = OUT / name
    if path.exists() and path.stat().st_mtime >= BEGAN:
        text = re.sub(r"\x1b\[[0-9;]*m", "", path.read_text(errors="replace"))
        print(f"--- the end of {path.relative_to(ROOT)}", *text.splitlines()[-lines:], sep="\n", file=sys.stderr)


def interrupted(number, _frame):
    raise SystemExit(128 + number)


def main():
    options = parse_options()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    children, screen = Children(), Screen()
    try:
        check_ports((*LOCAL_PORTS, options.port, options.port + 1))
        shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir(parents=True)
        executable = build()
        local = Local(children, executable, options.rate, options.total)
        demo = Demo(options, children, screen, local)
        demo.run()
        demo.report()
        return 0
    except Failed as failure:
        screen.erase()
        sys.stdout.flush()
        for name in ("local.log", "function.log"):
            tail(name)
        print(f"demo failed: {failure}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # Nobody reads on, as in `make demo | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        children.stop()


if __name__ == "__main__":
    sys.exit(main())
